from libc.stdint cimport int32_t, int64_t

from pagedcache.core.commit_table cimport CommitTable
from pagedcache.core.key_table cimport RowKeys


cdef struct Prompt:
    const int32_t *tokens   # [length]
    int64_t length
    int64_t pad             # leading positions that are never visible
    int64_t reserve         # positions to allot beyond
    const RowKeys *keys     # NULL: none
    int level               # priority of its blocks


cdef list key_starts(namespace, keys, int32_t block_size, list prompts)


cdef class PromptTable(CommitTable):
    cdef int64_t query_tokens   # prompt tokens of all admitted prompts
    cdef int64_t hit_tokens     # of these, found in the prefix cache

    cdef list c_holders(self, list starts, namespace)
    cdef int32_t c_idle_hits(self, const int32_t *table, int32_t hits) noexcept nogil
    cdef void c_pin_hits(self, int32_t row, int32_t hits) noexcept nogil
    cdef int32_t c_admit(self, const Prompt *prompt, int32_t *status) noexcept nogil
