"""Backends are found by name, made once, and refused with the list of what is there."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from pagedcache import backends
from pagedcache.backends import _registry
from pagedcache.errors import UnknownBackend, UnsupportedByBackend
from pagedcache.spec import CacheSpec


@pytest.fixture
def installed(monkeypatch):
    """Let a test declare entry points as another package would."""
    points = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    _registry._make.cache_clear()
    yield lambda name, value: points.append(EntryPoint(name, value, _registry.GROUP))
    _registry._make.cache_clear()


def test_numpy_is_always_there():
    assert "numpy" in backends.names()
    assert backends.get("numpy") is backends.get("numpy")
    assert isinstance(backends.get("numpy"), backends.Backend)


def test_a_backend_is_returned_as_it_is():
    backend = backends.get("numpy")
    assert backends.get(backend) is backend


def test_unknown_name_lists_the_installed_ones():
    with pytest.raises(UnknownBackend, match=r"'tpu'.*numpy"):
        backends.get("tpu")


@pytest.mark.parametrize("thing", [None, 3, object(), type(backends.get("numpy"))])
def test_something_else_is_a_type_error(thing):
    with pytest.raises(TypeError, match=r"no backend.*numpy"):
        backends.get(thing)


def test_entry_points_of_others(installed):
    installed("theirs", "pagedcache.backends.reference:NumpyBackend")
    assert backends.names() == sorted([*_registry.BUILT_IN, "theirs"])
    assert backends.get("theirs").name == "numpy"


def test_an_entry_point_cannot_replace_a_built_in_backend(installed):
    installed("numpy", "somewhere.else:Backend")
    assert backends.get("numpy").device == "cpu"


def test_a_backend_that_cannot_be_imported(installed):
    installed("broken", "pagedcache_has_no_such_module:Backend")
    with pytest.raises(UnknownBackend, match=r"'broken'.*pagedcache_has_no_such_module"):
        backends.get("broken")


def test_capabilities_name_what_is_lacking_and_what_is_there():
    capabilities = backends.Capabilities(
        dtypes=frozenset({"float16"}),
        layouts=frozenset({"NHD"}),
        max_block_size=64,
        head_dims=frozenset({64, 128}),
        variants=frozenset({"lse"}),
        precisions={"float16": "native"},
        synchronous=True,
    )
    capabilities.require(CacheSpec(1, 2, 64, dtype="float16"))
    with pytest.raises(UnsupportedByBackend) as refused:
        capabilities.require(CacheSpec(1, 2, 80, v_head_dim=64, layout="HND", block_size=128))
    message = str(refused.value)
    for part in ("'HND' (has NHD)", "128 (has at most 64)", "'float32' (has float16)", "head size 80 (has 64, 128)"):
        assert part in message
    assert "head size 64" not in message


def test_importing_backends_imports_none_of_them():  # contract 13
    code = "import sys, pagedcache.backends; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pagedcache.backends.protocol" in loaded
    ours = ("pagedcache.backends.reference", "pagedcache.backends.cpu", "pagedcache.backends.host")
    for absent in (*ours, "torch", "cupy", "ml_dtypes", "importlib.metadata"):
        assert absent not in loaded
