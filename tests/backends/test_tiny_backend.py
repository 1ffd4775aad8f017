"""The example of docs/backends.md passes the suite that it is an example for."""

import runpy
from pathlib import Path

import pytest

from pagedcache.testing import BackendConformance

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "tiny_backend.py"
if not EXAMPLE.is_file():
    pytest.skip("the examples are not here", allow_module_level=True)
TINY = runpy.run_path(str(EXAMPLE))["TinyBackend"]()


class TestTiny(BackendConformance):
    @pytest.fixture
    def backend(self):
        return TINY
