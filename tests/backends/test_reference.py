"""Backend "numpy" passes the suite, and keeps the promises that are its own."""

import pytest

from pagedcache import backends
from pagedcache.testing import BackendConformance


class TestNumpy(BackendConformance):
    @pytest.fixture
    def backend(self):
        return backends.get("numpy")
