from libc.stdint cimport int32_t, int64_t

from pagedcache.core.hit_table cimport HitTable, Prompt


cdef list key_starts(namespace, keys, int32_t block_size, list prompts)


cdef class PromptTable(HitTable):
    cdef int64_t query_tokens   # prompt tokens of all admitted prompts
    cdef int64_t hit_tokens     # of these, found in the prefix cache

    cdef list c_holders(self, list starts, namespace)
    cdef int32_t c_admit(self, const Prompt *prompt, int32_t *status) noexcept nogil
