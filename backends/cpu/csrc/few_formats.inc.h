/* The loops of few.inc.h, made once for each format and number of rows. No include guard on purpose. */

/* One function for each format and number of rows; one more for 4 rows, for later groups of as many:
 * the first has prefetched what is to come. (Later ones of 1 to 3 rows do it again.) */
#undef PC_NOT_AGAIN
#define PC_NOT_AGAIN 5
typedef struct PC_NAME(few_format) {
    void (*products[PC_NOT_AGAIN + 1])(const void *q, int64_t q_width, const char *k, const int64_t *at, int32_t width,
                                       float *s, const PC_NAME(ahead) *ahead, int32_t first);
    void (*sums[PC_NOT_AGAIN + 1])(const void *p, const char *v, const int64_t *at, int32_t n, int32_t width,
                                   float *acc, int64_t v_width, const PC_NAME(ahead) *ahead);
} PC_NAME(few_format);

#undef PC_FORMAT
#undef PC_ROWS
#define PC_ROWS(format, number, rows, fetch, PRODUCTS, SUMS)                                                           \
    static __attribute__((noinline)) void PC_NAME(products_##format##number)(                                          \
        const void *q, int64_t q_width, const char *k, const int64_t *at, int32_t width, float *s,                     \
        const PC_NAME(ahead) *ahead, int32_t first) {                                                                  \
        PRODUCTS(rows, fetch);                                                                                         \
    }                                                                                                                  \
    static __attribute__((noinline)) void PC_NAME(sums_##format##number)(                                              \
        const void *p, const char *v, const int64_t *at, int32_t n, int32_t width, float *acc, int64_t v_width,        \
        const PC_NAME(ahead) *ahead) {                                                                                 \
        SUMS(rows, fetch);                                                                                             \
    }
#define PC_FORMAT(format, PRODUCTS, SUMS)                                                                              \
    PC_ROWS(format, 1, 1, 1, PRODUCTS, SUMS)                                                                           \
    PC_ROWS(format, 2, 2, 1, PRODUCTS, SUMS)                                                                           \
    PC_ROWS(format, 3, 3, 1, PRODUCTS, SUMS)                                                                           \
    PC_ROWS(format, 4, 4, 1, PRODUCTS, SUMS)                                                                           \
    PC_ROWS(format, 5, 4, 0, PRODUCTS, SUMS)                                                                           \
    static const PC_NAME(few_format) PC_NAME(few_##format) = {                                                         \
        {0, PC_NAME(products_##format##1), PC_NAME(products_##format##2), PC_NAME(products_##format##3),               \
         PC_NAME(products_##format##4), PC_NAME(products_##format##5)},                                                \
        {0, PC_NAME(sums_##format##1), PC_NAME(sums_##format##2), PC_NAME(sums_##format##3),                           \
         PC_NAME(sums_##format##4), PC_NAME(sums_##format##5)},                                                        \
    };

#undef PC_PRODUCTS
#undef PC_SUMS
#define PC_SUMS(dtype, rows, fetch) PC_NAME(sums)(dtype, rows, fetch, p, v, at, n, width, acc, v_width, ahead)
#define PC_PRODUCTS(dtype, rows, fetch) PC_NAME(products)(dtype, rows, fetch, q, q_width, k, at, width, s, ahead, first)
#define PC_P(rows, fetch) PC_PRODUCTS(PC_F32, rows, fetch)
#define PC_S(rows, fetch) PC_SUMS(PC_F32, rows, fetch)
PC_FORMAT(f32, PC_P, PC_S)
#undef PC_P
#undef PC_S
#define PC_P(rows, fetch) PC_PRODUCTS(PC_F16, rows, fetch)
#define PC_S(rows, fetch) PC_SUMS(PC_F16, rows, fetch)
PC_FORMAT(f16, PC_P, PC_S)
#undef PC_P
#undef PC_S
#define PC_P(rows, fetch) PC_PRODUCTS(PC_BF16, rows, fetch)
#define PC_S(rows, fetch) PC_SUMS(PC_BF16, rows, fetch)
PC_FORMAT(bf16, PC_P, PC_S)
#undef PC_P
#undef PC_S
#define PC_P(rows, fetch) PC_PRODUCTS(PC_I8, rows, fetch)
#define PC_S(rows, fetch) PC_SUMS(PC_I8, rows, fetch)
PC_FORMAT(i8, PC_P, PC_S)
#undef PC_P
#undef PC_S
#define PC_P(rows, fetch) PC_PRODUCTS(PC_E4M3, rows, fetch)
#define PC_S(rows, fetch) PC_SUMS(PC_E4M3, rows, fetch)
PC_FORMAT(e4m3, PC_P, PC_S)
#undef PC_P
#undef PC_S
#if PC_TARGET == PC_AVX512BF16
#define PC_P(rows, fetch) PC_NAME(products_native)(rows, fetch, q, 2 * q_width, k, at, width, s, ahead, first)
#define PC_S(rows, fetch) PC_NAME(sums_native)(rows, fetch, p, v, at, n, width, acc, v_width, ahead)
PC_FORMAT(native, PC_P, PC_S)
#undef PC_P
#undef PC_S
#endif

static const PC_NAME(few_format) *PC_NAME(format_of)(const pc_job *job) {
    static const PC_NAME(few_format) *const formats[] = {&PC_NAME(few_f32), &PC_NAME(few_f16), &PC_NAME(few_bf16),
                                                         &PC_NAME(few_i8), &PC_NAME(few_e4m3)};
#if PC_TARGET == PC_AVX512BF16
    if (PC_NAME(is_native)(job)) return &PC_NAME(few_native);
#endif
    return formats[job->k.dtype];
}
