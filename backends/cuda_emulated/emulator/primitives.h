// The functions of backends/cuda/kernels/primitives.cuh, where they are described, for the emulator; numbers.cuh comes
// before. Memory of a kernel is read and written here, in its own translation unit, so that sanitizers see it done.
#pragma once

#include "halves.h"
#include "runtime.h"

#define PC_KERNEL extern "C"
#define PC_DEVICE inline
#define PC_INFINITY __builtin_inff()
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

typedef emulator::Here PcHere;

PC_DEVICE u8 *pc_shared() { return emulator::self->shared; }

// ---- copies from global to shared memory that run beside the computation

namespace emulator {

// Volatile: thread sanitizer knows of stores that are left as they are, and of none by memcpy.
inline void put(void *to, Bytes data, int bytes) {
    if (bytes == 4) {
        *(volatile u32 *)to = (u32)data.half[0];
    } else {
        ((volatile u64 *)to)[0] = data.half[0];
        ((volatile u64 *)to)[1] = data.half[1];
    }
}

} // namespace emulator

PC_DEVICE void pc_copy16(void *shared, const void *global, bool valid, PcHere here = PcHere::at()) {
    emulator::Bytes data = {};
    if (valid) data = *(const emulator::Bytes *)global;
    emulator::put(shared, emulator::begin_copy(shared, valid ? global : nullptr, data, 16, here), 16);
}

PC_DEVICE void pc_copy4(void *shared, const void *global, bool valid, PcHere here = PcHere::at()) {
    emulator::Bytes data = {};
    if (valid) data.half[0] = *(const u32 *)global;
    emulator::put(shared, emulator::begin_copy(shared, valid ? global : nullptr, data, 4, here), 4);
}

PC_DEVICE void pc_copy_commit() { emulator::close_group(); }

template <int PENDING> PC_DEVICE void pc_copy_wait() {
    const emulator::Arrivals arrivals = emulator::wait_for_copies(PENDING);
    for (int i = 0; i < arrivals.count; i++) {
        const emulator::Copy &copy = arrivals.first[i];
        emulator::put(copy.to, copy.data, copy.bytes);
    }
}

// ---- matrices that are spread over a warp

namespace emulator {

inline Bytes row_at(const void *address, const char *primitive, Here here) {
    const u64 place = (u64)((const u8 *)address - self->shared);
    if (place % 16 || place >= self->shared_bytes || place + 16 > self->shared_bytes)
        refuse_row(address, primitive, here);
    const volatile u64 *half = (const u64 *)address;
    return {{half[0], half[1]}};
}

} // namespace emulator

PC_DEVICE void pc_load_matrices(u32 *r, const void *row, PcHere here = PcHere::at()) {
    emulator::load_matrices(r, emulator::row_at(row, "pc_load_matrices", here), false, here);
}

PC_DEVICE void pc_load_matrices_transposed(u32 *r, const void *row, PcHere here = PcHere::at()) {
    emulator::load_matrices(r, emulator::row_at(row, "pc_load_matrices_transposed", here), true, here);
}

PC_DEVICE void pc_multiply(float *c, const u32 *a, const u32 *b, f16, PcHere here = PcHere::at()) {
    emulator::multiply_f16(c, a, b, here);
}

PC_DEVICE void pc_multiply(float *c, const u32 *a, const u32 *b, bf16, PcHere here = PcHere::at()) {
    emulator::multiply_bf16(c, a, b, here);
}

// ---- numbers

PC_DEVICE float pc_from_bits(u32 bits) { return emulator::float_of(bits); }
PC_DEVICE u32 pc_bits(float x) { return emulator::bits_of(x); }

PC_DEVICE u32 pc_pack(float low, float high, f16) { return emulator::to_f16(low) | (u32)emulator::to_f16(high) << 16; }
PC_DEVICE u32 pc_pack(float low, float high, bf16) {
    return emulator::to_bf16(low) | (u32)emulator::to_bf16(high) << 16;
}
PC_DEVICE float pc_float(f16 x) { return emulator::from_f16(x.bits); }

// Rounded twice, to float and to f16, which does no harm: a float has more than twice the bits of an f16.
PC_DEVICE u32 pc_subtract_pairs(u32 a, u32 b) {
    const float low = emulator::from_f16((u16)a) - emulator::from_f16((u16)b);
    const float high = emulator::from_f16((u16)(a >> 16)) - emulator::from_f16((u16)(b >> 16));
    return pc_pack(low, high, f16{});
}

// Bit 3 of a nibble asks for the byte's sign in all 8 bits.
PC_DEVICE u32 pc_permute(u32 a, u32 b, u32 selector) {
    const u64 bytes = (u64)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        const u32 nibble = selector >> (4 * i) & 15, byte = (u32)(bytes >> (nibble % 8 * 8)) & 0xff;
        r |= (nibble < 8 ? byte : byte >> 7 ? 0xff : 0) << (8 * i);
    }
    return r;
}

namespace emulator {

// What .ftz makes of a subnormal number.
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }

} // namespace emulator

PC_DEVICE float pc_exp2(float x) { return emulator::flushed(__builtin_exp2f(x)); }
PC_DEVICE float pc_log2(float x) { return __builtin_log2f(emulator::flushed(x)); }
PC_DEVICE float pc_divide(float x, float y) { return x / y; }
PC_DEVICE float pc_fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
PC_DEVICE float pc_tanh(float x) { return __builtin_tanhf(x); }

PC_DEVICE int pc_round(float x) {
    if (x != x) return 0;
    if (x >= 0x1p31f) return 0x7fffffff;
    if (x < -0x1p31f) return -0x7fffffff - 1;
    return (int)__builtin_rintf(x);
}

PC_DEVICE float pc_max(float x, float y) {
    if (x == y) return pc_from_bits(pc_bits(x) & pc_bits(y)); // of 0 and -0: 0
    return x > y || y != y ? x : y;
}

PC_DEVICE u32 pc_high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }

// ---- a warp's lanes among each other, and barriers

PC_DEVICE float pc_exchange(float x, int distance, PcHere here = PcHere::at()) {
    return emulator::exchange(x, distance, here);
}
PC_DEVICE float pc_from_lane(float x, int lane, PcHere here = PcHere::at()) {
    return emulator::value_of_lane(x, lane, here);
}
PC_DEVICE bool pc_any(bool x, PcHere here = PcHere::at()) { return emulator::any(x, here); }
PC_DEVICE void pc_sync_warp(PcHere here = PcHere::at()) { emulator::sync_warp(here); }
PC_DEVICE void pc_sync_block(PcHere here = PcHere::at()) { emulator::sync_block(here); }

// ---- places

PC_DEVICE int pc_thread() { return emulator::self->thread; }
PC_DEVICE int pc_threads() { return emulator::self->threads; }
PC_DEVICE int pc_block() { return emulator::self->block; }
PC_DEVICE int pc_blocks() { return emulator::self->blocks; }

PC_DEVICE int pc_load(const int *p) { return *p; }

struct __align__(16) Vector {
    u32 word[4];
};
