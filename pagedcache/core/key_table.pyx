"""What content depends on besides its tokens: numbers for namespaces, adapters, salts, images.

``pagedcache.keys`` frames whatever begins within one block into bytes; here equal bytes get the same small
number, which index nodes and rows carry and compare. Comparing numbers is comparing the bytes themselves,
so that no collision of hashes can join what differs. A number lives while anything refers to it.

    RowKeys   [ blocks: 0  17 ]     of one prompt: something begins in blocks 0 (its namespace) and 17 (an image)
              [ keys:   3   8 ]

Number 0 says that nothing begins. A namespace has a number of its own, which all numbers in it refer to; so it has one
secret at a time, whatever else begins in the first block of its prompts.
"""

cimport cython
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset


cdef class KeyTable:
    """Numbers of framed keys, with their users counted; belongs to one SequenceTable."""

    def __cinit__(self):
        self.numbers = {}
        self.entries = [None]
        self.vacant = []
        self.room = 16
        self.users = <int32_t *>calloc(self.room, sizeof(int32_t))
        self.borders = <int32_t *>calloc(self.room, sizeof(int32_t))
        if not self.users or not self.borders:
            raise MemoryError("no memory for a table of keys")

    def __dealloc__(self):
        free(self.users)
        free(self.borders)

    cdef int32_t c_number(self, bytes framed, object namespace, object secret) except -1:
        """The number of these bytes, a new one if need be. It may be swept as long as nobody holds it."""
        cdef int32_t number
        cdef tuple entry = (framed, namespace, secret)  # before looking: this may run a finalizer that numbers keys
        known = self.numbers.get(framed)
        if known is not None:
            if self.users[<int32_t>known] == 0:
                self.entries[known] = entry
            return known
        if 2 * self.num_unused > len(self.numbers) + 16:
            self.c_sweep()
        if self.vacant:
            number = self.vacant.pop()
        else:
            number = <int32_t>len(self.entries)
            if number == self.room:
                self.c_grow()
            self.entries.append(None)
        self.entries[number] = entry
        self.numbers[framed] = number
        self.borders[number] = 0
        self.num_unused += 1
        return number

    cdef int c_grow(self) except -1:
        """Room for twice as many numbers."""
        cdef int32_t *users = <int32_t *>realloc(self.users, 2 * self.room * sizeof(int32_t))
        cdef int32_t *borders
        if users:
            self.users = users
            borders = <int32_t *>realloc(self.borders, 2 * self.room * sizeof(int32_t))
            if borders:
                self.borders = borders
                memset(users + self.room, 0, self.room * sizeof(int32_t))
                self.room *= 2
                return 0
        raise MemoryError(f"no memory for more than {self.room} keys")

    cdef int32_t c_border(self, bytes namespace, object secret) except -1:
        """The number of the namespace itself, held for the caller; raises where it is in use with another secret."""
        cdef int32_t number = self.c_number(b"\0\0" + namespace, namespace, secret)     # no frame begins so
        if self.entries[number][2] != secret:
            raise ValueError(
                f"namespace {namespace!r} is in use with another secret (or none): give each secret a name of its "
                "own, or invalidate the namespace and release its sequences first"
            )
        self.c_hold(number)
        return number

    cdef int c_sweep(self) except -1:
        """Forget the numbers that nothing refers to."""
        cdef int32_t number
        for number in range(1, len(self.entries)):
            if self.entries[number] is not None and self.users[number] == 0:
                del self.numbers[self.entries[number][0]]
                self.entries[number] = None
                self.vacant.append(number)
                self.num_unused -= 1
        return 0

    cdef void c_hold(self, int32_t key) noexcept nogil:
        if key > 0:
            if self.users[key] == 0:
                self.num_unused -= 1
                self.c_hold(self.borders[key])
            self.users[key] += 1

    cdef void c_drop(self, int32_t key) noexcept nogil:
        if key > 0:
            self.users[key] -= 1
            if self.users[key] == 0:
                self.num_unused += 1
                self.c_drop(self.borders[key])

    cdef RowKeys *c_share(self, RowKeys *keys) noexcept nogil:
        """One more user; the same pointer, which may be NULL."""
        if keys != NULL:
            keys.users += 1
        return keys

    cdef void c_leave(self, RowKeys *keys) noexcept nogil:
        """One user less; the last one takes the memory along."""
        cdef int32_t k
        if keys == NULL:
            return
        keys.users -= 1
        if keys.users == 0:
            for k in range(keys.count):
                self.c_drop(keys.keys[k])
            self.c_drop(keys.border)
            free(keys)


@cython.no_gc_clear    # __dealloc__ needs the table
cdef class RowKeysHolder:
    """A prompt's RowKeys on the way to a row; needs the pool's critical section, as the table does.

    Parameters
    ----------
    starts : list of BlockKey
        From ``pagedcache.keys.block_keys``.
    """

    def __cinit__(self, KeyTable table not None, list starts, namespace, secret):
        cdef int32_t k, n = <int32_t>len(starts)
        self.table = table
        self.keys = <RowKeys *>malloc(sizeof(RowKeys) + 2 * n * sizeof(int32_t))
        if not self.keys:
            raise MemoryError(f"no memory for {n} keys")
        self.keys.users = 1
        self.keys.count = 0
        self.keys.border = 0
        self.keys.settled = 0
        self.keys.blocks = <int32_t *>(self.keys + 1)
        self.keys.keys = self.keys.blocks + n
        if namespace != b"":
            self.keys.border = table.c_border(namespace, secret)
        for k in range(n):
            block, framed, _, stop = starts[k]
            in_border = block == 0 and namespace != b""     # only such bytes name the namespace
            self.keys.keys[k] = table.c_number(framed, namespace if in_border else b"", secret if in_border else None)
            if table.users[self.keys.keys[k]] == 0:
                table.borders[self.keys.keys[k]] = self.keys.border if in_border else 0
            table.c_hold(self.keys.keys[k])
            self.keys.count = k + 1
            self.keys.blocks[k] = block
            self.keys.settled = max(self.keys.settled, stop)

    def __dealloc__(self):
        if self.keys != NULL:
            self.table.c_leave(self.keys)
