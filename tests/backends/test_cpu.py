"""Backend "cpu" passes the suite with every instruction set that runs here, and keeps the promises that are its own."""

import pytest

from pagedcache.backends.cpu import CpuBackend, _native
from pagedcache.testing import BackendConformance


@pytest.fixture(scope="module", params=_native.supported())
def isa(request):
    """Each instruction set in turn."""
    before = _native.current()
    _native.use(request.param)
    yield request.param
    _native.use(before)


class TestCpu(BackendConformance):
    @pytest.fixture
    def backend(self, isa):
        return CpuBackend(threads=2)
