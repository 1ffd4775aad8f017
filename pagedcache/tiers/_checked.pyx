"""Records in files, without the GIL: writing that makes checksums, and reading that verifies them.

A record lies in a file as one stretch, and in memory as pieces: a row each of K, V and their scales. Records of several
layers may follow each other in a file, as a block; they are read and checked, or checked and written, few at a time, so
that they are in the processor's caches still.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

import os

import numpy as np

cdef extern from "crc32c.h" nogil:
    void pc_crc_init(int allowed)
    uint32_t pc_crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from "vectored.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec *iov, int iovcnt, int64_t offset)
    ssize_t pwritev(int fd, const iovec *iov, int iovcnt, int64_t offset)

cdef enum:
    MAX_PARTS = 256     # of one call that writes; systems take 1024
    WARM = 128 * 1024   # bytes of records to take at a time
    PAGE = 4096

pc_crc_init(2)


cdef int pieces_of(arrays, Piece *pieces, bint writing) except -1:
    """The rows of 2-D arrays of bytes; how many arrays there are. The caller keeps them."""
    cdef int n = 0
    cdef const uint8_t[:, :] seen
    if not 0 < len(arrays) <= MAX_PIECES:
        raise ValueError(f"{len(arrays)} pieces to a record; 1 to {MAX_PIECES} can be")
    for array in arrays:
        if writing and not array.flags.writeable:
            raise ValueError("an array to read into is read-only")
        seen = array
        if seen.shape[1] > 1 and seen.strides[1] != 1:
            raise ValueError("rows of an array of bytes must be compact")
        pieces[n].data = <uint8_t *>&seen[0, 0] if array.size else NULL
        pieces[n].stride = seen.strides[0]
        pieces[n].rows = seen.shape[0]
        pieces[n].width = seen.shape[1]
        n += 1
    return n


cdef int require_rows(const int64_t[::1] rows, const Piece *pieces, int n) except -1:
    cdef Py_ssize_t i
    cdef int j
    for i in range(rows.shape[0]):
        for j in range(n):
            if not 0 <= rows[i] < pieces[j].rows:
                raise ValueError(f"row {rows[i]} is none of the {pieces[j].rows} of array {j}")
    return 0


cdef inline uint32_t crc_of(const Piece *pieces, int n, int64_t row) noexcept nogil:
    cdef uint32_t crc = 0
    cdef int j
    for j in range(n):
        crc = pc_crc32c(crc, pieces[j].data + row * pieces[j].stride, pieces[j].width)
    return crc


def crc32c(data, uint32_t crc=0):
    """CRC-32C of bytes, going on from the CRC of what stands before them.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"56789", crc32c(b"1234")) == crc32c(b"123456789")
    True
    """
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef size_t n = view.shape[0]
    if n == 0:
        return crc
    with nogil:
        crc = pc_crc32c(crc, &view[0], n)
    return crc


def checksums(arrays, rows):
    """CRC-32C of records whose pieces are rows of arrays.

    Parameters
    ----------
    arrays : sequence of uint8 [rows, width]
        The pieces in order, as they would follow each other in a file.
    rows : int64 [n]
        Which rows.

    Returns
    -------
    uint32 [n]

    Examples
    --------
    >>> parts = np.frombuffer(b"12345678..6789", np.uint8)
    >>> checksums([parts[None, :5], parts[None, 10:]], [0]).tolist() == [crc32c(b"123456789")]
    True
    """
    cdef Piece pieces[MAX_PIECES]
    cdef const int64_t[::1] at = np.ascontiguousarray(rows, np.int64)
    cdef int n = pieces_of(arrays, pieces, False)
    cdef Py_ssize_t i
    cdef uint32_t[::1] crcs
    require_rows(at, pieces, n)
    found = np.empty(at.shape[0], np.uint32)
    crcs = found
    with nogil:
        for i in range(at.shape[0]):
            crcs[i] = crc_of(pieces, n, at[i])
    return found


def read_checked(int fd, offsets, arrays, rows, expected):
    """Read records from a file into rows of arrays, and check them; stops at the first that is not right.

    Parameters
    ----------
    fd : int
        Of a file open for reading.
    offsets : int64 [n]
        Where in the file each record begins.
    arrays : sequence of uint8 [rows, width]
        A record's bytes go to a row of the first, then of the second, ...
    rows : int64 [n]
        Which rows.
    expected : uint32 [n]
        The records' CRC-32C.

    Returns
    -------
    int
        How many are right; what the others' rows hold is undefined. A file that ends too early counts as not right.

    Raises
    ------
    OSError
        The file could not be read.
    """
    return read_blocks(fd, offsets, [arrays], rows, np.reshape(expected, (-1, 1)))


def read_blocks(int fd, offsets, layers, rows, expected):
    """As `read_checked`, for blocks whose records of several layers follow each other in the file.

    Parameters
    ----------
    fd : int
        Of a file open for reading.
    offsets : int64 [n]
        Where in the file the first of a block's records begins.
    layers : sequence of sequences of uint8 [rows, width]
        Of each layer the arrays whose rows, one after the other, are a record.
    rows : int64 [n]
        Which rows.
    expected : uint32 [n, layers]
        The records' CRC-32C.

    Returns
    -------
    int
        How many leading blocks are right, all their records.

    Raises
    ------
    OSError
        The file could not be read.
    """
    layers = [tuple(arrays) for arrays in layers]  # held until the end, whatever kind of sequence it was
    cdef const int64_t[::1] at = np.ascontiguousarray(rows, np.int64)
    cdef const int64_t[::1] begins = np.ascontiguousarray(offsets, np.int64)
    cdef const uint32_t[:, ::1] crcs = np.ascontiguousarray(expected, np.uint32)
    cdef int count = len(layers), error = 0
    cdef Py_ssize_t i, right = 0
    cdef Piece *pieces
    cdef int *numbers
    if not begins.shape[0] == crcs.shape[0] == at.shape[0] or crcs.shape[1] != count:
        raise ValueError(
            f"{begins.shape[0]} offsets, {at.shape[0]} rows and {crcs.shape[0]} checksums of {crcs.shape[1]} layers; "
            f"arrays of {count} layers"
        )
    if count == 0:
        return at.shape[0]
    pieces = <Piece *>malloc(count * MAX_PIECES * sizeof(Piece))
    numbers = <int *>malloc(count * sizeof(int))
    try:
        gather(layers, at, pieces, numbers, True)
        with nogil:
            for i in range(at.shape[0]):
                error = read_block(fd, begins[i], pieces, numbers, count, at[i], &crcs[i, 0])
                if error != 0:
                    break
                right += 1
    finally:
        free(pieces)
        free(numbers)
    if error > 0:
        raise OSError(error, os.strerror(error))
    return right


cdef int gather(layers, const int64_t[::1] rows, Piece *pieces, int *numbers, bint writing) except -1:
    """The pieces of all layers, MAX_PIECES places for each, and how many it has."""
    cdef int layer
    if pieces == NULL or numbers == NULL:
        raise MemoryError
    for layer in range(len(layers)):
        numbers[layer] = pieces_of(layers[layer], pieces + layer * MAX_PIECES, writing)
        require_rows(rows, pieces + layer * MAX_PIECES, numbers[layer])
    return 0


cdef int64_t add_parts(iovec *parts, int *n, const Piece *pieces, int number, int64_t row) noexcept nogil:
    """Add a record's pieces to what a call is to move; their bytes."""
    cdef int64_t size = 0
    cdef int j
    for j in range(number):
        parts[n[0]].iov_base = pieces[j].data + row * pieces[j].stride
        parts[n[0]].iov_len = pieces[j].width
        size += pieces[j].width
        n[0] += 1
    return size


cdef int read_block(
    int fd, int64_t offset, const Piece *pieces, const int *numbers, int layers, int64_t row, const uint32_t *crcs
) noexcept nogil:
    """0, the errno of what went wrong, or -1 where the file ends too early or a checksum is wrong."""
    cdef iovec[MAX_PARTS] parts
    cdef int64_t waiting
    cdef int layer = 0, first, n, error
    while layer < layers:
        first = layer
        waiting = n = 0
        while layer < layers and waiting < WARM and n <= MAX_PARTS - MAX_PIECES:
            waiting += add_parts(parts, &n, pieces + layer * MAX_PIECES, numbers[layer], row)
            layer += 1
        error = move_parts(fd, parts, n, offset, True)
        if error != 0:
            return error
        offset += waiting
        for first in range(first, layer):
            if crc_of(pieces + first * MAX_PIECES, numbers[first], row) != crcs[first]:
                return -1
    return 0


def write_checked(int fd, offsets, layers, rows, int pad=0):
    """Write blocks to a file, each block's records of all layers as one stretch, and return their checksums.

    Parameters
    ----------
    fd : int
        Of a file open for writing.
    offsets : int64 [n]
        Where in the file each block begins.
    layers : sequence of sequences of uint8 [rows, width]
        Of each layer the arrays whose rows, one after the other, are a record.
    rows : int64 [n]
        Which rows.
    pad : int
        Zero bytes to write behind each block, up to 4096.

    Returns
    -------
    uint32 [n, layers]
        CRC-32C of each record.

    Raises
    ------
    OSError
        The file could not be written.

    Examples
    --------
    >>> import tempfile
    >>> keys, values = np.ones((1, 4), np.uint8), np.zeros((1, 2), np.uint8)
    >>> with tempfile.TemporaryFile() as file:
    ...     crcs = write_checked(file.fileno(), [0], [[keys, values], [values]], [0], pad=3)
    ...     file.read().hex(), crcs.tolist() == [[crc32c(bytes([1, 1, 1, 1, 0, 0])), crc32c(bytes(2))]]
    ('0101010100000000000000', True)
    """
    layers = [tuple(arrays) for arrays in layers]  # held until the end, whatever kind of sequence it was
    cdef const int64_t[::1] at = np.ascontiguousarray(rows, np.int64)
    cdef const int64_t[::1] begins = np.ascontiguousarray(offsets, np.int64)
    cdef int count = len(layers), error = 0
    cdef Py_ssize_t i
    cdef uint32_t[:, ::1] crcs
    cdef Piece *pieces
    cdef int *numbers
    if begins.shape[0] != at.shape[0]:
        raise ValueError(f"{begins.shape[0]} offsets and {at.shape[0]} rows")
    if not 0 <= pad <= PAGE:
        raise ValueError(f"pad is {pad}; it must be at least 0 and at most {PAGE}")
    found = np.empty((at.shape[0], count), np.uint32)
    crcs = found
    pieces = <Piece *>malloc((count * MAX_PIECES + 1) * sizeof(Piece))
    numbers = <int *>malloc((count + 1) * sizeof(int))
    try:
        gather(layers, at, pieces, numbers, False)
        with nogil:
            for i in range(at.shape[0]):
                error = write_block(fd, begins[i], pieces, numbers, count, at[i], pad, &crcs[i, 0])
                if error != 0:
                    break
    finally:
        free(pieces)
        free(numbers)
    if error != 0:
        raise OSError(error, os.strerror(error))
    return found


cdef uint8_t[PAGE] ZEROS


cdef int write_block(
    int fd, int64_t offset, const Piece *pieces, const int *numbers, int layers, int64_t row, int pad, uint32_t *crcs
) noexcept nogil:
    """0, or the errno of what went wrong."""
    cdef iovec[MAX_PARTS] parts
    cdef int64_t waiting = 0
    cdef int layer, n = 0, error
    for layer in range(layers):
        crcs[layer] = crc_of(pieces + layer * MAX_PIECES, numbers[layer], row)
        waiting += add_parts(parts, &n, pieces + layer * MAX_PIECES, numbers[layer], row)
        if waiting >= WARM or n >= MAX_PARTS - MAX_PIECES:
            error = move_parts(fd, parts, n, offset, False)
            if error != 0:
                return error
            offset += waiting
            waiting = n = 0
    parts[n].iov_base = ZEROS
    parts[n].iov_len = pad
    return move_parts(fd, parts, n + 1, offset, False)


cdef int move_parts(int fd, iovec *parts, int n, int64_t offset, bint reading) noexcept nogil:
    """0, the errno of what went wrong, or -1 where the file ends before all is read; uses `parts` up."""
    cdef int j, first = 0
    cdef ssize_t got
    while True:
        while first < n and parts[first].iov_len == 0:
            first += 1
        if first == n:
            return 0
        got = preadv(fd, parts + first, n - first, offset) if reading else pwritev(fd, parts + first, n - first, offset)
        if got < 0:
            if errno == EINTR:
                continue
            return errno
        if got == 0 and reading:
            return -1
        offset += got
        for j in range(first, n):
            if <size_t>got < parts[j].iov_len:
                parts[j].iov_base = <uint8_t *>parts[j].iov_base + got
                parts[j].iov_len -= got
                break
            got -= parts[j].iov_len
            parts[j].iov_len = 0


def _use_instruction(bint allowed, bint folding=True):
    """Whether CRC-32C is computed by the processor's instructions, where there are such; for tests."""
    pc_crc_init(allowed + (allowed and folding))
