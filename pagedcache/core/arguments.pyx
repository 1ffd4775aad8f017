"""What callers hand in: checked, converted where it must be, and passed straight through where not."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t

import numpy as np

from pagedcache.core._convert import int32_array, int64_array


def bounded_int(value, str name, int64_t low, int64_t high):
    """`value` as an int within [low, high]; the error names all three."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be {low} to {high}")
    return int(value)


cdef const int64_t[::1] handles_of(object ids):
    """int64 [n]; an int64 array goes straight through, anything else is converted with checks."""
    cdef const int64_t[::1] array
    if type(ids) is np.ndarray:
        try:
            array = ids
        except (ValueError, TypeError):
            return int64_array(ids, "ids")
        if array.shape[0] == 0 or <size_t>&array[0] % sizeof(int64_t) == 0:
            return array
    return int64_array(ids, "ids")


cdef const int32_t[::1] int32s_of(object values, str name):
    """int32 [n]; an int32 array goes straight through, anything else is converted with checks."""
    cdef const int32_t[::1] array
    if type(values) is np.ndarray:
        try:
            array = values
        except (ValueError, TypeError):
            return int32_array(values, name)
        if array.shape[0] == 0 or <size_t>&array[0] % sizeof(int32_t) == 0:
            return array
    return int32_array(values, name)


cdef const int32_t[::1] counts_of(object counts, Py_ssize_t n, str name):
    """int32 [n] of counts or positions, or int32 [1] of one for all; none negative."""
    cdef const int32_t[::1] array
    if type(counts) is not np.ndarray and isinstance(counts, (int, np.integer)) and not isinstance(counts, bool):
        return np.array([bounded_int(counts, name, 0, INT32_MAX)], np.int32)
    array = int32s_of(counts, name)
    if array.shape[0] != n:
        raise ValueError(f"{name} has {array.shape[0]} entries for {n} sequences")
    refuse_negative(array, name)
    return array


cdef int refuse_negative(const int32_t[::1] values, str name) except -1:
    """Raise ValueError for the first negative entry, with its place."""
    cdef Py_ssize_t i
    cdef int32_t union = 0
    for i in range(values.shape[0]):    # the sign bit survives the union
        union |= values[i]
    if union < 0:
        for i in range(values.shape[0]):
            if values[i] < 0:
                raise ValueError(f"{name} holds {values[i]} at {i}; it must be 0 to {INT32_MAX}")
    return 0


def later(str what):
    """The error for what a later release brings."""
    return NotImplementedError(f"{what} is not built yet; see the CHANGELOG for what this release has")
