from libc.stdint cimport int32_t


cdef struct RowKeys:        # of one prompt; shared by its forks, never changed
    int32_t users           # rows and RowKeysHolders that point here
    int32_t border          # number of the namespace, 0 for none
    int32_t settled         # a sequence cut before this position is no longer what the keys say
    int32_t count
    int32_t *blocks         # [count] logical blocks in which something begins, ascending
    int32_t *keys           # [count] number of what begins there


cdef inline int32_t key_at(const RowKeys *keys, int32_t *cursor, int32_t block) noexcept nogil:
    """Key of a logical block, 0 for none; `cursor` begins at 0 and blocks are asked for in ascending order."""
    if keys == NULL:
        return 0
    while cursor[0] < keys.count and keys.blocks[cursor[0]] < block:
        cursor[0] += 1
    return keys.keys[cursor[0]] if cursor[0] < keys.count and keys.blocks[cursor[0]] == block else 0


cdef class KeyTable:
    cdef dict numbers       # framed bytes -> number
    cdef list entries       # number -> (framed bytes, namespace, secret), or None where vacant
    cdef list vacant        # numbers
    cdef int32_t *users     # [room] index nodes, rows' keys, events and other numbers that refer to the number
    cdef int32_t *borders   # [room] number of the namespace that a number in use is in, 0 for none
    cdef int32_t room
    cdef int32_t num_unused  # numbers that nothing refers to any more, until the next sweep

    cdef int32_t c_number(self, bytes framed, object namespace, object secret) except -1
    cdef int c_grow(self) except -1
    cdef int c_sweep(self) except -1
    cdef int32_t c_border(self, bytes namespace, object secret) except -1
    cdef void c_hold(self, int32_t key) noexcept nogil
    cdef void c_drop(self, int32_t key) noexcept nogil
    cdef RowKeys *c_share(self, RowKeys *keys) noexcept nogil
    cdef void c_leave(self, RowKeys *keys) noexcept nogil


cdef class RowKeysHolder:
    cdef KeyTable table
    cdef RowKeys *keys
