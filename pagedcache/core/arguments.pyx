"""What callers hand in: checked, converted where it must be, and passed straight through where not.

The one place that speaks NumPy's C interface: a typed memoryview of each argument would cost more than the
verb itself.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport INT32_MAX, int32_t, int64_t

import numpy as np

from pagedcache.core._convert import int32_array, int64_array, token_sequence

cnp.import_array()


@cython.no_gc
@cython.freelist(8)
cdef class Int32s:
    """A caller's int32 [n]."""


@cython.no_gc
@cython.freelist(8)
cdef class Int64s:
    """A caller's int64 [n]."""


def bounded_int(value, str name, int64_t low, int64_t high):
    """`value` as an int within [low, high]; the error names all three."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be {low} to {high}")
    return int(value)


cdef inline bint is_plain(object array, int typenum):
    """Whether it is an ndarray of one dimension whose memory can be read as it is."""
    return (
        cnp.PyArray_CheckExact(array) and cnp.PyArray_NDIM(array) == 1 and cnp.PyArray_TYPE(array) == typenum
        and cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED)
        and cnp.PyArray_ISNOTSWAPPED(array)
    )


cdef Int64s handles_of(object ids):
    """int64 [n]; an int64 array goes straight through, anything else is converted with checks."""
    cdef Int64s view = Int64s.__new__(Int64s)
    view.owner = ids if is_plain(ids, cnp.NPY_INT64) else int64_array(ids, "ids")
    view.data = <const int64_t *>cnp.PyArray_DATA(view.owner)
    view.n = cnp.PyArray_DIM(view.owner, 0)
    return view


cdef Int32s int32s_of(object values, str name):
    """int32 [n]; an int32 array goes straight through, anything else is converted with checks."""
    cdef Int32s view = Int32s.__new__(Int32s)
    view.owner = values if is_plain(values, cnp.NPY_INT32) else int32_array(values, name)
    view.data = <const int32_t *>cnp.PyArray_DATA(view.owner)
    view.n = cnp.PyArray_DIM(view.owner, 0)
    return view


cdef Int32s own_int32s(object values, str name):
    """int32s_of, as a copy: what is checked and then used must not change between, on any Python."""
    cdef Int32s view = int32s_of(values, name)
    view.owner = view.owner.copy()
    view.data = <const int32_t *>cnp.PyArray_DATA(view.owner)
    return view


cdef Int32s counts_of(object counts, Py_ssize_t n, str name):
    """int32 [n] of counts or positions, or int32 [1] of one for all; none negative."""
    cdef Int32s view
    if type(counts) is int or isinstance(counts, np.integer):
        view = Int32s.__new__(Int32s)
        view.one = bounded_int(counts, name, 0, INT32_MAX)
        view.data = &view.one
        view.n = 1
        return view
    view = int32s_of(counts, name)
    if view.n != n:
        raise ValueError(f"{name} has {view.n} entries for {n} sequences")
    refuse_negative(view, name)
    return view


cdef Int32s own_counts(object counts, Py_ssize_t n, str name):
    """counts_of, as a copy."""
    cdef Int32s view = counts_of(counts, n, name)
    if view.owner is not None:
        view.owner = view.owner.copy()
        view.data = <const int32_t *>cnp.PyArray_DATA(view.owner)
    return view


cdef list token_lists(object prompts, str name):
    """The token ids of each prompt, as Int32s; none negative."""
    cdef list lists = []
    cdef Int32s tokens
    for i, prompt in enumerate(prompts if type(prompts) is list else token_sequence(prompts, name)):
        if is_plain(prompt, cnp.NPY_INT32):
            tokens = int32s_of(prompt, name)
        else:
            tokens = int32s_of(prompt, f"{name}[{i}]")
        if has_negative(tokens):
            refuse_negative(tokens, f"{name}[{i}]")
        lists.append(tokens)
    return lists


cdef int refuse_negative(Int32s values, str name) except -1:
    """Raise ValueError for the first negative entry, with its place."""
    cdef Py_ssize_t i
    if has_negative(values):
        for i in range(values.n):
            if values.data[i] < 0:
                raise ValueError(f"{name} holds {values.data[i]} at {i}; it must be 0 to {INT32_MAX}")
    return 0


cdef inline bint has_negative(Int32s values) noexcept:
    cdef const int32_t *data = values.data
    cdef Py_ssize_t i
    cdef int32_t union = 0
    for i in range(values.n):    # the sign bit survives the union
        union |= data[i]
    return union < 0


cdef object new_int8s(Py_ssize_t n, signed char **data):
    """A new int8 [n] and where its memory is."""
    cdef cnp.npy_intp size = n
    array = cnp.PyArray_EMPTY(1, &size, cnp.NPY_INT8, 0)
    data[0] = <signed char *>cnp.PyArray_DATA(array)
    return array


cdef object new_int32s(Py_ssize_t n, int32_t **data):
    """A new int32 [n] and where its memory is."""
    cdef cnp.npy_intp size = n
    array = cnp.PyArray_EMPTY(1, &size, cnp.NPY_INT32, 0)
    data[0] = <int32_t *>cnp.PyArray_DATA(array)
    return array


cdef object new_int64s(Py_ssize_t n, int64_t **data):
    """A new int64 [n] and where its memory is."""
    cdef cnp.npy_intp size = n
    array = cnp.PyArray_EMPTY(1, &size, cnp.NPY_INT64, 0)
    data[0] = <int64_t *>cnp.PyArray_DATA(array)
    return array
