#include "store.h"

#include <string.h>

#include "attend.h"
#include "threads.h"

enum { TASK_BYTES = 1 << 18 }; /* of work that one thread takes at a time */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int32_t size_of(int32_t dtype) { return dtype == PC_F32 ? 4 : dtype <= PC_BF16 ? 2 : 1; }

/* -- new tokens ---------------------------------------------------------------------------------------- */

typedef struct stored {
    const pc_kernels *kernels;
    const pc_plane *plane;
    const pc_rows *src;
    const int64_t *slots;
    int64_t n, per_task;
    int32_t block_size;
} stored;

static void store_scaled(const stored *s, int64_t i, int64_t block, int64_t offset) {
    const pc_plane *plane = s->plane;
    float numbers[PC_WIDEST];
    for (int32_t head = 0; head < s->src->heads; head++) {
        const char *from = s->src->data + (i * s->src->heads + head) * plane->width * size_of(s->src->dtype);
        char *to = plane->data + block * plane->block + offset * plane->token + head * plane->head;
        float *scale =
            plane->scales + block * plane->scale_block + offset * plane->scale_token + head * plane->scale_head;
        const float *row = (const float *)from;
        if (s->src->dtype != PC_F32) {
            s->kernels->convert(s->src->dtype, from, PC_F32, numbers, plane->width);
            row = numbers;
        }
        s->kernels->quantise(plane->dtype, row, plane->width, to, scale);
    }
}

static void store_tokens(void *context, int32_t index, int32_t thread) {
    const stored *s = (const stored *)context;
    const pc_plane *plane = s->plane;
    const int64_t end = least((index + INT64_C(1)) * s->per_task, s->n), heads = s->src->heads;
    const int64_t row = plane->width * size_of(plane->dtype), token = heads * plane->width;
    const int64_t src_size = size_of(s->src->dtype);
    const int together = plane->head == row && plane->block == plane->token * s->block_size && !plane->scales;
    (void)thread;
    for (int64_t i = index * s->per_task, run; i < end; i += run) {
        const int64_t block = s->slots[i] / s->block_size, offset = s->slots[i] % s->block_size;
        char *to = plane->data + block * plane->block + offset * plane->token;
        const char *from = s->src->data + i * token * src_size;
        run = 1;
        if (plane->scales) store_scaled(s, i, block, offset);
        else if (together) { /* tokens of consecutive slots lie in a row */
            while (i + run < end && s->slots[i + run] == s->slots[i] + run) run++;
            s->kernels->convert(s->src->dtype, from, plane->dtype, to, run * token);
        } else
            for (int64_t head = 0; head < heads; head++)
                s->kernels->convert(s->src->dtype, from + head * plane->width * src_size, plane->dtype,
                                    to + head * plane->head, plane->width);
    }
}

void pc_store(const pc_kernels *kernels, const pc_plane *plane, const pc_rows *src, int32_t block_size,
              const int64_t *slots, int64_t n, int32_t threads) {
    const int64_t token = (int64_t)src->heads * plane->width * (size_of(plane->dtype) + size_of(src->dtype));
    stored s = {kernels, plane, src, slots, n, TASK_BYTES / (token > 0 ? token : 1) + 1, block_size};
    const int32_t tasks = (int32_t)((n + s.per_task - 1) / s.per_task);
    pc_run(pc_worth(threads, (double)n * token, plane->scales ? 8.0 * n * token : 0, PC_WAKING), tasks, NULL,
           store_tokens, &s);
}

/* -- pieces as they are ----------------------------------------------------------------------------------- */

typedef struct copied {
    const char *src;
    char *dst;
    const int64_t *from, *to;
    int64_t src_stride, dst_stride, bytes, n, per_task;
} copied;

static void copy_pieces(void *context, int32_t index, int32_t thread) {
    const copied *c = (const copied *)context;
    (void)thread;
    for (int64_t i = index * c->per_task; i < least((index + INT64_C(1)) * c->per_task, c->n); i++)
        memcpy(c->dst + (c->to ? c->to[i] : i) * c->dst_stride, c->src + (c->from ? c->from[i] : i) * c->src_stride,
               c->bytes);
}

void pc_copy(const char *src, int64_t src_stride, const int64_t *from, char *dst, int64_t dst_stride, const int64_t *to,
             int64_t bytes, int64_t n, int32_t threads) {
    copied c = {src, dst, from, to, src_stride, dst_stride, bytes, n, TASK_BYTES / (bytes > 0 ? bytes : 1) + 1};
    const int32_t tasks = (int32_t)((n + c.per_task - 1) / c.per_task);
    pc_run(pc_worth(threads, 2.0 * n * bytes, 0, PC_WAKING), tasks, NULL, copy_pieces, &c);
}
