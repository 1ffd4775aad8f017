/* Compiles the kernels once per instruction set, in this one translation unit, so that the build
 * needs no flags per file. Headers come first: nothing of theirs may be compiled for a target. */
#include "kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#define PC_X86 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PC_GLUE_(a, b) a##_##b
#define PC_GLUE(a, b) PC_GLUE_(a, b)
#define PC_NAME(x) PC_GLUE(x, PC_SUFFIX)
#define PC_TEXT_(s) #s
#define PC_TEXT(s) PC_TEXT_(s)

#define PC_BASELINE 0 /* x86-64-v2, or whatever else the compiler builds for */
#define PC_AVX2 1
#define PC_AVX512 2
#define PC_AVX512BF16 3
#define PC_NEON 4

/* Loops over registers, which must not stay loops. */
#if defined(__clang__)
#define PC_UNROLL _Pragma("unroll")
#else
#define PC_UNROLL _Pragma("GCC unroll 32")
#endif
#define PC_EACH_BY(i, end, step) PC_UNROLL for (int i = 0; i < (end); i += (step))
#define PC_EACH(i, end) PC_EACH_BY (i, end, 1)
#define PC_INLINE static inline __attribute__((always_inline))
#define PC_PREFETCH(p) __builtin_prefetch((p), 0, 2) /* into L2: hints for L1 are capped at 12 GB/s on Zen 4 */

#ifndef PC_TABLES
#define PC_TABLES 31 /* a bit for each target; tests compile few */
#endif
#define PC_HAS(target) (PC_TABLES >> (target) & 1)

#if PC_HAS(PC_BASELINE)
#define PC_TARGET PC_BASELINE
#include "target.inc.h"
#endif
#if PC_X86 && PC_HAS(PC_AVX2)
#define PC_TARGET PC_AVX2
#include "target.inc.h"
#endif
#if PC_X86 && PC_HAS(PC_AVX512)
#define PC_TARGET PC_AVX512
#include "target.inc.h"
#endif
#if PC_X86 && PC_HAS(PC_AVX512BF16)
#define PC_TARGET PC_AVX512BF16
#include "target.inc.h"
#endif
#if defined(__aarch64__) && PC_HAS(PC_NEON)
#define PC_TARGET PC_NEON
#include "target.inc.h"
#endif

static const pc_kernels *const compiled[] = {
#if PC_HAS(PC_BASELINE)
    &table_baseline,
#endif
#if PC_X86 && PC_HAS(PC_AVX2)
    &table_avx2,
#endif
#if PC_X86 && PC_HAS(PC_AVX512)
    &table_avx512,
#endif
#if PC_X86 && PC_HAS(PC_AVX512BF16)
    &table_avx512bf16,
#endif
#if defined(__aarch64__) && PC_HAS(PC_NEON)
    &table_neon,
#endif
};

const pc_kernels *pc_kernels_at(int i) {
    return 0 <= i && i < (int)(sizeof compiled / sizeof *compiled) ? compiled[i] : NULL;
}

int pc_cpu_supports(const char *name) {
#if defined(__aarch64__)
    return !strcmp(name, "baseline") || !strcmp(name, "neon");
#elif PC_X86
    __builtin_cpu_init(); /* reads CPUID and XCR0, and so asks whether the system saves the registers */
    unsigned a, b, c, d;
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
               (c & bit_F16C);
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    int bf16 = avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
    return !strcmp(name, "baseline")     ? __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")
           : !strcmp(name, "avx2")       ? avx2
           : !strcmp(name, "avx512")     ? avx512
           : !strcmp(name, "avx512bf16") ? bf16
                                         : 0;
#else
    return !strcmp(name, "baseline");
#endif
}
