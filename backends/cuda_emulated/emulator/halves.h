// Numbers of 16 bits, as the bits that they are. NaN becomes the one that a GPU makes.
#pragma once

#include "runtime.h"

namespace emulator {

inline u32 bits_of(float x) {
    u32 bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

inline float float_of(u32 bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

// Exponents are biased by 15 in f16 and by 127 in float: the factor 2 ** 112 makes up for it, of subnormals too.
inline float from_f16(u16 h) {
    const u32 size = (u32)(h & 0x7fff) << 13, finite = bits_of(float_of(size) * 0x1p112f);
    return float_of((size < 0x0f800000 ? finite : size | 0x7f800000) | (u32)(h & 0x8000) << 16);
}

inline float from_bf16(u16 h) { return float_of((u32)h << 16); }

inline u16 to_f16(float x) {
    const u32 bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return sign | 0x7c00; // from 65520 on
    // Below 2 ** -14: next to 0.5, the unit in the last place of a float is that of a subnormal f16.
    if (size < 0x38800000) return sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000);
    return sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
}

inline u16 to_bf16(float x) {
    const u32 bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

} // namespace emulator
