"""The CUDA kernels, as NVRTC compiles them for a GPU, pass the suite of all backends when their PTX is interpreted."""

import pytest
from battery import SCENES, PtxBackend

from pagedcache.testing import BackendConformance

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("nvrtc")]


@pytest.fixture
def backend():
    return PtxBackend()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scenes_that_go_through_every_branch(backend, scene):
    scene(backend)


class TestEssentials:
    """What an emulator on x86 does not show: subnormal numbers, which operators of a GPU take for 0; alignment."""

    test_stored_bits = BackendConformance.test_stored_bits
    test_every_value_is_read_as_it_is_stored = BackendConformance.test_every_value_is_read_as_it_is_stored
    test_inputs_of_every_form = BackendConformance.test_inputs_of_every_form


@pytest.mark.slow
class TestPtx(BackendConformance):
    @pytest.fixture
    def backend(self):
        return PtxBackend()
