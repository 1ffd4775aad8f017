/* What the machine can do: bytes read, bytes copied, multiply-adds, by a given number of threads.
 * Compiled at run time by probe.py with -O3 -march=native; GCC's vector extensions, so that it is the same everywhere.
 */
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef unsigned long long words __attribute__((vector_size(64), aligned(8), may_alias));

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
typedef float floats __attribute__((vector_size(4 * WIDTH))); /* one register */

typedef struct job {
    void (*run)(struct job *);
    char **to, **from;  /* arrays, `to` for copies only */
    const size_t *sizes; /* bytes of each */
    int count;           /* arrays */
    int passes;          /* times to do it all */
    int part, parts;     /* which share of every array is this thread's */
    unsigned long long sink; /* so that no load is dropped */
} job;

static void read_share(job *j) {
    words sum[8] = {0};
    for (int pass = 0; pass < j->passes; pass++)
        for (int a = 0; a < j->count; a++) {
            const size_t steps = j->sizes[a] / sizeof sum;
            const size_t end = steps * (j->part + 1) / j->parts;
            const words *p = (const words *)j->from[a];
            for (size_t i = steps * j->part / j->parts; i < end; i++) {
#pragma GCC unroll 8
                for (int k = 0; k < 8; k++) sum[k] ^= p[8 * i + k];
            }
        }
    for (int k = 0; k < 8; k++) j->sink += sum[k][0] ^ sum[k][7];
}

static void copy_share(job *j) {
    for (int pass = 0; pass < j->passes; pass++)
        for (int a = 0; a < j->count; a++) {
            const size_t lines = j->sizes[a] / 64, start = lines * j->part / j->parts;
            const size_t end = lines * (j->part + 1) / j->parts;
            memcpy(j->to[a] + 64 * start, j->from[a] + 64 * start, 64 * (end - start));
        }
}

/* 12 independent chains hide the latency; the empty asm keeps the compiler from folding the loop. */
#define CHAINS 12
static void multiply_add(job *j) {
    floats sum[CHAINS], a = (floats){0} + 0.999f, b = (floats){0} + 0.001f;
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) sum[k] = (floats){0} + (k + 0.5f); /* equal or constant chains would be left out */
    for (int pass = 0; pass < j->passes; pass++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) sum[k] = sum[k] * a + b;
        __asm__ volatile("" : "+m"(j->sink));
    }
    floats all = {0};
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) all += sum[k]; /* unrolled, or the sums would live in memory */
    j->sink += (unsigned long long)all[0];
}

#ifdef __AVX512BF16__
static void multiply_add_bf16(job *j) {
    __m512 sum[CHAINS];
    const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3c00), b = (__m512bh)_mm512_set1_epi16(0x3c01);
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) sum[k] = _mm512_set1_ps(k);
    for (int pass = 0; pass < j->passes; pass++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) sum[k] = _mm512_dpbf16_ps(sum[k], a, b);
        __asm__ volatile("" : "+m"(j->sink));
    }
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) j->sink += (unsigned long long)_mm512_reduce_add_ps(sum[k]);
}
#endif

static void *thread(void *argument) {
    job *j = argument;
    j->run(j);
    return NULL;
}

static double seconds(job j) {
    pthread_t others[64];
    job jobs[64];
    struct timespec start, end;
    if (j.parts > 64) j.parts = 64;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int t = j.parts - 1; t >= 0; t--) {
        jobs[t] = j;
        jobs[t].part = t;
        if (t) pthread_create(&others[t], NULL, thread, &jobs[t]);
    }
    j.run(&jobs[0]);
    for (int t = 1; t < j.parts; t++) pthread_join(others[t], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) + 1e-9 * (end.tv_nsec - start.tv_nsec);
}

double read_seconds(char **from, const size_t *sizes, int count, int passes, int threads) {
    return seconds((job){.run = read_share, .from = from, .sizes = sizes, .count = count, .passes = passes, .parts = threads});
}

double copy_seconds(char **to, char **from, const size_t *sizes, int count, int passes, int threads) {
    return seconds((job){.run = copy_share, .to = to, .from = from, .sizes = sizes, .count = count, .passes = passes, .parts = threads});
}

/* Operations per second of float32 (kind 0) or bfloat16 (kind 1) multiply-adds; 0 where the machine has none. */
double flops(int kind, int passes, int threads) {
    if (kind == 0)
        return threads * 2.0 * WIDTH * CHAINS * passes / seconds((job){.run = multiply_add, .passes = passes, .parts = threads});
#ifdef __AVX512BF16__
    return threads * 4.0 * 16 * CHAINS * passes / seconds((job){.run = multiply_add_bf16, .passes = passes, .parts = threads});
#endif
    return 0;
}
