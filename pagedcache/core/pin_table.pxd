from libc.stdint cimport int32_t

from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.prompt_table cimport PromptTable


cdef class Pin:
    cdef BlockPool pool
    cdef int32_t *blocks        # [count] each with one reference
    cdef int32_t count
    cdef readonly bytes namespace

    cdef int32_t c_let_go(self) noexcept nogil


cdef class PinTable(PromptTable):
    cdef dict pins                      # name -> Pin
    cdef readonly int32_t max_pinned    # most blocks that all pins together hold
    cdef readonly int32_t num_pinned

    cdef int32_t c_list_companions(self, int32_t *blocks, int32_t hits) noexcept nogil
    cdef int c_forget_pins(self, namespace, bint all_of_them) except -1
    cdef int32_t c_unpin(self, str name) except -1
    cdef bint c_continues(self, int32_t block, int32_t child) noexcept nogil
    cdef void c_demote(self, int32_t block) noexcept nogil
