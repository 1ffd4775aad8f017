"""The C of csrc/, as Cython sees it."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef extern from "kernels.h" nogil:
    enum: PC_F32, PC_F16, PC_BF16, PC_I8, PC_E4M3

    struct pc_plane:
        char *data
        float *scales
        int64_t block, token, head
        int64_t scale_block, scale_token, scale_head
        int32_t width
        int32_t dtype

    struct pc_rows:
        char *data
        int32_t heads, width, dtype

    struct pc_rule:
        float scale
        float cap
        const float *slopes
        const float *sink_logits
        int32_t native

    struct pc_job:
        pc_plane k, v
        pc_rows q, out
        float *lse
        pc_rule rule
        int32_t block_size, kv_heads, group

    ctypedef void (*pc_convert)(int32_t, const void *, int32_t, void *, int64_t) noexcept nogil
    ctypedef int32_t (*pc_finite)(int32_t, const void *, int64_t) noexcept nogil

    struct pc_kernels:
        const char *name
        int32_t has_native
        pc_convert convert
        pc_finite finite

    const pc_kernels *pc_kernels_at(int i) noexcept
    int pc_cpu_supports(const char *name) noexcept


cdef extern from "plan.h" nogil:
    enum: PC_OK, PC_INVALID, PC_NO_MEMORY

    struct pc_step:
        int32_t num_sequences, num_tokens, block_size, num_blocks
        int32_t width
        int64_t stride
        const int32_t *block_tables
        const int32_t *qo_indptr
        const int32_t *kv_lens
        const int32_t *kv_pads
        const int32_t *kv_starts
        const int64_t *positions
        const uint8_t *mask
        const int64_t *mask_indptr
        const int32_t *shared
        int32_t num_shared
        int64_t window
        int64_t sink_tokens

    struct pc_plan:
        int32_t num_items, num_tokens

    int pc_plan_make(pc_plan *plan, const pc_step *step, int32_t kv_heads, int32_t group) noexcept
    void pc_plan_free(pc_plan *plan) noexcept


cdef extern from "attend.h" nogil:
    int pc_attend(const pc_kernels *kernels, pc_job *job, const pc_plan *plan, int32_t threads) noexcept


cdef extern from "store.h" nogil:
    enum: PC_WIDEST

    void pc_store(
        const pc_kernels *kernels, const pc_plane *plane, const pc_rows *src, int32_t block_size, const int64_t *slots,
        int64_t n, int32_t threads
    ) noexcept
    void pc_copy(
        const char *src, int64_t src_stride, const int64_t *from_, char *dst, int64_t dst_stride, const int64_t *to,
        int64_t bytes, int64_t n, int32_t threads
    ) noexcept


cdef class Layer:
    cdef pc_plane k, v
    cdef readonly int32_t block_size    # tokens
    cdef readonly int32_t num_blocks    # usable ones
    cdef readonly int32_t kv_heads
    cdef tuple arrays                   # what the pointers point into
    cdef tuple key                      # under which a step's memo has the plan of this layer's group
    cdef double scale                   # of attend, where none is given


cdef class Plan:
    cdef pc_plan c
    cdef tuple arrays                   # tables that the plan points into
    cdef int32_t block_size, num_blocks, kv_heads, q_group      # what it was made for
    cdef int64_t window, sink_tokens    # tokens; INT32_MAX: no window
    cdef object slots                   # of the new tokens, once they were checked; int64 [tokens]

    cdef bint c_fits(self, Layer layer, int64_t tokens, int32_t q_group, int64_t window, int64_t sink_tokens) noexcept
