"""Backend ``cuda``: kernels for GPUs of compute capability 8.0 and later, started through CuPy.

The kernels are in ``kernels/``; what starts them is a launcher, of which there are others that need no GPU.
"""

from pagedcache.backends.cuda._backend import KernelBackend
from pagedcache.backends.cuda._workspace import Workspace

__all__ = ["CudaBackend", "Workspace"]


class CudaBackend(KernelBackend):
    """Attention on the current GPU.

    Work is put on CuPy's current stream, in the order of the calls: arrays that come back may not be filled yet for
    anyone who does not read them on that stream.

    Raises
    ------
    UnsupportedByBackend
        CuPy, the driver, NVRTC or a GPU of compute capability 8.0 is missing; the message says which, and what to do.
    """

    name = "cuda"

    def __init__(self) -> None:
        from pagedcache.backends.cuda._cupy import CupyLauncher

        super().__init__(CupyLauncher())
