cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.group_table cimport GroupTable


cdef class StateTable(GroupTable):
    cdef readonly int32_t num_state_blocks  # of one copy of a state, in all state groups; 0: there are none
    cdef tuple state_groups     # of these, each group's
    cdef int32_t *states        # [max_sequences, num_buffers + 2, num_state_blocks] see state_table.pyx
    cdef int32_t *num_spare     # [max_sequences] copies that the row has beside it

    cdef size_t c_state_entries(self) noexcept nogil
    cdef int64_t c_state_target(self, int32_t total) noexcept nogil
    cdef void c_append_states(self, int32_t row, int32_t total) noexcept nogil
    cdef void c_take_state(self, int32_t row) noexcept nogil
    cdef void c_put_aside(self, int32_t row, const int32_t *blocks) noexcept nogil
    cdef int32_t c_drop_states(self, int32_t row, bint with_current) noexcept nogil
    cdef void c_hold_state(self, const int32_t *blocks) noexcept nogil

    @cython.final
    cdef inline int32_t *c_state(self, int32_t row) noexcept nogil:
        """The blocks of the row's state where it ends, open steps included; zeros before its first token."""
        return self.states + <size_t>row * (self.num_buffers + 2) * self.num_state_blocks
