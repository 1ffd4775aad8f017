"""A launcher whose device memory is the host's: everything but the running of kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host import arguments, formats
from pagedcache.backends.host.merge import merged
from pagedcache.backends.host.quantised import quantised
from pagedcache.backends.host.queries import dtype_of_out, parts_of
from pagedcache.backends.host.storage import HostStorage
from pagedcache.exchange import as_floats
from pagedcache.spec import CacheSpec

__all__ = ["HostMemory"]

Array = npt.NDArray[Any]


class HostMemory:
    """The memory half of a Launcher; see backends/cuda/_launcher.py for what each method is for."""

    device = "cpu"
    multiprocessors = 4  # blocks run one after the other; a small grid has kernels loop over their work, as on a GPU
    synchronous = True

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None) -> HostStorage:
        """Return a pool in the host's memory."""
        return HostStorage(spec, num_blocks, buffers)

    def planes(self, storage: HostStorage) -> list[tuple[Array, ...]]:
        """Return the arrays of the storage's planes."""
        return [tuple(formats.as_bits(array) for array in plane) for plane in storage.planes]

    def numbers(self, name: str, values: Any, storage_dtype: str) -> Array:
        """Return a caller's array, compact and aligned."""
        return np.require(formats.numbers(name, values, storage_dtype), requirements=["C", "A"])

    def bits(self, array: Array) -> Array:
        """View an array of ml_dtypes as unsigned integers."""
        return formats.as_bits(array)

    def refuse_infinite(self, name: str, array: Array) -> None:
        """Raise ValueError for the first value that is not finite."""
        if not np.isfinite(formats.widened(array)).all():
            quantised(name, formats.widened(array), "int8")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory full of NaN, so that what nobody wrote shows."""
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[...] = 0xFF
        return array

    def upload(self, array: Array) -> Array:
        """Return a copy."""
        return array.copy()

    def fill(self, array: Array, values: Array) -> None:
        """Copy bytes."""
        array[...] = values

    def constant(self, array: Array) -> Array:
        """Return a copy."""
        return array.copy()

    def dtype_of_out(self, given: Any, q: Array) -> np.dtype[Any]:
        """Return q's own dtype, float32 where NumPy has none."""
        return dtype_of_out(given, q)

    def download(self, array: Any) -> Array:
        """Return the array itself."""
        return as_floats(array, "the array")

    def address(self, array: Array) -> int:
        """Return where its first element is."""
        return int(array.ctypes.data)

    def output(self, name: str, array: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]) -> Array:
        """Return the caller's array for results, or a new one of the first dtype."""
        return arguments.output(name, array, shape, tuple(dtypes))

    def is_writable_by_kernels(self, array: Array, *others: Array) -> bool:
        """Whether it is compact and apart from the others."""
        return bool(array.flags.carray) and not any(np.may_share_memory(array, other) for other in others)

    def put(self, out: Array, values: Array) -> None:
        """Write float32 values, rounded to the array's dtype."""
        formats.put(out, values)

    def merge(self, outs: Any, lses: Any) -> tuple[Array, Array]:
        """Return attention over the union of disjoint sets of keys."""
        parts, values, logs = parts_of(outs, lses)
        with np.errstate(all="ignore"):
            mean, lse = merged(formats.widened(values), logs)
        out = np.empty(mean.shape, dtype_of_out(parts, values))
        formats.put(out, mean)
        return out, lse

    def synchronize(self) -> None:
        """Do nothing: work is done when a launch returns."""

    def fence(self) -> int:
        """Return 0: no work is ever outstanding."""
        return 0
