from libc.stdint cimport int32_t, int64_t

from pagedcache.core.commit_table cimport CommitTable
from pagedcache.core.key_table cimport RowKeys
from pagedcache.core.prefix_index cimport Head


cdef struct Prompt:
    const int32_t *tokens   # [length]
    int64_t length
    int64_t pad             # leading positions that are never visible
    int64_t reserve         # positions to allot beyond
    const RowKeys *keys     # NULL: none
    int level               # priority of its blocks


cdef struct Hit:            # what a prompt shares
    int32_t blocks          # whole ones
    int32_t node            # of the last of them, or NO_NODE
    Head head               # of one block more
    int32_t idle            # of all these blocks, such as nobody holds


cdef list key_starts(namespace, keys, int32_t block_size, list prompts)


cdef class PromptTable(CommitTable):
    cdef int64_t query_tokens   # prompt tokens of all admitted prompts
    cdef int64_t hit_tokens     # of these, found in the prefix cache

    cdef list c_holders(self, list starts, namespace)
    cdef Hit c_hit(self, const Prompt *prompt, int32_t total, int32_t *blocks) noexcept nogil
    cdef void c_share_head(self, const Prompt *prompt, int32_t total, Hit *hit) noexcept nogil
    cdef int32_t c_serve(self, const int32_t *table, int32_t hits, int32_t total) noexcept nogil
    cdef int32_t c_count_hits(self, const int32_t *table, int32_t hits, int32_t *idle) noexcept nogil
    cdef void c_pin_hits(self, int32_t row, int32_t hits) noexcept nogil
    cdef int32_t c_admit(self, const Prompt *prompt, int32_t *status) noexcept nogil
