"""Records copied from memory to memory, piece by piece, without the GIL."""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from pagedcache.tiers._checked cimport MAX_PIECES, Piece, pieces_of, require_rows

import numpy as np


def copy_records(sources, rows, targets, to):
    """Copy records between arrays that cut them into pieces in the same way.

    Parameters
    ----------
    sources : sequence of uint8 [rows, width]
    rows : int64 [n]
    targets : sequence of uint8 [rows, width]
        Apart from the sources.
    to : int64 [n]
        Rows of the targets.
    """
    cdef Piece source[MAX_PIECES]
    cdef Piece target[MAX_PIECES]
    cdef const int64_t[::1] at = np.ascontiguousarray(rows, np.int64)
    cdef const int64_t[::1] put = np.ascontiguousarray(to, np.int64)
    cdef int j, n = pieces_of(sources, source, False)
    cdef Py_ssize_t i
    if pieces_of(targets, target, True) != n or at.shape[0] != put.shape[0]:
        raise ValueError(f"{n} pieces of {at.shape[0]} records to {len(targets)} pieces of {put.shape[0]}")
    for j in range(n):
        if source[j].width != target[j].width:
            raise ValueError(f"piece {j} has {source[j].width} bytes, and {target[j].width} where it is to go")
    require_rows(at, source, n)
    require_rows(put, target, n)
    with nogil:
        for j in range(n):
            for i in range(at.shape[0]):
                memcpy(
                    target[j].data + put[i] * target[j].stride, source[j].data + at[i] * source[j].stride,
                    source[j].width
                )
