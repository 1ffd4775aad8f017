// What the kernels ask of a GPU beyond C, in PTX (sm_80 and later). Tests on machines without a GPU put another file of
// the same functions in its place, so nothing else here may use PTX, or a function that is CUDA's own.
#pragma once

#define PC_KERNEL extern "C" __global__
#define PC_DEVICE __device__ __forceinline__
#define PC_INFINITY __int_as_float(0x7f800000)

extern __shared__ __align__(128) u8 pc_shared_bytes[];

// The shared memory of this block, as many bytes as its launch asked for.
PC_DEVICE u8 *pc_shared() { return pc_shared_bytes; }

PC_DEVICE u32 pc_shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// ---- copies from global to shared memory that run beside the computation

// Copy 16 bytes, both addresses multiples of 16; without `valid` nothing is read and zeros arrive.
PC_DEVICE void pc_copy16(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(pc_shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

// Copy 4 bytes in the same way.
PC_DEVICE void pc_copy4(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(pc_shared_address(shared)), "l"(global),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

// Close this thread's group of copies.
PC_DEVICE void pc_copy_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Wait until at most PENDING of this thread's groups have not arrived; others see the bytes after a barrier.
template <int PENDING> PC_DEVICE void pc_copy_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// ---- matrices that are spread over a warp: lane l holds elements of row l / 4

// Load four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned),
// and gets elements 2 * (l % 4) and the next one of row l / 4 of each.
PC_DEVICE void pc_load_matrices(u32 *r, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pc_shared_address(row))
                 : "memory");
}

// The same with each matrix transposed on the way.
PC_DEVICE void pc_load_matrices_transposed(u32 *r, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pc_shared_address(row))
                 : "memory");
}

// c [16 x 8, float] += a [16 x 16] * b [16 x 8], a and b of 16-bit elements. Lane l, with g = l / 4 and j = l % 4,
// holds
//   c[0..3]: (g, 2j) (g, 2j+1) (g+8, 2j) (g+8, 2j+1);
//   a[0..3]: pairs of columns from (g, 2j) (g+8, 2j) (g, 2j+8) (g+8, 2j+8);   b[0..1]: pairs of rows from (2j, g)
//   (2j+8, g).
PC_DEVICE void pc_multiply(float *c, const u32 *a, const u32 *b, f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

PC_DEVICE void pc_multiply(float *c, const u32 *a, const u32 *b, bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- numbers

// Two floats, rounded to nearest even: `low` in the lower half of the result.
PC_DEVICE u32 pc_pack(float low, float high, f16) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

PC_DEVICE u32 pc_pack(float low, float high, bf16) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

PC_DEVICE float pc_float(f16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(r) : "h"(x.bits));
    return r;
}

// Half by half: a - b of two pairs of f16.
PC_DEVICE u32 pc_subtract_pairs(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;\n" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Choose 4 of the 8 bytes of b:a; nibble i of `selector` is the number of byte i of the result.
PC_DEVICE u32 pc_permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

PC_DEVICE float pc_from_bits(u32 bits) { return __int_as_float((int)bits); }
PC_DEVICE u32 pc_bits(float x) { return (u32)__float_as_int(x); }

// 2 ** x and log2(x), to about 2 units in the last place; x / y rounded to nearest, subnormals as they are.
PC_DEVICE float pc_exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

PC_DEVICE float pc_log2(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

PC_DEVICE float pc_divide(float x, float y) {
    float r;
    asm("div.rn.f32 %0, %1, %2;\n" : "=f"(r) : "f"(x), "f"(y));
    return r;
}

// x * y + z, rounded once, subnormals as they are: operators take them for 0, as CuPy has them compiled.
PC_DEVICE float pc_fused(float x, float y, float z) {
    float r;
    asm("fma.rn.f32 %0, %1, %2, %3;\n" : "=f"(r) : "f"(x), "f"(y), "f"(z));
    return r;
}

PC_DEVICE float pc_tanh(float x) { return tanhf(x); }

// The nearest integer, of two the even one.
PC_DEVICE int pc_round(float x) {
    int r;
    asm("cvt.rni.s32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
    return r;
}

PC_DEVICE float pc_max(float x, float y) { return fmaxf(x, y); } // of a number and NaN: the number

// Bits 32 to 63 of a * b.
PC_DEVICE u32 pc_high_product(u32 a, u32 b) { return __umulhi(a, b); }

// ---- a warp's lanes among each other (all 32 take part), and barriers

PC_DEVICE float pc_exchange(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
PC_DEVICE float pc_from_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
PC_DEVICE bool pc_any(bool x) { return __any_sync(0xffffffffu, x); }
PC_DEVICE void pc_sync_warp() { __syncwarp(); }
PC_DEVICE void pc_sync_block() { __syncthreads(); }

// ---- places

PC_DEVICE int pc_thread() { return threadIdx.x; }
PC_DEVICE int pc_threads() { return blockDim.x; }
PC_DEVICE int pc_block() { return blockIdx.x; }
PC_DEVICE int pc_blocks() { return gridDim.x; }

// Load what nobody writes while the kernel runs.
PC_DEVICE int pc_load(const int *p) { return __ldg(p); }

// 16 bytes at a time: both addresses multiples of 16.
struct __align__(16) Vector {
    u32 word[4];
};
