"""What is measured on: a GPU, or the emulator, on which only whether everything runs can be found out."""

import contextlib
import platform
import subprocess
import time

import numpy as np

from pagedcache.backends.cuda import CudaBackend
from pagedcache.backends.cuda_emulated import CudaEmulatedBackend

FLUSH = 1 << 30  # bytes written before each call that is timed: more than any L2, and longer than a launch takes


class Gpu:
    """The current GPU, through CuPy."""

    name = "cuda"

    def __init__(self):
        import cupy

        self.backend, self._cupy, self._flush = CudaBackend(), cupy, None

    def facts(self):
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        return {
            "gpu": properties["name"].decode(), "multiprocessors": properties["multiProcessorCount"],
            "gib": round(properties["totalGlobalMem"] / 2**30, 1), "l2_mib": properties["l2CacheSize"] / 2**20,
            "driver": runtime.driverGetVersion(), "cuda": runtime.runtimeGetVersion(),
            "cupy": self._cupy.__version__, "python": platform.python_version(), "clocks": _clocks(),
        }  # fmt: skip

    def put(self, array):
        return self._cupy.asarray(array)

    def host(self, array):
        return array.get() if isinstance(array, self._cupy.ndarray) else np.asarray(array)

    def empty(self, shape, dtype):
        return self._cupy.empty(shape, dtype)

    def visible(self):
        """In this context memory is allocated that the host can read and write as well."""
        return self._cupy.cuda.using_allocator(self._cupy.cuda.malloc_managed)

    def view(self, array, writable):
        """A NumPy array over such memory; it keeps `array` alive."""
        self.synchronize()
        return np.asarray(_Visible(array, writable))

    def synchronize(self):
        self._cupy.cuda.runtime.deviceSynchronize()

    def free(self):
        """Give unused memory back."""
        self._cupy.get_default_memory_pool().free_all_blocks()

    def times(self, call, samples=15):
        """Seconds that the GPU takes for a call, of each sample; its data is not in the L2 cache."""
        if self._flush is None:
            self._flush = self._cupy.empty(FLUSH, np.uint8)
        call()
        pairs = [(self._cupy.cuda.Event(), self._cupy.cuda.Event()) for _ in range(samples)]
        for begin, end in pairs:
            self._flush.data.memset_async(1, FLUSH)  # while it runs, what follows is queued
            begin.record()
            call()
            end.record()
        self.synchronize()
        return [self._cupy.cuda.get_elapsed_time(begin, end) * 1e-3 for begin, end in pairs]

    def captured(self, call):
        """A function that replays the launches of a call as a CUDA graph."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        self.synchronize()
        with stream:
            call()  # kernels are loaded
            stream.synchronize()
            stream.begin_capture()
            call()
            graph = stream.end_capture()
        return graph.launch

    def copying(self, gib=4):
        """A call that copies memory, and the bytes that it reads and writes."""
        size = int(gib * 2**30)
        source, target = self._cupy.zeros(size, np.uint8), self._cupy.empty(size, np.uint8)
        return lambda: target.data.copy_from_device_async(source.data, size), 2 * size


class Emulated:
    """The kernels on the CPU; times mean nothing."""

    name = "emulated"

    def __init__(self):
        self.backend = CudaEmulatedBackend()

    def facts(self):
        return {"gpu": "emulated", "python": platform.python_version()}

    def put(self, array):
        return np.array(array)

    def host(self, array):
        return np.asarray(array)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def visible(self):
        return contextlib.nullcontext()

    def view(self, array, writable):
        return array

    def synchronize(self):
        pass

    def free(self):
        pass

    def times(self, call, samples=2):
        found = []
        for _ in range(samples):
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
        return found

    def captured(self, call):
        return call

    def copying(self, gib=0.01):
        source = np.zeros(int(gib * 2**30), np.uint8)
        target = np.empty_like(source)
        return lambda: np.copyto(target, source), 2 * source.size


DEVICES = {"cuda": Gpu, "emulated": Emulated}


def host_time(device, call, count):
    """Seconds that the host takes to launch a call, the mean of `count`; and until the device is done with it."""
    call()
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    launched = time.perf_counter()
    device.synchronize()
    return (launched - begin) / count, (time.perf_counter() - begin) / count


class _Visible:
    def __init__(self, array, writable):
        self.array = array
        self.__array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.data.ptr, not writable), "version": 3
        }  # fmt: skip


def _clocks():
    """Clocks and power as the driver's own tool says them, or why not."""
    fields = "clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu,ecc.mode.current,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
