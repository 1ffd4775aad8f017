"""Extension modules that Python code meets have types, and the types say what is there."""

import subprocess
import sys
from pathlib import Path

import pytest

import pagedcache

PACKAGE = Path(pagedcache.__file__).parent
FOR_CIMPORT = """
    accepted_tokens arguments demand_table event_log fence_queue ghosts group_table held_blocks hit_table key_table
    prefix_index queues state_steps state_table step_buffers step_filler vacant_blocks
""".split()  # parts of the core, met by its other modules alone


def extension_modules():
    """Paths without suffix of what was compiled, through the link backends."""
    folders = PACKAGE, PACKAGE / "backends"
    files = [path for folder in folders for kind in ("so", "pyd") for path in folder.glob(f"*/*.{kind}")]
    return sorted({path.with_name(path.name.partition(".")[0]) for path in files if path.parent.name != "lib"})


@pytest.mark.parametrize("module", extension_modules(), ids=lambda path: path.name)
def test_extension_module_has_a_stub(module):
    has_stub = module.with_suffix(".pyi").is_file()
    assert has_stub == (module.name not in FOR_CIMPORT)


def test_list_of_private_modules_is_current():
    assert set(FOR_CIMPORT) <= {path.name for path in extension_modules()}


@pytest.mark.slow
def test_stubs_say_what_is_there(checkout):
    pytest.importorskip("mypy.stubtest")
    command = [sys.executable, "-P", str(checkout / ".ci" / "check_stubs.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
