"""ONNX Runtime over the pool: OrtValues that are its memory, sessions bound to fixed buffers, inputs of PagedAttention.

ONNX Runtime has no paged attention on the CPU. So a model is cut at attention: sessions compute what is before and
behind it, `KVCache.attend` what is between, all in buffers that stay where they are. `Stage` is such a session.

On a GPU there is the operator ``com.microsoft.PagedAttention``; `paged_attention_inputs` gives what it is told of a
step.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import Step
from pagedcache.exchange import export

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Stage", "ort_value", "paged_attention_inputs", "pool_values"]

MOST_BINDINGS = 64  # that a Stage keeps, one per number of rows


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            "pagedcache.interop.onnxruntime needs ONNX Runtime 1.32 or later: pip install 'pagedcache[onnxruntime]'"
        ) from error
    return onnxruntime


def ort_value(array: Any, dtype: str | None = None) -> "onnxruntime.OrtValue":
    """Return an OrtValue that is the memory of an array, and keeps it alive.

    Parameters
    ----------
    array : ndarray
        C-contiguous and writable.
    dtype : {"bfloat16", "float8_e4m3", "float8_e5m2"}, optional
        What an array of unsigned integers holds; arrays of ml_dtypes say so themselves.

    Raises
    ------
    ImportError
        ONNX Runtime is not installed.
    ValueError
        The array is not contiguous or not writable: ONNX Runtime takes neither.
    """
    array = np.asarray(array)
    if not (array.flags.c_contiguous and array.flags.writeable):
        what = "not C-contiguous" if array.flags.writeable else "read-only"
        raise ValueError(f"the array is {what}; ONNX Runtime takes no such memory without a copy: give a copy")
    return _onnxruntime().OrtValue.from_dlpack(export(array, dtype))


def pool_values(cache: KVCache, layer: int) -> "tuple[onnxruntime.OrtValue, ...]":
    """Return a layer's K and V, and their scales where it has them, as OrtValues over the pool's own memory.

    Parameters
    ----------
    cache : KVCache
        Of a backend whose bytes are in the host's memory.
    layer : int

    Returns
    -------
    tuple of OrtValue
        K and V [num_blocks + 1, block_size, kv_heads, head_dim] (layout NHD), as ``PagedAttention`` wants them;
        for int8 and float8_e4m3 also K scales and V scales. The cache cannot be closed while any of them lives.

    Raises
    ------
    ValueError
        The cache is metadata only.
    """
    if cache.storage is None:
        raise ValueError("the cache is metadata only, so it has no pool; its owner makes the OrtValues")
    dtype = cache.spec.dtype if cache.spec.dtype in ("bfloat16", "float8_e4m3", "float8_e5m2") else None
    values = tuple(ort_value(array, dtype) for array in cache.storage.view(layer))
    scales = cache.storage.scales(layer)
    return values if scales is None else (*values, *map(ort_value, scales))


def paged_attention_inputs(step: Step, group: int = 0) -> dict[str, NDArray[np.int32]]:
    """Return what ``com.microsoft.PagedAttention`` is told of a step, under the names that it has for it.

    Parameters
    ----------
    step : Step
    group : int
        The layer group whose tables are meant.

    Returns
    -------
    dict
        ``cumulative_sequence_length`` [n + 1], ``past_seqlens`` [n], ``block_table`` [n, width] (-1: no block) and
        ``slot_mapping`` [tokens], all int32 and C-contiguous; copied where the step has them otherwise.

    Raises
    ------
    ValueError
        The step has padding or released blocks, of which the operator knows nothing.

    Examples
    --------
    >>> from pagedcache import CacheSpec
    >>> cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4), num_blocks=8)
    >>> step = cache.extend(cache.admit([range(5), range(2)]).ids, [5, 2])
    >>> inputs = paged_attention_inputs(step)
    >>> inputs["cumulative_sequence_length"].tolist(), inputs["past_seqlens"].tolist()
    ([0, 5, 7], [0, 0])
    >>> inputs["slot_mapping"].tolist()
    [16, 17, 18, 19, 20, 4, 5]
    """
    own = step.groups[group] if group else step
    if np.any(step.kv_pads):
        raise ValueError("sequences of the step have left padding, which PagedAttention cannot be told of")
    if np.any(own.kv_starts):
        raise ValueError("blocks behind a window were given back, which PagedAttention cannot be told of")
    starts = step.qo_indptr
    return {
        "cumulative_sequence_length": _compact(starts),
        "past_seqlens": step.kv_lens - np.diff(starts),
        "block_table": _compact(own.block_tables),
        "slot_mapping": _compact(own.slots),
    }


def _compact(values: NDArray[Any]) -> NDArray[np.int32]:
    """Slots as int32: a pool of 2**31 slots would be of 2**31 numbers at least, per layer."""
    if values.dtype != np.int32 and values.size and values.max() > np.iinfo(np.int32).max:
        raise ValueError(f"slot {values.max()} does not fit in int32, which PagedAttention is told slots in")
    return np.ascontiguousarray(values, np.int32)


class Stage:
    """A session whose inputs and outputs are the leading rows of arrays that stay where they are.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Of which every input and output has rows on axis 0, as many in each.
    arrays : mapping of str to ndarray
        One for every input and output by name: C-contiguous and writable, [most rows, ...].
    dtypes : mapping of str to str, optional
        ``"bfloat16"``, where arrays of unsigned integers hold that.

    Raises
    ------
    ValueError
        Names that are missing or that the session does not have.

    Notes
    -----
    Addresses are bound once per number of rows: a decode step of as many sequences as before calls ONNX Runtime
    once, and no array changes hands. One thread at a time may `run` it.
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        arrays: Mapping[str, NDArray[Any]],
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.session, self.arrays, self._dtypes = session, dict(arrays), dict(dtypes or {})
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]
        names = {*self._inputs, *self._outputs}
        if wrong := names ^ self.arrays.keys():
            raise ValueError(f"arrays must name the session's inputs and outputs; the two differ in {sorted(wrong)}")
        self._most = min(len(array) for array in self.arrays.values())
        self._bound: dict[int, Any] = {}

    def run(self, rows: int) -> None:
        """Compute: the leading rows of the inputs' arrays into those of the outputs'.

        Raises
        ------
        ValueError
            There are fewer rows.
        """
        binding = self._bound.get(rows)
        if binding is None:
            binding = self._bind(rows)
        self.session.run_with_iobinding(binding)

    def _bind(self, rows: int) -> Any:
        if not 1 <= rows <= self._most:
            raise ValueError(f"rows is {rows}; the arrays of this stage have 1 to {self._most}")
        binding = self.session.io_binding()
        for names, bind in ((self._inputs, binding.bind_ortvalue_input), (self._outputs, binding.bind_ortvalue_output)):
            for name in names:
                bind(name, ort_value(self.arrays[name][:rows], self._dtypes.get(name)))
        while len(self._bound) >= MOST_BINDINGS:
            self._bound.pop(next(iter(self._bound)))
        self._bound[rows] = binding
        return binding
