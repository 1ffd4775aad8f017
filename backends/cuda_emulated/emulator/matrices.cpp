#include "matrices.h"

#include <cstring>

// Compile a function also for a processor with AVX2, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__)
#define TWICE __attribute__((target_clones("avx2", "default")))
#else
#define TWICE
#endif

namespace emulator {

void load_plain(void **lanes) {
    for (int lane = 0; lane < 32; lane++) {
        u32 *r = ((MatrixRow *)lanes[lane])->r;
        for (int m = 0; m < 4; m++) {
            const Bytes *row = ((MatrixRow *)lanes[m * 8 + lane / 4])->row;
            memcpy(r + m, (const u8 *)row + lane % 4 * 4, 4);
        }
    }
}

void load_transposed(void **lanes) {
    u16 elements[32][8];
    for (int i = 0; i < 32; i++) memcpy(elements[i], ((MatrixRow *)lanes[i])->row, 16);
    for (int lane = 0; lane < 32; lane++) {
        u32 *r = ((MatrixRow *)lanes[lane])->r;
        const int column = lane / 4, row = lane % 4 * 2;
        for (int m = 0; m < 4; m++) r[m] = elements[m * 8 + row][column] | (u32)elements[m * 8 + row + 1][column] << 16;
    }
}

#pragma GCC diagnostic ignored "-Wpsabi" // all functions that take vectors are inlined

namespace {

// Vectors of the compiler's: it makes loops of them where the processor has none that long.
typedef float Floats __attribute__((vector_size(32)));
typedef u32 Words __attribute__((vector_size(32)));
typedef u16 Halves __attribute__((vector_size(16)));

#define INLINE inline __attribute__((always_inline))

struct F16 {
    static INLINE Floats widened(Halves h) { // as from_f16
        const Words bits = __builtin_convertvector(h, Words), size = (bits & 0x7fff) << 13;
        const Words finite = (Words)((Floats)size * 0x1p112f);
        return (Floats)((size < 0x0f800000 ? finite : size | 0x7f800000) | (bits & 0x8000) << 16);
    }
};

struct Bf16 {
    static INLINE Floats widened(Halves h) { return (Floats)(__builtin_convertvector(h, Words) << 16); }
};

// Sums are added up in float, k rising, and then to c.
template <class Type> INLINE void multiply(void **lanes) {
    union {
        u16 number[16][16];
        Halves vector[32];
    } a;
    union {
        u16 number[16][8];
        Halves vector[16];
    } b;
    for (int g = 0; g < 8; g++) {
        for (int j = 0; j < 4; j++) {
            const Product &mine = *(const Product *)lanes[4 * g + j];
            for (int i = 0; i < 4; i++) memcpy(&a.number[g + i % 2 * 8][2 * j + i / 2 * 8], mine.a + i, 4);
            for (int i = 0; i < 4; i++) b.number[2 * j + i / 2 * 8 + i % 2][g] = (u16)(mine.b[i / 2] >> (i % 2 * 16));
        }
    }
    union {
        float number[16][16];
        Floats vector[32];
    } left;
    Floats right[16];
    for (int i = 0; i < 32; i++) left.vector[i] = Type::widened(a.vector[i]);
    for (int i = 0; i < 16; i++) right[i] = Type::widened(b.vector[i]);
    Floats sums[16];
    for (int row = 0; row < 16; row++) {
        Floats sum = {};
        for (int k = 0; k < 16; k++) sum += left.number[row][k] * right[k];
        sums[row] = sum;
    }
    for (int g = 0; g < 8; g++) {
        for (int j = 0; j < 4; j++) {
            float *c = ((Product *)lanes[4 * g + j])->c;
            for (int e = 0; e < 4; e++) c[e] += sums[g + e / 2 * 8][2 * j + e % 2];
        }
    }
}

} // namespace

TWICE void product_of_f16(void **lanes) { multiply<F16>(lanes); }
TWICE void product_of_bf16(void **lanes) { multiply<Bf16>(lanes); }

} // namespace emulator
