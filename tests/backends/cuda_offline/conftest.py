"""What tests without a GPU need of NVIDIA's wheels."""

import pytest

from pagedcache.backends.cuda_emulated import _nvrtc
from pagedcache.errors import UnsupportedByBackend


@pytest.fixture(scope="session")
def nvrtc():
    """The module that compiles; skips where there is no NVRTC."""
    try:
        _nvrtc.compile("", "nothing.cu", "compute_80")
    except UnsupportedByBackend as reason:
        pytest.skip(str(reason))
    return _nvrtc
