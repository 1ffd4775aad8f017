"""The arrays of a pool: allocated here, or the caller's."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.formats import as_bits
from pagedcache.backends.host.memory import zeros
from pagedcache.errors import CacheClosed, ViewsOutstanding
from pagedcache.exchange import bits_of
from pagedcache.spec import CacheSpec

__all__ = ["HostStorage"]

Plane = tuple[npt.NDArray[Any], ...]  # K, V and, for int8 and fp8, K scales, V scales

NAMES = {"float8_e4m3": "float8_e4m3fn"}  # what other libraries call what is stored


class HostStorage:
    """K and V of every block in NumPy arrays: per plane one K and one V array, and their scales.

    Parameters
    ----------
    spec : CacheSpec
        With one K/V shape for all groups.
    num_blocks : int
        Usable blocks; the arrays have one row more.
    buffers : sequence of (K, V) or (K, V, K scales, V scales), optional
        The caller's arrays, one entry per plane, of exactly the spec's shapes and dtypes (unsigned
        integers may stand for bfloat16 and fp8), C-contiguous, writable and apart from each other: NumPy's,
        or what `pagedcache.exchange.as_numpy` takes without a copy, which is asked for its memory once and
        kept alive. Their reserved row 0 is set to zero, the rest is kept. Without them memory is allocated.

    Raises
    ------
    ValueError, TypeError
        Buffers that do not fit; the message says which and how.
    MemoryError
        The system refuses that much memory; the message says how much was asked for.

    Examples
    --------
    >>> storage = HostStorage(CacheSpec(layers=2, kv_heads=3, head_dim=5, block_size=4), num_blocks=7)
    >>> storage.view(1)[0].shape, storage.nbytes
    ((8, 4, 3, 5), 7680)
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None = None) -> None:
        if len({(g.kv_heads, g.head_dim, g.v_head_dim, g.dtype) for g in spec.kv_groups}) > 1:
            raise NotImplementedError("layer groups of different K/V shapes in one pool")
        self.spec = spec
        self.num_blocks = num_blocks
        self.nbytes = spec.pool_nbytes(num_blocks)
        self._loans: weakref.WeakSet[_Loan] = weakref.WeakSet()
        self.owned = buffers is None  # whether the memory is this storage's own
        self._planes = self._made() if buffers is None else self._taken(buffers)
        self._changed()

    @property
    def planes(self) -> list[Plane]:
        """The arrays themselves, for the backend only; CacheClosed after close()."""
        if not self._planes:
            raise CacheClosed("the storage was closed")
        return self._planes

    def raw(self, layer: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """K and V of a layer as backends compute with them: bfloat16 as uint16, fp8 as uint8."""
        key, value, *_ = self.planes[self.spec.locate(layer)[1]]
        return as_bits(key), as_bits(value)

    def raw_scales(self, layer: int) -> Plane:
        """K scales and V scales of a layer, or nothing where the dtype has none."""
        return self.planes[self.spec.locate(layer)[1]][2:]

    def view(self, layer: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the K and V arrays of a layer, of spec.key_shape and spec.value_shape."""
        key, value, *_ = self.planes[self.spec.locate(layer)[1]]
        return self._lent(key, True), self._lent(value, True)

    def scales(self, layer: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the float32 K and V scales of a layer, of spec.scale_shape; None without scales."""
        _, _, *scales = self.planes[self.spec.locate(layer)[1]]
        return (self._lent(scales[0], True), self._lent(scales[1], True)) if scales else None

    def export(self, writable: bool = False) -> list[Plane]:
        """Return the arrays of every plane; with `writable`, the caller minds which blocks are shared."""
        return [tuple(self._lent(array, writable) for array in plane) for plane in self.planes]

    def rebind(self, buffers: Sequence[Sequence[Any]]) -> None:
        """Use other buffers of the caller's, which hold what this storage shall hold from here on.

        Raises
        ------
        ValueError
            The storage owns its memory, or a buffer does not fit.
        ViewsOutstanding
            An array that this storage gave out is in use.
        """
        if self.owned:
            raise ValueError("only a storage over the caller's buffers can be rebound; this one owns its memory")
        _ = self.planes  # a closed storage stays closed
        self._refuse_if_lent()
        self._planes = self._taken(buffers)
        self._changed()

    def close(self) -> None:
        """Give the memory back; closing twice is harmless.

        Raises
        ------
        ViewsOutstanding
            An array that this storage gave out is in use; nothing was changed.
        """
        self._refuse_if_lent()
        self._planes = []
        self._changed()

    def _changed(self) -> None:
        """Do nothing; a subclass that keeps addresses of ``_planes`` (none after close) renews them here."""

    # What memory of another kind does in its own way.

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return zeros(shape, dtype)

    def _fitting(self, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        bits, kind = bits_of(array, name, copy=False)
        stored = np.dtype(f"u{dtype.itemsize}") if dtype.isbuiltin != 1 else dtype  # a type that is not NumPy's own
        if bits.dtype != stored or kind not in ("", NAMES.get(self.spec.dtype, self.spec.dtype)):
            raise ValueError(f"{name} has dtype {kind or bits.dtype}; the spec stores {dtype}")
        if bits.shape != shape:
            raise ValueError(f"{name} has shape {bits.shape}; it must be {shape}, the reserved block included")
        if not (bits.flags.c_contiguous and bits.flags.aligned and bits.flags.writeable):
            fault = "" if bits.flags.writeable else " and is read-only"
            raise ValueError(
                f"{name} has strides {bits.strides}{fault}; it must be C-contiguous, aligned and writable: "
                "make it with numpy.zeros"
            )
        return bits.view(dtype)

    def _address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def _lent(self, array: npt.NDArray[Any], writable: bool) -> npt.NDArray[Any]:
        loan = _Loan(array, writable)
        self._loans.add(loan)
        return np.asarray(loan).view(array.dtype)

    def _refuse_if_lent(self) -> None:
        if count := len(self._loans):
            raise ViewsOutstanding(
                f"{count} arrays of this storage are in use; delete them and everything that views them first"
            )

    def _kinds(self) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        yield "K", self.spec.key_shape(self.num_blocks), self.spec.storage_dtype
        yield "V", self.spec.value_shape(self.num_blocks), self.spec.storage_dtype
        if self.spec.has_scales:
            yield "K scales", self.spec.scale_shape(self.num_blocks), self.spec.scale_dtype
            yield "V scales", self.spec.scale_shape(self.num_blocks), self.spec.scale_dtype

    def _made(self) -> list[Plane]:
        planes: list[Plane] = []
        try:
            for _ in range(self.spec.planes):
                planes.append(tuple(self._new(shape, dtype) for _, shape, dtype in self._kinds()))
        except MemoryError as error:
            planes.clear()  # the traceback would keep them, and a caller could not try with less
            raise MemoryError(
                f"no memory for a pool of {self.nbytes} bytes ({self.num_blocks} blocks): {error}; "
                "ask for fewer blocks, or raise the limit (ulimit -v)"
            ) from error
        return planes

    def _taken(self, buffers: Sequence[Sequence[Any]]) -> list[Plane]:
        if len(buffers) != self.spec.planes:
            raise ValueError(f"buffers has {len(buffers)} entries; the spec has {self.spec.planes} planes")
        taken = []
        for number, plane in enumerate(buffers):
            kinds = list(self._kinds())
            if len(plane) != len(kinds):
                names = ", ".join(name for name, _, _ in kinds)
                raise ValueError(f"buffers[{number}] has {len(plane)} arrays; it must have {len(kinds)} ({names})")
            taken.append(
                tuple(
                    self._fitting(f"{name} of buffers[{number}]", array, shape, dtype)
                    for array, (name, shape, dtype) in zip(plane, kinds, strict=True)
                )
            )
        arrays = sorted((array for plane in taken for array in plane), key=self._address)
        for before, after in pairwise(arrays):
            if self._address(before) + before.nbytes > self._address(after):
                raise ValueError("two of the buffers overlap in memory; each K and V needs its own")
        for array in arrays:
            array[0] = 0  # the reserved block
        return taken


class _Loan:
    """Memory given out: arrays over it keep it alive, and by that show that they are in use."""

    def __init__(self, array: npt.NDArray[Any], writable: bool) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], not writable)}
