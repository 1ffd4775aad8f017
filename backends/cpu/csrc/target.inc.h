/* Compiles the kernels for the target named by PC_TARGET, then forgets it. No include guard on purpose. */
#if PC_TARGET == PC_BASELINE
#define PC_SUFFIX baseline
#define PC_WIDTH 4
#define PC_FEATURES "sse4.2,popcnt"
#elif PC_TARGET == PC_AVX2
#define PC_SUFFIX avx2
#define PC_WIDTH 8
#define PC_FEATURES "avx2,fma,f16c"
#elif PC_TARGET == PC_AVX512
#define PC_SUFFIX avx512
#define PC_WIDTH 16
#define PC_FEATURES "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"
#elif PC_TARGET == PC_AVX512BF16
#define PC_SUFFIX avx512bf16
#define PC_WIDTH 16
#define PC_FEATURES "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"
#elif PC_TARGET == PC_NEON
#define PC_SUFFIX neon
#define PC_WIDTH 4
#endif

#ifdef PC_EMULATED
#undef PC_FEATURES
#define PC_FEATURES "avx2,fma,f16c"
#endif
#if PC_X86 && defined(__clang__)
#define PC_PUSH_(s) _Pragma(#s)
#define PC_PUSH(s) PC_PUSH_(clang attribute push(__attribute__((target(s))), apply_to = function))
PC_PUSH(PC_FEATURES)
#elif PC_X86
#pragma GCC push_options
#define PC_PRAGMA_(s) _Pragma(#s)
#define PC_PRAGMA(s) PC_PRAGMA_(GCC target(s))
PC_PRAGMA(PC_FEATURES)
#endif

#include "simd.inc.h"
#include "numbers.inc.h"
#include "scores.inc.h"
#include "parts.inc.h"
#include "few.inc.h"
#include "many.inc.h"

static int64_t PC_NAME(scratch)(const pc_job *job, const pc_item *item) {
    return pc_is_few(item->count, job->group) ? PC_NAME(few_scratch)(job, item) : PC_NAME(many_scratch)(job, item);
}

static void PC_NAME(attend)(const pc_job *job, const pc_item *item, void *scratch) {
    if (pc_is_few(item->count, job->group)) PC_NAME(few)(job, item, scratch);
    else PC_NAME(many)(job, item, scratch);
}

static const pc_kernels PC_NAME(table) = {
    PC_TEXT(PC_SUFFIX),   PC_TARGET == PC_AVX512BF16, PC_NAME(scratch),  PC_NAME(attend),
    PC_NAME(merge_parts), PC_NAME(convert),           PC_NAME(quantise), PC_NAME(finite),
};

#if PC_X86 && defined(__clang__)
#pragma clang attribute pop
#elif PC_X86
#pragma GCC pop_options
#endif
#undef PC_PUSH
#undef PC_PUSH_
#undef PC_PRAGMA
#undef PC_PRAGMA_
#undef PC_FEATURES
#undef PC_WIDTH
#undef PC_SUFFIX
#undef PC_TARGET
