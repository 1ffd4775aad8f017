"""Compare the stubs (.pyi) with the extension modules that they describe, by mypy's stubtest.

Usage: python -P .ci/check_stubs.py        (built in place; seconds)
"""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
FLAGS = ["--concise", "--ignore-disjoint-bases"]  # PEP 800: it would mark every class of Cython


def modules() -> list[str]:
    """Names of the modules with a stub; Python modules are their own description."""
    stubs = [*SOURCE.glob("pagedcache/*/*.pyi"), *SOURCE.glob("backends/*/*.pyi")]
    names = [".".join(stub.relative_to(SOURCE).with_suffix("").parts) for stub in stubs]
    return sorted({name if name.startswith("pagedcache.") else f"pagedcache.{name}" for name in names})


def main() -> int:
    """Run stubtest on all of them, and return its status."""
    allowed = ["--allowlist", str(SOURCE / ".ci/stubs_allowed.txt")]
    config = ["--mypy-config-file", str(SOURCE / "pyproject.toml")]
    command = [sys.executable, "-P", "-m", "mypy.stubtest", *FLAGS, *allowed, *config, *modules()]
    return subprocess.run(command, cwd=SOURCE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
