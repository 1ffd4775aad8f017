"""The lists of a GPU's step; see _plan.pyx."""

from libc.stdint cimport int32_t


ctypedef struct Item:  # as in kernels/params.cuh
    int32_t sequence, token, rows, row, place, begin, end, part, pad, start

ctypedef struct Merge:
    int32_t token, rows, row, part, count, units, shared_part, shared_count, shared_units, shared_row


cdef class Plan:
    cdef readonly object few, many64, many128, merges
    cdef readonly int parts
    cdef readonly bint plain
