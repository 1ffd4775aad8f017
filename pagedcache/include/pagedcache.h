/* pagedcache: a paged KV cache and attention over it, for C and C++. No Python is needed to run it.
 *
 *     #include <pagedcache.h>                       cc decode.c $(python -m pagedcache.capi --cflags --libs)
 *
 *     const pagedcache_api *pc = pagedcache_get_api(PAGEDCACHE_API_VERSION);
 *
 * Two parts, which can be used apart:
 *
 *   attention    over any K/V memory and any block tables that the caller has: plan_make, write, attend
 *   a cache      which owns blocks and sequences: open, start, extend, attend_step, commit, fork, ...
 *
 * The words. A block is block_size consecutive tokens of one sequence, in every layer. The K of a layer is one compact
 * array over all blocks, and so is its V. Block ids are 1 to num_blocks; block 0 is reserved, so that arrays have
 * num_blocks + 1 rows. A slot is the place of one token, block * block_size + offset. A block table is the row of block
 * ids of a sequence, its first block first.
 *
 *   layout NHD   k [num_blocks + 1, block_size, kv_heads, head_dim]     scales [num_blocks + 1, block_size, kv_heads]
 *   layout HND   k [num_blocks + 1, kv_heads, block_size, head_dim]     scales [num_blocks + 1, kv_heads, block_size]
 *
 * Arguments. Zero a struct before you fill it: 0 and NULL are the defaults. Arrays are compact, row by row, aligned as
 * their numbers are, and stay the caller's. Whatever comes in is checked before anything is written: a call that does
 * not return PAGEDCACHE_OK has changed nothing, and error() says in words which value was wrong, what the limit is and
 * what to do. What cannot be checked is that pointers lead to as much memory as the counts say.
 *
 * Numbers. Slots that no query sees may hold anything, NaN included, without changing a bit of any result. Sums and
 * softmax are float32. A sequence's results do not depend on the others of the step, or on the number of threads, bit
 * for bit. A query that sees no key gets 0, and lse -infinity.
 *
 * Threads. Any thread may call. One plan may be read by several threads at once; a cache is used by one thread at a
 * time. Work is shared out to a team of threads that starts when first needed; calls that meet do their own work. After
 * fork() the child may go on with whatever it has: its memory is a copy of its own.
 *
 * Versions. A struct never changes; what is new comes behind the last function of pagedcache_api. A program built with
 * this header runs with every library of its version or a later one. A later library says what it is in
 * pagedcache_api.version.
 *
 * Environment. PAGEDCACHE_ISA names the instruction set to run, PAGEDCACHE_NUM_THREADS the threads of a call that does
 * not say how many. Both are read once. */
#ifndef PAGEDCACHE_H
#define PAGEDCACHE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAGEDCACHE_API_VERSION 1

#ifndef PAGEDCACHE_EXTERN
#if defined(_WIN32)
#define PAGEDCACHE_EXTERN extern __declspec(dllimport)
#else
#define PAGEDCACHE_EXTERN extern
#endif
#endif

/* What calls return. error() has the words. */
enum {
    PAGEDCACHE_OK = 0,
    PAGEDCACHE_INVALID = 1,          /* an argument, or arrays that contradict each other */
    PAGEDCACHE_NO_MEMORY = 2,        /* the system gives none */
    PAGEDCACHE_OUT_OF_BLOCKS = 3,    /* release or truncate sequences, or open a larger cache */
    PAGEDCACHE_OUT_OF_SEQUENCES = 4, /* release some, or open a cache with more */
    PAGEDCACHE_STALE = 5,            /* a handle of no sequence, or of one that was released */
    PAGEDCACHE_STEP_OPEN = 6,        /* commit or abandon the step first */
    PAGEDCACHE_NO_STEP = 7,          /* extend first */
    PAGEDCACHE_UNSUPPORTED = 8,      /* this processor runs none of the kernels, or not the one asked for */
    PAGEDCACHE_BROKEN = 9            /* check() found the cache's own records in disorder: memory was overwritten */
};

/* What numbers are stored as. q, k, v as they come in, and out: the first three. */
enum {
    PAGEDCACHE_FLOAT32 = 0,
    PAGEDCACHE_FLOAT16 = 1,
    PAGEDCACHE_BFLOAT16 = 2,
    PAGEDCACHE_INT8 = 3,       /* with scales */
    PAGEDCACHE_FLOAT8_E4M3 = 4 /* with scales */
};

enum { PAGEDCACHE_NHD = 0, PAGEDCACHE_HND = 1 };

/* -- attention over the caller's memory and tables ------------------------------------------------------ */

/* The K and V of one layer. */
typedef struct pagedcache_layer {
    void *k;            /* [num_blocks + 1, block_size, kv_heads, head_dim], or as `layout` says */
    void *v;            /* likewise, of v_head_dim numbers */
    float *k_scales;    /* one per token and head, where dtype is int8 or float8; else NULL */
    float *v_scales;    /* likewise */
    int32_t num_blocks; /* usable ones: ids 1 to num_blocks */
    int32_t block_size; /* tokens, 1 to 1024 */
    int32_t kv_heads;   /* 1 or more */
    int32_t head_dim;   /* numbers of a head of K, and of q */
    int32_t v_head_dim; /* of a head of V, and of out; 0: as head_dim */
    int32_t dtype;      /* PAGEDCACHE_FLOAT32, ... */
    int32_t layout;     /* PAGEDCACHE_NHD or PAGEDCACHE_HND */
} pagedcache_layer;

/* What a batch asks for. The tokens of sequence s are qo_indptr[s] to qo_indptr[s + 1] - 1 of q and out; they are the
 * last of its kv_lens[s] tokens, whose K and V are in the blocks of row s of block_tables. */
typedef struct pagedcache_step {
    int32_t num_sequences;
    int32_t num_tokens;          /* new tokens of all, rows of q */
    int32_t table_width;         /* entries of a row of block_tables */
    int64_t table_stride;        /* entries from row to row; 0: as table_width */
    const int32_t *block_tables; /* [num_sequences, table_stride]; only entries of visible tokens are read */
    const int32_t *qo_indptr;    /* [num_sequences + 1], rising from 0 to num_tokens */
    const int32_t *kv_lens;      /* [num_sequences] tokens, the new ones and padding included */
    const int32_t *kv_pads;      /* [num_sequences] leading tokens that are never visible; NULL: none */
    const int32_t *kv_starts;    /* [num_sequences] first token still held, past sink_tokens; NULL: all are */
    const int64_t *positions;    /* [num_tokens] for window and ALiBi; NULL: in order, from the padding on */
    const int64_t *slots; /* [num_tokens] where K and V of the new tokens go: for write(), not read by plan_make */
    const uint8_t *mask;  /* bits, least first: per sequence which new token (row) sees which (column); or NULL */
    const int64_t *mask_indptr; /* [num_sequences + 1] bytes; no bytes for a sequence: causal. With mask, else NULL */
    int64_t window;             /* a query sees so many tokens, its own included; 0: all */
    int64_t sink_tokens;        /* and so many leading ones, whatever the window */
} pagedcache_step;

/* How scores are made. NULL for all of it: scale 1/sqrt(head_dim), nothing else. */
typedef struct pagedcache_options {
    double scale;              /* of q . k; 0: 1/sqrt(head_dim) */
    double softcap;            /* scores s become softcap * tanh(s / softcap), before masks; 0: they do not */
    const float *alibi_slopes; /* [q_heads], or NULL */
    const float *sink_logits;  /* [q_heads] logits of a key without a value, or NULL */
    int32_t exact;             /* not 0: bfloat16 is computed in float32 where the processor could do without */
    int32_t threads;           /* at most so many; 0: one per processor */
} pagedcache_options;

/* The work of a step, cut into pieces: made once, used in every layer of the same shape. */
typedef struct pagedcache_plan pagedcache_plan;

/* -- a cache: blocks, sequences, steps ----------------------------------------------------------------------- */

/* One thread at a time uses a cache. Version 1 finds no prefixes by content: share them by fork(). */
typedef struct pagedcache pagedcache;

typedef struct pagedcache_config {
    int32_t num_layers;             /* 0: bookkeeping only, the caller owns K and V and makes the copies() of a step */
    int32_t num_blocks;             /* usable ones */
    int32_t block_size;             /* tokens, 1 to 1024; 0: 16 */
    int32_t kv_heads;               /* with head_dim, v_head_dim, dtype and layout: of the cache's own memory; */
    int32_t head_dim;               /*   they and kv_heads are not read where `layers` is given or num_layers is 0 */
    int32_t v_head_dim;             /* 0: as head_dim */
    int32_t dtype;                  /* PAGEDCACHE_FLOAT32, ... */
    int32_t layout;                 /* PAGEDCACHE_NHD or PAGEDCACHE_HND */
    int32_t max_sequences;          /* alive at a time; 0: 256 */
    int32_t max_length;             /* tokens of a sequence; 0: as many as all blocks hold */
    int32_t threads;                /* of calls that do not say how many; 0: one per processor */
    const pagedcache_layer *layers; /* [num_layers] the caller's memory, each of these num_blocks and block_size, all
                                       kept until close(); NULL: the cache maps its own, zero at first */
} pagedcache_config;

typedef struct pagedcache_stats {
    int32_t num_blocks, free_blocks, used_blocks;
    int32_t shared_blocks; /* used by more than one sequence */
    int32_t num_sequences, max_sequences;
    int64_t memory_bytes; /* K, V and scales that the cache has mapped itself */
} pagedcache_stats;

/* One layer's call of attend_step. */
typedef struct pagedcache_tensors {
    const void *q; /* [num_tokens, q_heads, head_dim] */
    const void *k; /* [num_tokens, kv_heads, head_dim], and v; both NULL: they are there already, only attend */
    const void *v; /* [num_tokens, kv_heads, v_head_dim] */
    void *out;     /* [num_tokens, q_heads, v_head_dim] */
    float *lse;    /* [num_tokens, q_heads] natural log of the sum of exponentials; or NULL */
    int32_t q_heads;
    int32_t q_dtype, kv_dtype, out_dtype; /* PAGEDCACHE_FLOAT32, _FLOAT16 or _BFLOAT16 */
    int64_t window;                       /* as in pagedcache_step; layers of a model may differ in it */
    int64_t sink_tokens;
} pagedcache_tensors;

/* -- all functions ----------------------------------------------------------------------------------------------- */

typedef struct pagedcache_api {
    int32_t version; /* of the library: yours or a later one */
    int32_t size;    /* bytes of this struct in the library */

    /* Why the last call of this thread that failed did so. Never NULL; good until the thread's next call. */
    const char *(*error)(void);

    /* The instruction set that runs: "avx2", "neon", ... NULL, and words in error(), where none does. */
    const char *(*isa)(void);

    /* -- attention -- */

    /* Checks a step against a layer and cuts it into pieces for q_heads query heads, a multiple of kv_heads. The plan
     * goes for every layer of the same num_blocks, block_size and kv_heads. block_tables and positions must stay as
     * they are until plan_free; the other arrays are done with. *plan is NULL after an error. */
    int (*plan_make)(const pagedcache_layer *layer, const pagedcache_step *step, int32_t q_heads,
                     pagedcache_plan **plan);
    void (*plan_free)(pagedcache_plan *plan); /* NULL is fine */

    /* Stores n tokens, k [n, kv_heads, head_dim] and v [n, kv_heads, v_head_dim], at n distinct slots. They are rounded
     * to the layer's dtype; with scales all of them must be finite, and heads of more than 1024 numbers be float32. */
    int (*write)(const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype, const int64_t *slots,
                 int64_t n, int32_t threads);

    /* Attention of q [num_tokens, q_heads, head_dim] into out [num_tokens, q_heads, v_head_dim] and, unless it is NULL,
     * lse [num_tokens, q_heads]. K and V of the step's own tokens must have been written. out and lse overlap nothing
     * that is read. options may be NULL. */
    int (*attend)(const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q, int32_t q_dtype, void *out,
                  int32_t out_dtype, float *lse, const pagedcache_options *options);

    /* Copies blocks in each of the layers, scales included. pairs [n][2]: from, to. No block is both, or twice a
     * target. */
    int (*copy_blocks)(const pagedcache_layer *layers, int32_t num_layers, const int32_t *pairs, int64_t n,
                       int32_t threads);

    /* -- a cache -- */

    /* *cache is NULL after an error. Memory is committed as it is touched. */
    int (*open)(const pagedcache_config *config, pagedcache **cache);
    void (*close)(pagedcache *cache); /* frees all of it, an open step included; NULL is fine */

    /* The layer's K and V, for as long as the cache is open; NULL for a number that it does not have. */
    const pagedcache_layer *(*layer)(const pagedcache *cache, int32_t index);

    /* n new sequences of no tokens; their handles, which are never 0, go to sequences [n]. */
    int (*start)(pagedcache *cache, int32_t n, int64_t *sequences);

    /* Opens a step: the n sequences, each named once, get room for counts[i] new tokens, all or none of them. A block
     * that others share and that would be written to is copied first, in every layer. */
    int (*extend)(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts);
    /* What extend would return for the same arguments; it changes nothing. */
    int (*can_extend)(const pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts);

    /* The open step: its arrays, slots included, are good until it is closed. NULL without one. The struct and its
     * arrays are at the same addresses in every step; entries of block_tables past a sequence's own are ids of blocks,
     * 0 included, without meaning. */
    const pagedcache_step *(*step)(const pagedcache *cache);
    /* Copies that the open step needed, [*n][2] from and to. extend has made them, unless num_layers is 0. */
    const int32_t *(*copies)(const pagedcache *cache, int32_t *n);

    /* One layer of the open step: writes k and v to its slots, then attends. The plan is made once for all layers that
     * look through the same window. options may be NULL. */
    int (*attend_step)(pagedcache *cache, int32_t layer, const pagedcache_tensors *tensors,
                       const pagedcache_options *options);

    /* Closes the step: its tokens belong to the sequences, or it never was. */
    int (*commit)(pagedcache *cache);
    int (*abandon)(pagedcache *cache);

    /* A new sequence of the first `at` tokens of another (-1: of all of them), which shares their blocks. */
    int (*fork)(pagedcache *cache, int64_t sequence, int64_t at, int64_t *child);
    /* Takes each sequence, named once, back to its first positions[i] tokens. */
    int (*truncate)(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *positions);
    /* Ends the sequences, each named once. */
    int (*release)(pagedcache *cache, int32_t n, const int64_t *sequences);
    /* Tokens of a sequence, without those of an open step; -1 where the handle is stale. fork, truncate and release,
     * too, may be called while a step is open, for sequences that are not in it. */
    int64_t (*length)(const pagedcache *cache, int64_t sequence);

    void (*stats)(const pagedcache *cache, pagedcache_stats *stats);
    /* Whether the cache's own records agree with each other: for tests, it reads all of them. */
    int (*check)(const pagedcache *cache);
} pagedcache_api;

/* The only symbol of the library. NULL where the library is older than `version`, or `version` is below 1. */
PAGEDCACHE_EXTERN const pagedcache_api *pagedcache_get_api(int32_t version);

#ifdef __cplusplus
}
#endif

#endif
