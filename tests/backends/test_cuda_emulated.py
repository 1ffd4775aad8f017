"""Backend "cuda-emulated": the CUDA kernels, executed on the CPU, pass the suite of all backends."""

import pytest

from pagedcache.backends.cuda_emulated import CudaEmulatedBackend
from pagedcache.testing import BackendConformance


@pytest.mark.usefixtures("cxx")
class TestCudaEmulated(BackendConformance):
    @pytest.fixture
    def backend(self):
        return CudaEmulatedBackend()
