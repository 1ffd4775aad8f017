"""CuPy and what it needs, or what is missing and where it comes from."""

import re
from functools import cache
from importlib import metadata
from typing import Any

from pagedcache.errors import UnsupportedByBackend

__all__ = ["cupy", "require_gpu"]

OLDEST = 80  # compute capability times 10: the first with asynchronous copies to shared memory
INSTEAD = "Without a GPU, backend 'cuda-emulated' runs the same kernels on the CPU"
PROBE = 'extern "C" __global__ void probe() {}'


@cache
def cupy() -> Any:
    """Return the module; UnsupportedByBackend, with what to install, where it is missing or there twice."""
    _require_one()
    try:
        import cupy as module
    except ImportError as error:
        raise UnsupportedByBackend(
            f"backend 'cuda' needs CuPy, which cannot be imported ({error}): pip install 'pagedcache[cuda13]', or "
            f"[cuda12] for a driver of CUDA 12. {INSTEAD}"
        ) from error
    return module


def _require_one() -> None:
    """Refuse several distributions of CuPy: each has written over the files of another."""
    names = (distribution.name or "" for distribution in metadata.distributions())
    found = sorted({name.lower() for name in names if re.fullmatch(r"(?i)cupy(-(cuda|rocm).*)?", name)})
    if len(found) > 1:
        raise UnsupportedByBackend(
            f"backend 'cuda' finds CuPy installed {len(found)} times, {' and '.join(found)}, one over the other: "
            f"pip uninstall {' '.join(found)}, then install the one for your driver with pip install "
            f"'pagedcache[cuda13]', or [cuda12]. {INSTEAD}"
        )


def require_gpu() -> Any:
    """Return CuPy where it finds a driver, NVRTC, CUDA's headers and a GPU of compute capability 8.0 or later.

    Raises
    ------
    UnsupportedByBackend
        Naming which of them is missing, and what to do.
    """
    module = cupy()
    runtime = module.cuda.runtime
    if not runtime.driverGetVersion():
        raise UnsupportedByBackend(
            f"backend 'cuda' finds no NVIDIA driver: install it, and check nvidia-smi. {INSTEAD}"
        )
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UnsupportedByBackend(
            f"backend 'cuda' finds no usable GPU ({error}): check nvidia-smi, and that the driver is as new as CuPy's "
            f"CUDA. {INSTEAD}"
        ) from error
    if not count:
        raise UnsupportedByBackend(f"backend 'cuda' finds no GPU (CUDA_VISIBLE_DEVICES may hide it). {INSTEAD}")
    capability = int(module.cuda.Device().compute_capability)
    if capability < OLDEST:
        raise UnsupportedByBackend(
            f"backend 'cuda' needs a GPU of compute capability {OLDEST // 10}.0 or later (A100); this one has "
            f"{capability // 10}.{capability % 10}. {INSTEAD}"
        )
    _require_compiler(module)
    return module


def _require_compiler(module: Any) -> None:
    """Compile a kernel that does nothing, and load it: kernels are compiled when they are first launched."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # ImportError, or what CuPy's loader of libraries raises
        raise UnsupportedByBackend(
            f"backend 'cuda' finds no NVRTC, which compiles its kernels ({error}): pip install nvidia-cuda-nvrtc, or "
            "CuPy with its extra [ctk]"
        ) from error
    try:
        module.RawModule(code=PROBE).get_function("probe")
    except Exception as error:  # of CuPy where it misses headers, of NVRTC, or of a driver that cannot load the result
        raise UnsupportedByBackend(
            f"backend 'cuda' cannot compile and load a kernel ({error}): CuPy needs CUDA's headers even for kernels "
            "that include none: pip install CuPy with its extra [ctk], or set CUDA_PATH; and the driver has to be as "
            "new as NVRTC"
        ) from error
