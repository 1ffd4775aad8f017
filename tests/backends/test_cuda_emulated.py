"""Backend "cuda-emulated": the CUDA kernels, executed on the CPU, pass the suite of all backends."""

import shutil

import pytest

from pagedcache.backends.cuda_emulated import CudaEmulatedBackend
from pagedcache.testing import BackendConformance

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")


class TestCudaEmulated(BackendConformance):
    @pytest.fixture
    def backend(self):
        return CudaEmulatedBackend()
