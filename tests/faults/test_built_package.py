"""Faults of packages: what the binaries need, what the archives hold, what the benchmarks run on."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pagedcache

PACKAGE = Path(pagedcache.__file__).parent
BINARIES = sorted(PACKAGE.rglob("*.so"))


def output_of(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


@pytest.mark.skipif(shutil.which("objdump") is None or os.uname().machine != "x86_64", reason="needs objdump on x86-64")
def test_p01_the_core_runs_on_every_processor():
    """No instruction beyond the baseline's: nothing there names a register wider than SSE's.

    Kernels and checksums, elsewhere, ask the processor first.
    """
    core = [path for path in BINARIES if path.parent.name == "core"]
    assert core
    code = output_of("objdump", "--disassemble", "--no-show-raw-insn", *map(str, core))
    assert "%xmm" in code and not re.search(r"%[yz]mm", code)


def test_p02_one_build_serves_every_numpy_2(checkout):
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
    assert "numpy>=2.0" in project["build-system"]["requires"], "headers of NumPy 1 bind to NumPy 1"
    assert project["project"]["dependencies"] == ["numpy>=2.0"]
    assert "NPY_TARGET_VERSION" not in (checkout / "setup.py").read_text("utf-8"), "the default reaches back to 2.0"


def test_p04_no_threading_runtime_comes_along():
    """Without OpenMP there is no second one in the process, and nothing to fall back from."""
    for path in BINARIES:
        assert not re.search(rb"GOMP_|__kmpc_|lib[gi]omp|libiomp", path.read_bytes()), path.name


# -- archives ---------------------------------------------------------------------------------------

# setup.py asked for its list of files, without Cython: nothing is translated or compiled.
LIST = """
import sys, Cython.Build
Cython.Build.cythonize = lambda extensions, **_: extensions
sys.argv = ["setup.py", "-q", "egg_info", "--egg-base", sys.argv[1]]
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""


@pytest.fixture(scope="module")
def dist_checks(checkout):
    """The module .ci/check_dist.py, which looks into built archives."""
    path = checkout / ".ci" / "check_dist.py"
    if not path.is_file():
        pytest.skip("needs a clone")
    spec = importlib.util.spec_from_file_location("check_dist", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_p03_the_sdist_holds_every_source(checkout, dist_checks, tmp_path):
    output_of(sys.executable, "-c", LIST, str(tmp_path), cwd=checkout)
    names = (tmp_path / "pagedcache.egg-info" / "SOURCES.txt").read_text("utf-8").split()
    assert dist_checks.check_sdist(names) == []


def test_p03_a_wheel_that_lacks_or_carries_too_much_is_found(dist_checks):
    csrc = "pagedcache/backends/cpu/csrc/plan.h"
    kinds = (".py", ".pyi", ".pxd", ".h", ".hpp", ".cuh", ".cpp")
    sources = [name for name in dist_checks.sources(*kinds) if not dist_checks.of_kernels(name)]
    sources += filter(dist_checks.of_users, dist_checks.sources(".c"))
    modules = [name.replace(".pyx", ".abi.so") for name in dist_checks.sources(".pyx")]
    modules.append("pagedcache/lib/libpagedcache.so")
    right = [*sources, *modules, "pagedcache/py.typed", "pagedcache-1.dist-info/licenses/LICENSE"]
    assert dist_checks.check_wheel(right) == []
    for wrong in (
        right[1:],
        [*right, "pagedcache/core/step.c"],
        [*right, "backends/protocol.py"],
        [*right, csrc],
        [*right, "pagedcache/core/step.cpp"],
    ):
        assert len(dist_checks.check_wheel(wrong)) == 1
    for lost in (modules[0], modules[-1]):
        assert len(dist_checks.check_wheel([name for name in right if name != lost])) == 1


# -- benchmarks -------------------------------------------------------------------------------------

EXACT = """
import sys
sys.modules.update(dict.fromkeys(["cupy", "torch", "vllm"]))  # importing them fails
from suites import allocator, append, attention, baseline, churn, footprint, import_time, memory
utilisation = memory.Utilisation()
utilisation.setup(16)
print(utilisation.track_utilisation(16), churn.Churn(publish=True).run(40))
"""


def test_p06_s13_benchmarks_import_and_their_exact_figures_repeat(checkout):
    """P06, S13: two runs of the same code, under two hash seeds, must not differ at all."""
    figures = set()
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(PACKAGE.parent)}
        figures.add(output_of(sys.executable, "-c", EXACT, cwd=checkout / "benchmarks", env=environment))
    assert len(figures) == 1 and len(figures.pop().split()) == 2


def test_p06_asv_is_told_how_to_build(checkout):
    settings = json.loads((checkout / "benchmarks" / "asv.conf.json").read_text("utf-8"))
    assert settings["branches"] == ["main"]
    assert "pip wheel" in settings["build_command"][0] and "{wheel_file}" in settings["install_command"][0]
    assert (checkout / "benchmarks" / settings["benchmark_dir"] / "__init__.py").is_file()
