"""The C interface for ``cimport``: what pagedcache.h declares. Compile with ``-I`` pagedcache.get_include()."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef extern from "pagedcache.h" nogil:
    enum: PAGEDCACHE_API_VERSION
    enum: PAGEDCACHE_OK, PAGEDCACHE_INVALID, PAGEDCACHE_NO_MEMORY, PAGEDCACHE_OUT_OF_BLOCKS
    enum: PAGEDCACHE_OUT_OF_SEQUENCES, PAGEDCACHE_STALE, PAGEDCACHE_STEP_OPEN, PAGEDCACHE_NO_STEP
    enum: PAGEDCACHE_UNSUPPORTED, PAGEDCACHE_BROKEN
    enum: PAGEDCACHE_FLOAT32, PAGEDCACHE_FLOAT16, PAGEDCACHE_BFLOAT16, PAGEDCACHE_INT8, PAGEDCACHE_FLOAT8_E4M3
    enum: PAGEDCACHE_NHD, PAGEDCACHE_HND

    ctypedef struct pagedcache_plan:
        pass

    ctypedef struct pagedcache:
        pass

    ctypedef struct pagedcache_layer:
        void *k
        void *v
        float *k_scales
        float *v_scales
        int32_t num_blocks
        int32_t block_size
        int32_t kv_heads
        int32_t head_dim
        int32_t v_head_dim
        int32_t dtype
        int32_t layout

    ctypedef struct pagedcache_step:
        int32_t num_sequences
        int32_t num_tokens
        int32_t table_width
        int64_t table_stride
        const int32_t *block_tables
        const int32_t *qo_indptr
        const int32_t *kv_lens
        const int32_t *kv_pads
        const int32_t *kv_starts
        const int64_t *positions
        const int64_t *slots
        const uint8_t *mask
        const int64_t *mask_indptr
        int64_t window
        int64_t sink_tokens

    ctypedef struct pagedcache_options:
        double scale
        double softcap
        const float *alibi_slopes
        const float *sink_logits
        int32_t exact
        int32_t threads

    ctypedef struct pagedcache_config:
        int32_t num_layers
        int32_t num_blocks
        int32_t block_size
        int32_t kv_heads
        int32_t head_dim
        int32_t v_head_dim
        int32_t dtype
        int32_t layout
        int32_t max_sequences
        int32_t max_length
        int32_t threads
        const pagedcache_layer *layers

    ctypedef struct pagedcache_stats:
        int32_t num_blocks, free_blocks, used_blocks
        int32_t shared_blocks
        int32_t num_sequences, max_sequences
        int64_t memory_bytes

    ctypedef struct pagedcache_tensors:
        const void *q
        const void *k
        const void *v
        void *out
        float *lse
        int32_t q_heads
        int32_t q_dtype, kv_dtype, out_dtype
        int64_t window
        int64_t sink_tokens

    ctypedef struct pagedcache_api:
        int32_t version
        int32_t size
        const char *(*error)() noexcept nogil
        const char *(*isa)() noexcept nogil
        int (*plan_make)(
            const pagedcache_layer *layer, const pagedcache_step *step, int32_t q_heads, pagedcache_plan **plan
        ) noexcept nogil
        void (*plan_free)(pagedcache_plan *plan) noexcept nogil
        int (*write)(
            const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype, const int64_t *slots,
            int64_t n, int32_t threads
        ) noexcept nogil
        int (*attend)(
            const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q, int32_t q_dtype, void *out,
            int32_t out_dtype, float *lse, const pagedcache_options *options
        ) noexcept nogil
        int (*copy_blocks)(
            const pagedcache_layer *layers, int32_t num_layers, const int32_t *pairs, int64_t n, int32_t threads
        ) noexcept nogil
        int (*open)(const pagedcache_config *config, pagedcache **cache) noexcept nogil
        void (*close)(pagedcache *cache) noexcept nogil
        const pagedcache_layer *(*layer)(const pagedcache *cache, int32_t index) noexcept nogil
        int (*start)(pagedcache *cache, int32_t n, int64_t *sequences) noexcept nogil
        int (*extend)(pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts) noexcept nogil
        int (*can_extend)(
            const pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *counts
        ) noexcept nogil
        const pagedcache_step *(*step)(const pagedcache *cache) noexcept nogil
        const int32_t *(*copies)(const pagedcache *cache, int32_t *n) noexcept nogil
        int (*attend_step)(
            pagedcache *cache, int32_t layer, const pagedcache_tensors *tensors, const pagedcache_options *options
        ) noexcept nogil
        int (*commit)(pagedcache *cache) noexcept nogil
        int (*abandon)(pagedcache *cache) noexcept nogil
        int (*fork)(pagedcache *cache, int64_t sequence, int64_t at, int64_t *child) noexcept nogil
        int (*truncate)(
            pagedcache *cache, int32_t n, const int64_t *sequences, const int32_t *positions
        ) noexcept nogil
        int (*release)(pagedcache *cache, int32_t n, const int64_t *sequences) noexcept nogil
        int64_t (*length)(const pagedcache *cache, int64_t sequence) noexcept nogil
        void (*stats)(const pagedcache *cache, pagedcache_stats *stats) noexcept nogil
        int (*check)(const pagedcache *cache) noexcept nogil

    const pagedcache_api *pagedcache_get_api(int32_t version) noexcept


cdef extern from "pagedcache_python.h":
    const pagedcache_api *pagedcache_import() except NULL    # with the GIL, before anything else
