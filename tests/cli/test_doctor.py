"""``pagedcache doctor``: it tells what is here, and what cannot be used is told of, too."""

import json
import re
import sys
from importlib.metadata import EntryPoint, version

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")
pytest.importorskip("threadpoolctl")
pytest.importorskip("tokenizers")

from pagedcache.backends import _registry, names
from pagedcache.backends.cpu import CpuBackend
from pagedcache.cli import doctor


def report(command):
    status, out, err = command("doctor", "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_it_tells_versions_and_backends(command):
    found = report(command)
    assert found["pagedcache"] == version("pagedcache") and found["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert sorted(found["backends"]) == names()
    cpu, numpy = (found["backends"][name] for name in ("cpu", "numpy"))
    assert cpu["instruction_sets"] == CpuBackend().instruction_sets() and cpu["threads"] == CpuBackend().threads
    assert numpy["instruction_sets"] is numpy["threads"] is None
    assert "bfloat16" in cpu["dtypes"] and cpu["precisions"]["float32"] == "exact" and "mask" in cpu["variants"]


def test_the_table_says_the_same(command):
    status, out, err = command("doctor")
    assert (status, err) == (0, "")
    sets = CpuBackend().instruction_sets()
    for name, value in (
        ("pagedcache", version("pagedcache")),
        ("backend cpu", "on cpu"),
        ("runs", sets["current"]),
        ("compiled", ", ".join(sets["compiled"])),
        ("threads", CpuBackend().threads),
        ("PAGEDCACHE_ISA", ""),
    ):
        assert re.search(rf"^{name} +{re.escape(str(value))}", out, re.MULTILINE), name


def test_blas_is_told_with_its_threads(command):
    from threadpoolctl import threadpool_info, threadpool_limits

    if not any(library["user_api"] == "blas" for library in threadpool_info()):
        pytest.skip("NumPy's BLAS is none that threadpoolctl knows")
    with threadpool_limits(1, "blas"):
        [blas, *_] = report(command)["blas"]
        assert blas["num_threads"] == 1 and blas["internal_api"]
        assert re.search(r"^BLAS of NumPy .*threads: 1$", command("doctor")[1], re.MULTILINE)


def test_variables_are_shown(command, monkeypatch):
    monkeypatch.setenv("PAGEDCACHE_NUM_THREADS", "7")
    monkeypatch.delenv("PAGEDCACHE_ISA", raising=False)
    variables = report(command)["variables"]
    assert variables["PAGEDCACHE_NUM_THREADS"] == "7" and variables["PAGEDCACHE_ISA"] is None
    assert re.search(r"PAGEDCACHE_NUM_THREADS +7 *$", command("doctor")[1], re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "mode"), [("always [madvise] never\n", "madvise"), ("[never]", "never"), (None, None)]
)
def test_huge_pages(command, monkeypatch, tmp_path, text, mode):
    path = tmp_path / "enabled"
    if text is not None:
        path.write_text(text, encoding="ascii")
    monkeypatch.setattr(doctor, "HUGE_PAGES", path)
    assert report(command)["huge_pages"] == mode
    assert (mode or "none here") in command("doctor")[1]


def test_packages_are_looked_up_and_not_imported(command, monkeypatch):
    monkeypatch.setattr(doctor, "PARTNERS", ("numpy", "no-such-package-at-all"))
    assert report(command)["packages"] == {"numpy": np.__version__, "no-such-package-at-all": None}
    assert re.search(r"no-such-package-at-all +not found", command("doctor")[1])


def test_a_backend_that_cannot_be_used_is_told_of(command, monkeypatch):
    points = [EntryPoint("broken", "pagedcache_has_no_such_module:Backend", _registry.GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    _registry._make.cache_clear()
    try:
        found, (status, out, _) = report(command), command("doctor")
    finally:
        _registry._make.cache_clear()
    assert "pagedcache_has_no_such_module" in found["backends"]["broken"]["error"]
    assert status == 0 and re.search(r"backend broken +cannot be used: .*pagedcache_has_no_such_module", out)
    assert "device" in found["backends"]["numpy"]


def test_a_variable_that_is_no_number_is_told_of(command, monkeypatch):
    monkeypatch.setenv("PAGEDCACHE_NUM_THREADS", "many")
    _registry._make.cache_clear()
    try:
        assert "PAGEDCACHE_NUM_THREADS is 'many'" in report(command)["backends"]["cpu"]["error"]
    finally:
        _registry._make.cache_clear()
