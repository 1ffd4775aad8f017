from libc.stdint cimport int32_t, uint8_t

from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.prompt_table cimport PromptTable


cdef class Pin:
    cdef BlockPool pool
    cdef int32_t *blocks        # [count] each with one reference
    cdef int32_t count
    cdef readonly bytes namespace

    cdef int32_t c_let_go(self) noexcept nogil


cdef class CacheTable(PromptTable):
    cdef dict pins                      # name -> Pin
    cdef readonly int32_t max_pinned    # most blocks that all pins together hold
    cdef readonly int32_t num_pinned
    cdef object namer                   # portable names for events, or None
    cdef bint tell_tokens               # whether events carry token ids
    cdef bint is_naming                 # an events() call is under way

    cdef int32_t c_list_companions(self, int32_t *blocks, int32_t hits) noexcept nogil
    cdef int32_t c_forget(self, const uint8_t *doomed) noexcept nogil
    cdef int c_forget_pins(self, namespace, bint all_of_them) except -1
    cdef int32_t c_unpin(self, str name) except -1
    cdef object c_namespace(self, int32_t key)
    cdef int c_silence(self, int32_t row) except -1
    cdef int c_mark_path(self, int32_t node, int32_t first, int32_t[::1] root) except -1
    cdef int32_t c_remove_leaf(self, int32_t node) noexcept nogil
    cdef int c_log_published(self) except -1
