"""The launcher for a GPU: memory, streams and modules through CuPy."""

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.cuda._device_storage import DeviceStorage
from pagedcache.backends.cuda._explain import cupy, require_gpu
from pagedcache.backends.cuda._foreign import as_bits, as_cupy, is_bfloat16, is_on_gpu
from pagedcache.backends.cuda._kernels import Kernel, source
from pagedcache.backends.host import formats
from pagedcache.exchange import as_floats
from pagedcache.spec import CacheSpec

__all__ = ["CupyLauncher"]

OPTIONS = ("--std=c++17",)  # CuPy adds -default-device and -ftz=true, and NVRTC may refuse to be told twice
MOST_CONSTANTS = 256
MOST_STATIC = 48 << 10  # bytes of shared memory that need no asking for
FLOATS = (np.float32, np.float16, np.uint16)  # uint16 is bfloat16


class CupyLauncher:
    """Work on one GPU, the current one when this is made, in the order of the calls.

    It is put on CuPy's current stream. Where that is another one than in the call before, it waits for what was put on
    the other, so that blocks that were given back are safe to reuse at once. What is captured in a graph waits for
    nothing: whoever replays the graph puts it in order.
    """

    device = "cuda"
    synchronous = False

    def __init__(self) -> None:
        self._cupy = require_gpu()
        self._device = self._cupy.cuda.Device()
        self._last: Any = None  # the stream of the last call
        self._event = self._cupy.cuda.Event(disable_timing=True)
        self._constants: dict[bytes, Any] = {}  # small arrays, by their bytes
        self._lock = threading.Lock()  # between finding out the order and launching, no other thread may launch
        self.multiprocessors = int(self._device.attributes["MultiProcessorCount"])

    def launch(self, kernel: Kernel, grid: int, params: "np.ndarray[Any, np.dtype[np.void]]") -> None:
        """Put a kernel on the current stream; it is compiled when it first runs, and kept on disk by CuPy."""
        with self._lock, self._device:
            self._order()
            _function(kernel, self._device.id)((grid,), (kernel.threads,), (params,), shared_mem=kernel.shared)

    def _order(self) -> None:
        """Let the current stream come after what was put on another one before."""
        stream = self._cupy.cuda.get_current_stream()
        if stream == self._last or stream.is_capturing():
            return
        if self._last is not None and not self._last.is_capturing():  # a wait would become part of the capture
            self._last.record(self._event)
            stream.wait_event(self._event)
        self._last = stream

    def allocate(self, spec: CacheSpec, num_blocks: int, buffers: Sequence[Sequence[Any]] | None) -> DeviceStorage:
        """Return a pool in the GPU's memory."""
        with self._lock, self._device:
            self._order()  # zeros are written
            return DeviceStorage(spec, num_blocks, buffers)

    def planes(self, storage: DeviceStorage) -> list[tuple[Any, ...]]:
        """Return the arrays of the storage's planes."""
        return storage.planes

    def numbers(self, name: str, values: Any, storage_dtype: str) -> Any:
        """Return a caller's array on the GPU, compact; arrays of the host are copied there."""
        if not is_on_gpu(values):
            self._refuse_capture(f"{name} is an array of the host")
            return self.upload(np.ascontiguousarray(formats.numbers(name, values, storage_dtype)))
        array = self._taken(name, values)
        is_bits = array.dtype == np.uint16 and not is_bfloat16(values)
        if array.dtype not in FLOATS or (is_bits and storage_dtype != "bfloat16"):
            raise TypeError(f"{name} is {array.dtype}; it must be float32, float16 or bfloat16")
        if array.flags.c_contiguous:
            return array
        self._refuse_capture(f"{name} is not compact")
        with self._lock, self._device:
            self._order()
            return self._cupy.ascontiguousarray(array)

    def _taken(self, name: str, values: Any) -> Any:
        """View an array on this GPU as CuPy's."""
        with self._device:
            array = as_cupy(values)
        if array.device.id != self._device.id:
            raise ValueError(f"{name} is on GPU {array.device.id}; the backend was made for GPU {self._device.id}")
        return array

    def bits(self, array: Any) -> Any:
        """View an array of ml_dtypes as unsigned integers."""
        return as_bits(array)

    def refuse_infinite(self, name: str, array: Any) -> None:
        """Do nothing: to look would be to wait for the GPU."""

    def _refuse_capture(self, why: str) -> None:
        """Raise where a temporary array would be part of a graph: its memory goes to others before a replay."""
        if self._cupy.cuda.get_current_stream().is_capturing():
            raise ValueError(
                f"{why}, and a graph is being captured: give compact arrays on the GPU, out= and a Workspace, and make "
                "the same call once before"
            )

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return memory of CuPy's pool."""
        self._refuse_capture("the call needs memory")
        with self._device:
            return self._cupy.empty(shape, dtype)

    def upload(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy on the GPU, by way of pinned memory."""
        self._refuse_capture("the call copies to the GPU")
        with self._lock, self._device:
            self._order()  # CuPy may hand out memory that kernels on another stream are still reading
            return self._cupy.asarray(array)

    def fill(self, array: Any, values: npt.NDArray[Any]) -> None:
        """Copy bytes into an array on the GPU; they are read before this returns."""
        # ndarray.set would copy from memory that is not pinned, for which the driver may wait until the stream is idle.
        staged = self.upload(values)
        with self._lock, self._device:
            self._order()
            array[...] = staged

    def constant(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy on the GPU, kept for the next call that gives the same numbers."""
        key = array.tobytes()
        if key not in self._constants:
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()
            self._constants[key] = self.upload(array)
        return self._constants[key]

    def dtype_of_out(self, given: Any, q: Any) -> np.dtype[Any]:
        """Return q's own dtype; bfloat16 is uint16."""
        dtype: np.dtype[Any] = q.dtype
        return dtype

    def download(self, array: Any) -> npt.NDArray[Any]:
        """Return what an array holds; waits for it where it is on the GPU."""
        if not is_on_gpu(array):
            return as_floats(array, "the array")
        with self._device:
            return np.asarray(as_cupy(array).get())

    def address(self, array: Any) -> int:
        """Return where its first element is."""
        return int(array.data.ptr)

    def output(self, name: str, array: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]) -> Any:
        """Return the caller's array for results, or a new one of the first dtype.

        Where any float is wanted, arrays that say that they are bfloat16 are taken too: torch's q has no NumPy dtype.
        """
        kinds = [np.dtype(np.uint16) if dtype.kind == "V" else dtype for dtype in dtypes]
        if array is None:
            return self.empty(shape, kinds[0])
        if not is_on_gpu(array):
            raise TypeError(f"{name} is {type(array).__name__}; it must be an array on the GPU")
        taken = self._taken(name, array)
        fits = taken.dtype in kinds or (len(kinds) > 1 and is_bfloat16(array))
        if taken.shape != shape or not fits:
            wanted = " or ".join(str(kind) for kind in dict.fromkeys(kinds))
            raise ValueError(f"{name} is {taken.dtype} {taken.shape}; it must be a writable array of {wanted} {shape}")
        return taken

    def is_writable_by_kernels(self, array: Any, *others: Any) -> bool:
        """Whether it is compact and apart from the others, which are compact."""
        # CuPy's may_share_memory says no for two arrays of another library's memory, whatever their addresses.
        begin, end = array.data.ptr, array.data.ptr + array.nbytes
        apart = (end <= other.data.ptr or other.data.ptr + other.nbytes <= begin for other in others)
        return bool(array.flags.c_contiguous) and all(apart)

    def put(self, out: Any, values: Any) -> None:
        """Write float32 values, rounded to the array's dtype."""
        with self._device:
            if out.dtype == np.uint16:
                bits = values.view(np.uint32)
                rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
                values = self._cupy.where(self._cupy.isnan(values), np.uint32(0x7FC0), rounded)
            out[...] = values.astype(out.dtype)

    def merge(self, outs: Any, lses: Any) -> tuple[Any, Any]:
        """Return attention over the union of disjoint sets of keys."""
        xp = self._cupy
        parts, logs = self._stacked("outs", outs), self._stacked("lses", lses)
        if logs.dtype != np.float32 or logs.ndim != 3 or not len(logs) or parts.shape[:-1] != logs.shape:
            raise ValueError(
                f"outs is {parts.dtype} {parts.shape} and lses {logs.dtype} {logs.shape}; they must be "
                "[parts, tokens, q_heads, v_head_dim] and float32 [parts, tokens, q_heads], with at least one part"
            )
        if parts.dtype not in FLOATS:
            raise TypeError(f"outs is {parts.dtype}; it must be float32, float16 or bfloat16")
        with self._lock, self._device:
            self._order()
            is_bits = parts.dtype == np.uint16
            values = (
                (parts.astype(np.uint32) << np.uint32(16)).view(np.float32) if is_bits else parts.astype(np.float32)
            )
            top = logs.max(axis=0)
            weights = xp.exp(logs - xp.where(xp.isneginf(top), np.float32(0), top))
            total = weights.sum(axis=0)
            shown = xp.where(weights[..., None] != 0, values, np.float32(0))
            mean = (shown * weights[..., None]).sum(axis=0) / xp.where(total == 0, np.float32(1), total)[..., None]
            return mean.astype(np.float32 if is_bits else parts.dtype), top + xp.log(total)

    def _stacked(self, name: str, parts: Any) -> Any:
        """Return an array, or a list of arrays, as one on the GPU."""
        if is_on_gpu(parts):
            return self._taken(name, parts)
        if isinstance(parts, (list, tuple)) and any(map(is_on_gpu, parts)):
            with self._lock, self._device:
                self._order()
                return self._cupy.stack([self._taken(name, part) for part in parts])
        return self.upload(formats.as_bits(np.asarray(parts)))

    def synchronize(self) -> None:
        """Wait until all launches are done."""
        if self._last is not None:
            with self._device:
                self._last.synchronize()

    def fence(self) -> int:
        """Return 0: later launches come after earlier ones, so that blocks are safe to reuse at once."""
        return 0


@cache
def _function(kernel: Kernel, device: int) -> Any:
    """Return the kernel, compiled for a GPU, which is the current one."""
    function = cupy().RawModule(code=source(kernel), options=OPTIONS).get_function(kernel.name)
    if kernel.shared > MOST_STATIC:
        function.max_dynamic_shared_size_bytes = kernel.shared
    return function
