cimport cython
from libc.stdint cimport int32_t, int64_t

from pagedcache.core.row_table cimport RowTable


cdef class GroupTable(RowTable):
    cdef int32_t c_lowest_seen(self, int32_t side, int32_t position, int32_t pad) noexcept nogil
    cdef int32_t c_next_slide(self, int32_t side, int32_t first, int32_t position, int32_t pad) noexcept nogil
    cdef int32_t c_needed_from(self, int32_t side, int32_t blocks) noexcept nogil
    cdef bint c_is_wanted(self, int32_t side, int32_t hits, int32_t entry) noexcept nogil
    cdef int32_t c_side_hits(self, int32_t side, const int32_t *table, int32_t hits) noexcept nogil
    cdef int32_t c_common_hits(self, const int32_t *table, int32_t hits) noexcept nogil
    cdef int32_t c_side_target(self, int32_t side, int32_t total, int32_t hits, int32_t pad) noexcept nogil
    cdef int64_t c_blocks_of_row(self, int32_t total, int32_t pad) noexcept nogil
    cdef void c_append_side(self, int32_t side, int32_t row, int32_t num_blocks) noexcept nogil
    cdef int32_t c_drop_side(self, int32_t side, int32_t row, int32_t keep) noexcept nogil
    cdef void c_share_side(
        self, int32_t side, const int32_t *table, int32_t blocks, int32_t first, int32_t pad
    ) noexcept nogil
    cdef void c_spoil_side(self, int32_t side, int32_t row, int32_t entry) noexcept nogil
    cdef int32_t c_lowest_cut(self, int32_t row) noexcept nogil
    cdef int32_t c_side_start(self, int32_t side, int32_t row) noexcept nogil
    cdef int32_t c_chunk_start(self, int32_t side, int32_t row, int32_t position) noexcept nogil

    @cython.final
    cdef inline bint c_is_held(self, int32_t side, int32_t row, int32_t entry) noexcept nogil:
        """Whether an entry below `filled` is a block, not released."""
        return entry >= self.sides[side].first[row] or entry < self.c_sinks(side, self.rows[row].pad)

    @cython.final
    cdef inline int32_t c_sinks(self, int32_t side, int32_t pad) noexcept nogil:
        """Leading blocks that are never released."""
        cdef int32_t tokens = self.sides[side].sink_tokens
        return 0 if tokens == 0 else self.c_blocks_for(<int32_t>min(<int64_t>self.max_length, <int64_t>pad + tokens))
