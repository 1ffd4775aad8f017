"""The distribution is what its metadata says, and the build refuses what it must."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pagedcache
from pagedcache import core

PACKAGE = Path(pagedcache.__file__).parent
FOLDERS = PACKAGE, PACKAGE / "backends"  # which is a link in a source tree: rglob does not follow it
EXTENSIONS = sorted({p for folder in FOLDERS for kind in ("so", "pyd") for p in folder.rglob(f"*.{kind}")})
EXTENSIONS = [path for path in EXTENSIONS if path.parent.name != "lib"]  # where the C interface's library is


def test_numpy_is_the_only_hard_dependency():  # I09
    hard = [need for need in metadata.requires("pagedcache") if "extra ==" not in need]
    assert [re.split(r"[<>=~ ]", need)[0] for need in hard] == ["numpy"]


def test_torch_is_in_no_extra():
    assert not [need for need in metadata.requires("pagedcache") if need.startswith("torch")]


def test_licence_is_named():
    assert metadata.metadata("pagedcache")["License-Expression"] == "Apache-2.0"


def test_entry_points_load():
    (command,) = metadata.entry_points(group="console_scripts", name="pagedcache")
    assert callable(command.load())
    for backend in metadata.entry_points(group="pagedcache.backends"):
        if backend.dist is not None and backend.dist.name == "pagedcache":
            assert backend.load().name == backend.name


def test_marked_as_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_there_are_extension_modules():
    assert EXTENSIONS


@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda path: path.name.partition(".")[0])
def test_extension_modules_can_be_cimported(path):
    assert path.with_name(path.name.partition(".")[0] + ".pxd").is_file()


@pytest.mark.parametrize("name", core.__all__)
def test_public_classes_of_the_core_have_types(name):
    module = getattr(core, name).__module__.replace(".", "/").removeprefix("pagedcache/")
    assert (PACKAGE / f"{module}.pyi").is_file() or (PACKAGE / f"{module}.py").is_file()


def test_version_is_in_the_changelog(checkout):
    assert metadata.version("pagedcache") in (checkout / "CHANGELOG.md").read_text(encoding="utf-8")


def build(tmp_path, checkout, source):
    """Run the project's setup.py on a package whose core is one given .pyx."""
    shutil.copy(checkout / "setup.py", tmp_path)
    for folder in ("pagedcache/core", "pagedcache/backends"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pagedcache/core/probe.pyx").write_text(source, encoding="utf-8")
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_build_refuses_a_helper_that_takes_the_gil(tmp_path, checkout):  # S11
    source = "cdef void helper(int *x) nogil:\n    x[0] = 1\n"
    first = build(tmp_path, checkout, source)
    assert first.returncode != 0
    assert "probe.pyx:1:0: Exception check on 'helper'" in first.stderr
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert again.returncode != 0, "the second build found the refused C up to date"


def test_build_needs_the_backends_link(tmp_path, checkout):
    shutil.copy(checkout / "setup.py", tmp_path)
    (tmp_path / "pagedcache").mkdir()
    (tmp_path / "pagedcache/backends").write_text("../backends", encoding="utf-8")
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "core.symlinks" in done.stderr
