/* What the kernels compute with, and the table of them, one per instruction set.
 *
 * A step is cut into items (plan.h). An item is some queries, some KV heads and a span of keys; it
 * leaves either finished rows of `out`, or a part of them, which `merge` combines with the others.
 * Everything here is plain C: no Python, no threads, no allocation. */
#pragma once
#include <float.h>
#include <stdint.h>

enum { PC_F32, PC_F16, PC_BF16, PC_I8, PC_E4M3 }; /* what numbers are stored as */

enum {
    PC_TILE = 64,     /* keys that are looked at together */
    PC_FEW_ROWS = 16, /* query rows of a KV head up to which K/V are read in place, not packed */
    PC_PAD = 32       /* widths of scratch rows are multiples of it: the numbers of the widest step */
};

#define PC_NEVER (-FLT_MAX) /* maximum of a row that saw no key: finite, so that it can be subtracted */

typedef struct pc_plane { /* K or V of one layer in the pool */
    char *data;
    float *scales;                                /* one per token and head, or NULL */
    int64_t block, token, head;                   /* strides, bytes */
    int64_t scale_block, scale_token, scale_head; /* strides of the scales, floats */
    int32_t width;                                /* numbers of a head */
    int32_t dtype;
} pc_plane;

typedef struct pc_rows { /* the caller's [tokens, heads, width], compact */
    char *data;
    int32_t heads, width, dtype;
} pc_rows;

typedef struct pc_rule {      /* how a score is made of q . k; exponentials are to the base 2 */
    float scale;              /* factor: the scale times log2(e), or, with a cap, the scale / cap */
    float cap;                /* the soft cap times log2(e), or 0 */
    const float *slopes;      /* [q_heads] ALiBi times log2(e), or NULL */
    const float *sink_logits; /* [q_heads] times log2(e), or NULL */
    int32_t native;           /* q and weights may be rounded to the storage type */
} pc_rule;

typedef struct pc_sequence {
    const int32_t *table;
    const int64_t *positions; /* of the new tokens, where they do not rise one by one; else NULL */
    int32_t pad, new_begin;   /* row coordinates of position 0, and of the first new token */
} pc_sequence;

typedef struct pc_query { /* which keys a query sees, in row coordinates */
    int32_t begin, end;   /* [begin, end), */
    int32_t sinks;        /* [pad, sinks), */
    int64_t position;     /* of the query */
    int64_t seen;         /* and the new tokens with a byte that is not 0 from here on; -1: none */
} pc_query;

typedef struct pc_item {
    int32_t sequence;               /* whose table is read */
    int32_t first, count;           /* queries, as tokens of the step */
    int32_t head, heads;            /* KV heads */
    int32_t sinks_begin, sinks_end; /* keys: these, */
    int32_t begin, end;             /* and these */
    int32_t part;                   /* which part of its queries this is; -1: all there is */
} pc_item;

typedef struct pc_job { /* one call of attend */
    pc_plane k, v;
    pc_rows q, out;
    float *lse; /* [tokens, q_heads], or NULL */
    pc_rule rule;
    int32_t block_size, kv_heads, group; /* tokens; heads; query heads of a KV head */
    const pc_sequence *sequences;
    const pc_query *queries; /* [tokens] */
    const uint8_t *seen;
    const int32_t *first_part; /* [tokens + 1] where the parts of each token begin */
    float *parts;              /* [parts, q_heads, pc_part_width] */
} pc_job;

/* Whether so many queries of a group of heads each are attended to over K/V where they are. */
static inline int pc_is_few(int32_t queries, int32_t group) { return (int64_t)queries * group <= PC_FEW_ROWS; }

/* A part of a row: the sum over its keys of 2^(score - max) times V, then that maximum and the plain sum. */
static inline int64_t pc_part_width(const pc_job *job) { return job->v.width + 2; }

typedef struct pc_kernels {
    const char *name;
    int32_t has_native; /* whether 16-bit brain floats are multiplied as they are */
    int64_t (*scratch)(const pc_job *job, const pc_item *item); /* bytes an item needs */
    void (*attend)(const pc_job *job, const pc_item *item, void *scratch);
    void (*merge)(const pc_job *job, int32_t token, void *scratch);                   /* parts of a token into out */
    void (*convert)(int32_t from, const void *src, int32_t to, void *dst, int64_t n); /* F32, F16, BF16 */
    void (*quantise)(int32_t to, const float *src, int32_t n, void *dst, float *scale);
    int32_t (*finite)(int32_t dtype, const void *src, int64_t n);
} pc_kernels;

const pc_kernels *pc_kernels_at(int i); /* table i of those compiled in, worst first; NULL past the last */
int pc_cpu_supports(const char *name);  /* whether processor and system can run the table of this name */
