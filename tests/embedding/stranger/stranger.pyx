# cython: language_level=3, boundscheck=False, wraparound=False
"""A third party's module: takes and gives back blocks with no Python object on the way."""

cimport cython
from libc.stdint cimport int32_t

from pagedcache.core cimport BlockPool


@cython.critical_section
def take_and_give_back(BlockPool pool, int32_t count):
    """Return the blocks usable before, and while `count` (at most 64) blocks are taken, and those blocks."""
    cdef int32_t[64] taken
    cdef int32_t before, meanwhile
    if not 0 <= count <= min(64, pool.num_free):
        raise ValueError("count")
    with nogil:
        before = pool.c_usable()
        pool.c_make_vacant(count)
        pool.c_take(0, count, taken)
        meanwhile = pool.c_usable()
        pool.c_drop(taken, count)
    return before, meanwhile, [taken[i] for i in range(count)]


def num_blocks(BlockPool pool):
    """Read a public field at C speed."""
    return pool.num_blocks
