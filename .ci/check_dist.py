"""Look into the built sdist and wheel: everything a user or a third-party ``cimport`` needs, and nothing else.

Usage: python .ci/check_dist.py DIST_FOLDER
"""

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

SOURCE = Path(__file__).resolve().parents[1]


def sources(*suffixes: str) -> list[str]:
    """Paths below the checkout of the package's own files with these suffixes, through the backends link."""
    found = []
    for top in ("pagedcache", "backends"):
        for path in sorted((SOURCE / top).rglob("*")):
            if path.suffix in suffixes and not path.is_symlink() and "build" not in path.parts:
                name = path.relative_to(SOURCE).as_posix()
                found.append(name if top == "pagedcache" else f"pagedcache/{name}")
    return sorted(set(found))


def of_kernels(name: str) -> bool:
    """Whether this is C that was written, not generated, and its headers: needed to build, and by nobody after that."""
    return "csrc" in PurePosixPath(name).parts


def of_emulator(name: str) -> bool:
    """Whether this is C++ that users compile, when they run CUDA kernels on a CPU."""
    return "emulator" in PurePosixPath(name).parts


def of_users(name: str) -> bool:
    """Whether this is C that users compile, against the headers of the JAX that they have."""
    return "/interop/" in name


def check_wheel(names: list[str]) -> list[str]:
    """Return what is wrong with the wheel's list of files."""
    wanted = [name for name in sources(".py", ".pyi", ".pxd", ".h", ".hpp", ".cuh", ".cpp") if not of_kernels(name)]
    wanted += [*filter(of_users, sources(".c")), "pagedcache/py.typed", "pagedcache/lib/libpagedcache.so"]
    faults = [f"lacks {name}" for name in wanted if name not in names]
    for pyx in sources(".pyx"):
        stem = str(PurePosixPath(pyx).with_suffix(""))
        if not any(name.startswith(stem + ".") and name.endswith((".so", ".pyd")) for name in names):
            faults.append(f"lacks the extension module of {pyx}")
    faults += [f"carries {name}" for name in names if name.endswith((".pyx", ".pyc")) or of_kernels(name)]
    faults += [f"carries {name}" for name in names if name.endswith(".c") and not of_users(name)]
    faults += [f"carries {name}" for name in names if name.endswith(".cpp") and not of_emulator(name)]
    tops = {name.partition("/")[0] for name in names}
    faults += [f"installs {top}" for top in sorted(tops) if top != "pagedcache" and not top.endswith(".dist-info")]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        faults.append("lacks the licence")
    return faults


def check_sdist(names: list[str]) -> list[str]:
    """Return what is wrong with the sdist's list of files (paths below its top folder)."""
    wanted = [
        *sources(".py", ".pyi", ".pxd", ".pyx", ".h", ".hpp", ".c", ".cuh", ".cpp"),
        "setup.py",
        "pyproject.toml",
        "LICENSE",
        "README.md",
    ]
    faults = [f"lacks {name}" for name in wanted if name not in names]
    faults += [f"carries {name}" for name in names if name.endswith((".so", ".pyc"))]
    faults += [f"carries {name}" for name in names if name.startswith(("build/", "backends/"))]
    generated = [
        name
        for name in names
        if name.startswith("pagedcache/") and name.endswith(".c") and not (of_kernels(name) or of_users(name))
    ]
    faults += [f"carries generated {name}" for name in generated]
    return faults


def main(folder: str) -> int:
    (wheel,) = Path(folder).glob("*.whl")
    (sdist,) = Path(folder).glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        faults = {wheel.name: check_wheel(archive.namelist())}
    with tarfile.open(sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
        links = [member.name for member in archive if member.issym()]
    faults[sdist.name] = check_sdist(files) + [f"holds the link {name}" for name in links]
    for name, found in faults.items():
        size = (Path(folder) / name).stat().st_size
        print(f"{name}: {size / 1024:.0f} KiB, {len(found)} faults")
        for fault in found:
            print(f"  {fault}")
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
