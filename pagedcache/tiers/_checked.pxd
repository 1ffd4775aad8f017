from libc.stdint cimport int64_t, uint8_t

cdef enum:
    MAX_PIECES = 8      # of a record: K, V, K scales, V scales


cdef struct Piece:
    uint8_t *data       # row 0
    int64_t stride      # bytes from row to row
    int64_t rows
    int64_t width       # bytes of a row that count


cdef int pieces_of(arrays, Piece *pieces, bint writing) except -1
cdef int require_rows(const int64_t[::1] rows, const Piece *pieces, int n) except -1
