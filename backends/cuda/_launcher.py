"""What the backend needs of a device: memory, and a way to start kernels.

There are three: CuPy on a GPU, an emulator that runs the kernels' source compiled for the CPU, and an interpreter of
the PTX that NVRTC makes of it. Lists, workspace and structs are the same bytes in all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.protocol import Storage
from pagedcache.spec import CacheSpec

__all__ = ["Array", "Launcher"]

Array: TypeAlias = Any  # of the device


class Launcher(Protocol):
    """A device."""

    device: str  # as Backend.device
    multiprocessors: int
    synchronous: bool  # work is done when launch returns

    def launch(self, kernel: Kernel, grid: int, params: "np.ndarray[Any, np.dtype[np.void]]") -> None:
        """Start `grid` blocks of `kernel.threads` threads, after earlier launches; `params` has no axes."""

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None) -> Storage:
        """Return the storage of a pool, as Backend.allocate does."""

    def planes(self, storage: Any) -> list[tuple[Array, ...]]:
        """Return the arrays of its planes themselves, bfloat16 as uint16 and fp8 as uint8."""

    def numbers(self, name: str, values: Any, storage_dtype: str) -> Array:
        """Return a caller's array as a compact one of float32, float16 or uint16: bfloat16."""

    def bits(self, array: Array) -> Array:
        """View an array of ml_dtypes as the unsigned integers of its bits; others as they are."""

    def refuse_infinite(self, name: str, array: Array) -> None:
        """Raise for values that no scale fits, where that can be told without waiting for the device."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory as it is."""

    def upload(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy on the device of a compact array of the host's."""

    def fill(self, array: Array, values: npt.NDArray[Any]) -> None:
        """Copy compact bytes of the host into an array of the device, after earlier launches."""

    def constant(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy on the device that nobody writes, the same one for equal small arrays."""

    def dtype_of_out(self, given: Any, q: Array) -> np.dtype[Any]:
        """Return what attend gives for a q as it came, and as `numbers` returned it."""

    def download(self, array: Any) -> npt.NDArray[Any]:
        """Return what an array holds, as one of the host's; it may be one already."""

    def address(self, array: Array) -> int:
        """Return where its first element is."""

    def output(self, name: str, array: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]) -> Array:
        """Return the caller's array for results, or a new one of the first dtype; see host.arguments.output."""

    def is_writable_by_kernels(self, array: Array, *others: Array) -> bool:
        """Whether kernels can fill it: compact, and apart from the others."""

    def put(self, out: Array, values: Array) -> None:
        """Write float32 values into an array of the caller's, rounded to its dtype."""

    def merge(self, outs: Any, lses: Any) -> tuple[Array, Array]:
        """Do what Backend.merge does."""

    def synchronize(self) -> None:
        """Wait until all launches are done."""

    def fence(self) -> int:
        """Return a number that covers all launches so far; 0 is always done."""
