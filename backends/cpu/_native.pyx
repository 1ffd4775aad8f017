"""The kernels of csrc/ for Python: which instruction set runs, layers, plans, attention, stores.

What is checked here is what C must be able to rely on, as fast as can be. Whatever fails is checked
again by ``pagedcache.backends.host``, which says in words what is wrong.
"""

from libc.math cimport fabs
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

import os

import numpy as np

from pagedcache.core import Step

cimport numpy as cnp

cnp.import_array()

cdef double LOG2E = 1.4426950408889634
WIDEST = PC_WIDEST      # numbers of a head that are scaled whatever they come as; wider ones must be float32

# -- the instruction set ------------------------------------------------------------------------------

cdef const pc_kernels *active = NULL


def compiled():
    """Names of the instruction sets that were compiled in, the least first."""
    names = []
    while pc_kernels_at(len(names)) != NULL:
        names.append(pc_kernels_at(len(names)).name.decode())
    return tuple(names)


def supported():
    """Those of them that this processor and system can run."""
    return tuple(name for name in compiled() if pc_cpu_supports(name.encode()))


def current():
    """The one that runs."""
    return active.name.decode()


def use(name):
    """Run this one from here on; ValueError for what cannot run here."""
    global active
    if name not in supported():
        why = "this processor cannot run it" if name in compiled() else "there is none of that name"
        raise ValueError(
            f"instruction set {name!r}: {why}; compiled are {', '.join(compiled())}, "
            f"and here can run {', '.join(supported())}"
        )
    active = pc_kernels_at(compiled().index(name))


def has_native():
    """Whether bfloat16 is multiplied as it is, with q and weights rounded to it."""
    return active.has_native != 0


# -- layers ---------------------------------------------------------------------------------------------

cdef dict NUMBERS = {"float32": PC_F32, "float16": PC_F16, "bfloat16": PC_BF16, "int8": PC_I8, "float8_e4m3": PC_E4M3}


cdef pc_plane plane_of(cnp.ndarray array, cnp.ndarray scales, bint hnd, int32_t dtype):
    cdef pc_plane plane
    plane.data = <char *>cnp.PyArray_DATA(array)
    plane.block = array.strides[0]
    plane.token = array.strides[2 if hnd else 1]
    plane.head = array.strides[1 if hnd else 2]
    plane.width = <int32_t>array.shape[3]
    plane.dtype = dtype
    plane.scales = NULL
    plane.scale_block = plane.scale_token = plane.scale_head = 0
    if scales is not None:
        plane.scales = <float *>cnp.PyArray_DATA(scales)
        plane.scale_block = scales.strides[0] // 4
        plane.scale_token = scales.strides[2 if hnd else 1] // 4
        plane.scale_head = scales.strides[1 if hnd else 2] // 4
    return plane


cdef class Layer:
    """Where K and V of a layer are: the arrays of one plane, held for as long as this lives."""

    def __init__(self, spec, group, num_blocks, arrays):
        cdef tuple kept = tuple(arrays)
        scales = kept[2:] if len(kept) == 4 else (None, None)
        self.arrays = kept
        hnd = spec.layout == "HND"
        self.k = plane_of(kept[0], scales[0], hnd, NUMBERS[spec.dtype])
        self.v = plane_of(kept[1], scales[1], hnd, NUMBERS[spec.dtype])
        self.block_size, self.num_blocks, self.kv_heads = spec.block_size, num_blocks, spec.kv_heads
        self.key = ("cpu", group)
        self.scale = spec.head_dim**-0.5


# -- plans ------------------------------------------------------------------------------------------------

cdef cnp.ndarray integers(values, dtype, int ndim=1):
    """A compact array of so many axes, or None where the values are no integers or do not fit."""
    array = np.asarray(values)
    if array.ndim != ndim or (array.dtype.kind not in "iu" and array.size):
        return None
    fitting = np.ascontiguousarray(array, dtype)
    return fitting if array.dtype == dtype or np.array_equal(array, fitting) else None


cdef class Plan:
    """The work of a step, cut into pieces; None from `make` where the step's arrays cannot be right."""

    def __dealloc__(self):
        pc_plan_free(&self.c)

    cdef bint c_fits(self, Layer layer, int64_t tokens, int32_t q_group, int64_t window, int64_t sink_tokens) noexcept:
        return (
            self.c.num_tokens == tokens and self.q_group == q_group
            and self.kv_heads == layer.kv_heads and self.block_size == layer.block_size
            and self.num_blocks == layer.num_blocks and self.window == window and self.sink_tokens == sink_tokens
        )

    @staticmethod
    def of(Layer layer, step, group, int32_t tokens, int32_t q_group, window, sink_tokens, mask, mask_indptr):
        """The plan of an attend, from the step's memo if another layer has asked for it already."""
        # Other StepLikes may be copies of a step with arrays of their own, and its memo.
        memo = step.memo if type(step) is Step and mask is None and mask_indptr is None else None
        cdef int64_t width = INT32_MAX if window is None else min(window, INT32_MAX)
        # Layers of one group may look through different windows in turn.
        key = layer.key if window is None and sink_tokens == 0 else (*layer.key, window, sink_tokens)
        if memo is not None:
            found = memo.get(key)
            if found is not None and (<Plan?>found).c_fits(layer, tokens, q_group, width, sink_tokens):
                return found
        plan = Plan.make(layer, step, group, tokens, q_group, width, sink_tokens, mask, mask_indptr)
        if memo is not None and plan is not None:
            memo[key] = plan
        return plan

    @staticmethod
    def make(Layer layer, step, group, int32_t tokens, int32_t q_group, int64_t window, int64_t sink_tokens, mask,
             mask_indptr):
        cdef pc_step given
        cdef Plan plan = Plan.__new__(Plan)
        cdef int32_t kv_heads = layer.kv_heads
        cdef int status
        own = step.groups[group] if group else step
        indptr, lens, pads, starts = (
            integers(array, np.int32) for array in (step.qo_indptr, step.kv_lens, step.kv_pads, own.kv_starts)
        )
        tables = own.block_tables
        if not (isinstance(tables, np.ndarray) and tables.dtype == np.int32 and tables.ndim == 2
                and tables.strides[1] == 4 and tables.strides[0] % 4 == 0):
            tables = integers(tables, np.int32, 2)
        positions = integers(step.positions, np.int64)
        shared = step.shared_prefixes
        shared = None if shared is None or not len(shared) else integers(shared, np.int32, 2)
        if any(array is None for array in (indptr, lens, pads, starts, tables, positions)):
            return None
        n = len(lens)
        if (len(pads), len(starts), len(indptr), len(tables), len(positions)) != (n, n, n + 1, n, tokens):
            return None
        if step.block_size != layer.block_size or (step.shared_prefixes is not None and len(step.shared_prefixes)
                                                   and (shared is None or shared.shape[1] != 3)):
            return None
        given.num_sequences, given.num_tokens, given.width = n, tokens, tables.shape[1]
        given.block_size, given.num_blocks = layer.block_size, layer.num_blocks
        given.stride = tables.strides[0] // 4
        given.block_tables = <const int32_t *>cnp.PyArray_DATA(tables)
        given.qo_indptr = <const int32_t *>cnp.PyArray_DATA(indptr)
        given.kv_lens = <const int32_t *>cnp.PyArray_DATA(lens)
        given.kv_pads = <const int32_t *>cnp.PyArray_DATA(pads)
        given.kv_starts = <const int32_t *>cnp.PyArray_DATA(starts)
        given.positions = <const int64_t *>cnp.PyArray_DATA(positions)
        given.mask, given.mask_indptr, given.shared, given.num_shared = NULL, NULL, NULL, 0
        if mask is not None:
            mask = np.asarray(mask)
            if mask_indptr is None or mask.dtype != np.uint8 or mask.ndim != 1:
                return None
            mask = np.ascontiguousarray(mask)
            mask_indptr = integers(mask_indptr, np.int64)
            if mask_indptr is None or len(mask_indptr) != n + 1 or mask_indptr[0] != 0 or mask_indptr[n] != mask.size:
                return None
            given.mask = <const uint8_t *>cnp.PyArray_DATA(mask)
            given.mask_indptr = <const int64_t *>cnp.PyArray_DATA(mask_indptr)
        elif mask_indptr is not None:
            return None
        if shared is not None:
            given.shared, given.num_shared = <const int32_t *>cnp.PyArray_DATA(shared), len(shared)
        given.window, given.sink_tokens = window, sink_tokens
        plan.arrays = (tables, positions)
        plan.block_size, plan.num_blocks, plan.kv_heads = layer.block_size, layer.num_blocks, kv_heads
        plan.q_group, plan.window, plan.sink_tokens = q_group, window, sink_tokens
        with nogil:
            status = pc_plan_make(&plan.c, &given, kv_heads, q_group)
        if status == PC_NO_MEMORY:
            raise MemoryError(f"no memory for the plan of a step of {n} sequences and {tokens} tokens")
        return plan if status == PC_OK else None


# -- attention ----------------------------------------------------------------------------------------------

cdef int32_t number_of(array) except -1:
    """The number type of an array that came out of formats.numbers; 23 is NumPy's float16."""
    cdef int kind = cnp.PyArray_TYPE(array)
    return PC_F32 if kind == cnp.NPY_FLOAT else PC_F16 if kind == 23 else PC_BF16


cdef pc_rows rows_of(array):
    cdef pc_rows rows
    rows.data = <char *>cnp.PyArray_DATA(array)
    rows.heads, rows.width = <int32_t>array.shape[1], <int32_t>array.shape[2]
    rows.dtype = number_of(array)
    return rows


cdef pc_job job_of(Layer layer, q, out, lse, double scale):
    cdef pc_job job
    job.k, job.v = layer.k, layer.v
    job.q, job.out = rows_of(q), rows_of(out)
    job.lse = NULL if lse is None else <float *>cnp.PyArray_DATA(lse)
    job.block_size, job.kv_heads, job.group = layer.block_size, layer.kv_heads, job.q.heads // layer.kv_heads
    job.rule.scale, job.rule.cap = <float>(scale * LOG2E), 0
    job.rule.slopes = job.rule.sink_logits = NULL
    job.rule.native = layer.k.dtype == PC_BF16 and active.has_native
    return job


def attend(
    Layer layer, Plan plan, q, out, lse, double scale, softcap, slopes, sink_logits, bint native, int32_t threads
):
    """Fill `out`, and `lse` where given. Arrays are compact; slopes and sink_logits float32 [q_heads] or None."""
    cdef pc_job job = job_of(layer, q, out, lse, scale)
    cdef int status
    cdef cnp.ndarray kept_slopes, kept_sinks
    job.rule.native = native
    if softcap is not None:
        job.rule.scale, job.rule.cap = <float>(scale / <double>softcap), <float>(<double>softcap * LOG2E)
    if slopes is not None:
        kept_slopes = slopes * np.float32(LOG2E)
        job.rule.slopes = <const float *>cnp.PyArray_DATA(kept_slopes)
    if sink_logits is not None:
        kept_sinks = sink_logits * np.float32(LOG2E)
        job.rule.sink_logits = <const float *>cnp.PyArray_DATA(kept_sinks)
    with nogil:
        status = pc_attend(active, &job, &plan.c, threads)
    if status == PC_NO_MEMORY:
        raise MemoryError(f"no memory for the partial results of {plan.c.num_tokens} queries")


# -- the common case, from end to end -----------------------------------------------------------------------

cdef bint is_usual(Layer layer, array):
    """Whether C can read this as it is: a compact array of float32, float16 or a bfloat16 cache's own dtype."""
    cdef int kind
    cdef bint own
    if not (cnp.PyArray_CheckExact(array) and cnp.PyArray_ISCARRAY_RO(array) and cnp.PyArray_NDIM(array) == 3):
        return False
    kind = cnp.PyArray_TYPE(array)
    own = layer.k.dtype == PC_BF16 and kind == cnp.PyArray_TYPE(layer.arrays[0])
    return own or kind == cnp.NPY_FLOAT or kind == 23


cdef bint is_token_rows(Layer layer, array, int64_t tokens, int32_t width):
    if not is_usual(layer, array):
        return False
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(array)
    if layer.k.scales != NULL and width > PC_WIDEST and cnp.PyArray_TYPE(array) != cnp.NPY_FLOAT:
        return False
    return shape[0] == tokens and shape[1] == layer.kv_heads and shape[2] == width


cdef bint is_apart(one, other):
    """Whether two compact arrays share no byte."""
    cdef char *a = <char *>cnp.PyArray_DATA(one)
    cdef char *b = <char *>cnp.PyArray_DATA(other)
    return a + cnp.PyArray_NBYTES(one) <= b or b + cnp.PyArray_NBYTES(other) <= a


def usual_attend(Layer layer, q, k, v, step, scale, out, lse, int32_t threads):
    """Store k and v, unless they are None, and attend, if all is as it usually is; else None, and nothing was done.

    Usual are arrays that C can read as they are, a core Step for which another layer's attend has left the plan,
    and no variants. Whoever calls goes the long way otherwise, where what is wrong is said in words.
    """
    cdef Plan plan
    cdef pc_job job
    cdef pc_rows k_rows, v_rows
    cdef cnp.npy_intp shape[3]
    cdef const int64_t *at
    cdef int kind, status = PC_OK
    cdef bint fine = True, stores = k is not None
    cdef double factor = layer.scale
    if not is_usual(layer, q) or not (scale is None or (type(scale) is float and fabs(<double>scale) <= 1e28)):
        return None
    factor = factor if scale is None else scale
    shape[0], shape[1], shape[2] = cnp.PyArray_DIM(q, 0), cnp.PyArray_DIM(q, 1), layer.v.width
    if cnp.PyArray_DIM(q, 2) != layer.k.width or shape[1] == 0 or shape[1] % layer.kv_heads:
        return None
    found = step.memo.get(layer.key) if type(step) is Step else None
    if not isinstance(found, Plan) or not (<Plan>found).c_fits(
            layer, shape[0], <int32_t>(shape[1] // layer.kv_heads), INT32_MAX, 0):
        return None
    plan = found
    if stores:
        if not is_token_rows(layer, k, shape[0], layer.k.width) or not is_token_rows(layer, v, shape[0], layer.v.width):
            return None
        if plan.slots is None:
            slots = (step.groups[layer.key[1]] if layer.key[1] else step).slots
            if not are_slots(layer, slots) or len(slots) != shape[0]:
                return None
            plan.slots = slots
        k_rows, v_rows, at = rows_of(k), rows_of(v), <const int64_t *>cnp.PyArray_DATA(plan.slots)
    kind = cnp.NPY_FLOAT if cnp.PyArray_TYPE(q) == cnp.NPY_USHORT else cnp.PyArray_TYPE(q)
    if out is None:
        out = cnp.PyArray_EMPTY(3, shape, kind, 0)
    elif not (is_usual(layer, out) and cnp.PyArray_TYPE(out) in (kind, cnp.NPY_FLOAT) and cnp.PyArray_ISWRITEABLE(out)
              and cnp.PyArray_CompareLists(cnp.PyArray_DIMS(out), shape, 3) and is_apart(out, q)):
        return None
    if lse is not None and not (
            cnp.PyArray_CheckExact(lse) and cnp.PyArray_ISCARRAY(lse) and cnp.PyArray_TYPE(lse) == cnp.NPY_FLOAT
            and cnp.PyArray_NDIM(lse) == 2 and cnp.PyArray_CompareLists(cnp.PyArray_DIMS(lse), shape, 2)
            and is_apart(lse, q)):
        return None
    job = job_of(layer, q, out, lse, factor)
    with nogil:
        if stores and layer.k.scales != NULL:
            fine = (active.finite(k_rows.dtype, k_rows.data, shape[0] * k_rows.heads * k_rows.width)
                    and active.finite(v_rows.dtype, v_rows.data, shape[0] * v_rows.heads * v_rows.width))
        if stores and fine:
            pc_store(active, &layer.k, &k_rows, layer.block_size, at, shape[0], threads)
            pc_store(active, &layer.v, &v_rows, layer.block_size, at, shape[0], threads)
        if fine:
            status = pc_attend(active, &job, &plan.c, threads)
    if status == PC_NO_MEMORY:
        raise MemoryError(f"no memory for the partial results of {plan.c.num_tokens} queries")
    return out if fine else None


# -- stores and copies -----------------------------------------------------------------------------------------

def are_slots(Layer layer, slots):
    """Whether this is a compact int64 array of slots in usable blocks."""
    cdef const int64_t *at
    cdef int64_t i, n, low = layer.block_size, high = (<int64_t>layer.num_blocks + 1) * layer.block_size
    cdef bint wrong = False
    if not (isinstance(slots, np.ndarray) and cnp.PyArray_TYPE(slots) == cnp.NPY_INT64 and slots.ndim == 1
            and cnp.PyArray_IS_C_CONTIGUOUS(slots) and cnp.PyArray_ISNOTSWAPPED(slots)):
        return False
    at, n = <const int64_t *>cnp.PyArray_DATA(slots), slots.shape[0]
    with nogil:
        for i in range(n):
            wrong |= at[i] < low or at[i] >= high
    return not wrong


def are_finite(array):
    """Whether a compact array of floats holds neither infinities nor NaN."""
    cdef int32_t dtype = number_of(array), finite
    cdef const void *data = cnp.PyArray_DATA(array)
    cdef int64_t n = array.size
    with nogil:
        finite = active.finite(dtype, data, n)
    return finite != 0


def store(Layer layer, k, v, slots, int32_t threads):
    """Store new tokens; all arrays are compact, and the slots were checked."""
    cdef pc_rows k_rows = rows_of(k), v_rows = rows_of(v)
    cdef const int64_t *at = <const int64_t *>cnp.PyArray_DATA(slots)
    cdef int64_t n = slots.shape[0]
    with nogil:
        pc_store(active, &layer.k, &k_rows, layer.block_size, at, n, threads)
        pc_store(active, &layer.v, &v_rows, layer.block_size, at, n, threads)


def copy_rows(src, from_rows, dst, to_rows, int64_t nbytes, int32_t threads):
    """Copy the first `nbytes` of rows from_rows of `src` to rows to_rows of `dst`; int64 indices, or None: in order."""
    cdef const char *source = <const char *>cnp.PyArray_DATA(src)
    cdef char *target = <char *>cnp.PyArray_DATA(dst)
    cdef int64_t src_stride = src.strides[0], dst_stride = dst.strides[0]
    cdef int64_t n = len(to_rows) if to_rows is not None else len(from_rows)
    cdef const int64_t *taken = NULL
    cdef const int64_t *put = NULL
    if from_rows is not None:
        taken = <const int64_t *>cnp.PyArray_DATA(from_rows)
    if to_rows is not None:
        put = <const int64_t *>cnp.PyArray_DATA(to_rows)
    with nogil:
        pc_copy(source, src_stride, taken, target, dst_stride, put, nbytes, n, threads)


try:
    if not supported():
        raise ImportError(f"this processor runs none of the instruction sets compiled in: {', '.join(compiled())}")
    use(os.environ.get("PAGEDCACHE_ISA") or supported()[len(supported()) - 1])
except ValueError as error:
    raise ImportError(f"PAGEDCACHE_ISA: {error}") from None
