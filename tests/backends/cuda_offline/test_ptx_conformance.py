"""The CUDA kernels, as NVRTC compiles them for a GPU, pass the suite of all backends when their PTX is interpreted."""

import pytest
from battery import SCENES

from pagedcache.backends.cuda._backend import KernelBackend
from pagedcache.backends.cuda_emulated._interpreter import PtxInterpreter
from pagedcache.testing import BackendConformance

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("nvrtc")]


class PtxBackend(KernelBackend):
    name = "cuda-ptx"

    def __init__(self):
        super().__init__(PtxInterpreter())


@pytest.fixture
def backend():
    return PtxBackend()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scenes_that_go_through_every_branch(backend, scene):
    scene(backend)


class TestEssentials:
    """Bits that are stored: subnormal numbers count for nothing on a GPU, unless an instruction says so."""

    test_stored_bits = BackendConformance.test_stored_bits


@pytest.mark.slow
class TestPtx(BackendConformance):
    @pytest.fixture
    def backend(self):
        return PtxBackend()
