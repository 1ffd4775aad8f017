"""The part of the build that pyproject.toml cannot say: the packages and the extension modules.

``backends/`` is a real top-level folder; it is reached, built and installed as ``pagedcache.backends`` through the
link ``pagedcache/backends -> ../backends``.
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

SOURCES = ("pagedcache", "pagedcache/backends")  # folders of packages
GENERATED = "build/cython"  # the C that Cython writes: outside the packages, so that no wheel carries it
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,
}
# No -march: one wheel runs on every processor. Without -g0 the modules are mostly debug information.
FLAGS = ["-O3", "-g0", "-fno-math-errno", "-Wno-array-bounds"]
# The kernels unroll and vectorise by hand; more of it by the compiler makes them larger, not faster.
KERNEL_FLAGS = ["-O2", "-fno-trapping-math", "-Wno-psabi", "-std=gnu11"]


class Tee(io.StringIO):
    """A text buffer that also shows what is written to it."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def write(self, text):
        self.stream.write(text)
        return super().write(text)


def extension(pyx: Path) -> Extension:
    """Describe the extension module of one ``.pyx`` file, and of the C in a folder ``csrc`` beside it."""
    here, csrc = pyx.parent, pyx.parent / "csrc"
    return Extension(
        ".".join(pyx.with_suffix("").parts),
        [str(pyx), *(str(p) for p in sorted(csrc.glob("*.c")))],
        include_dirs=[str(here), str(csrc), numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        depends=[str(p) for d in (here, csrc) for pattern in ("*.pxd", "*.h") for p in sorted(d.glob(pattern))],
        extra_compile_args=FLAGS + (KERNEL_FLAGS if csrc.is_dir() else []),
        extra_link_args=["-pthread"] if csrc.is_dir() else [],
    )


def cythonize_strictly(extensions: list[Extension]) -> list[Extension]:
    """Translate to C, and refuse what silently takes the GIL: a nogil helper without ``noexcept``."""
    log = Tee(sys.stderr)
    with contextlib.redirect_stderr(log):
        modules = cythonize(extensions, build_dir=GENERATED, compiler_directives=DIRECTIVES)
    hints = [line for line in log.getvalue().splitlines() if "performance hint" in line and "xception check" in line]
    if hints:
        for module in modules:  # or the next build would find the C up to date and pass
            for source in module.sources:
                if Path(source).is_relative_to(GENERATED):
                    Path(source).unlink(missing_ok=True)
        raise SystemExit("\n".join(["The build fails on these hints of Cython; declare the helpers noexcept:", *hints]))
    return modules


if not Path("pagedcache/backends").is_dir():
    raise SystemExit(
        "pagedcache/backends is not a folder: this checkout has no symbolic links. "
        "Run 'git config core.symlinks true' and check out again, or build from the sdist."
    )

setup(
    packages=find_packages(include=["pagedcache", "pagedcache.*"]),
    package_dir={"": "."},  # makes an editable install a plain path entry, which mypy, IDEs and cimports understand
    include_package_data=False,  # or the wheel would carry whatever the sdist does
    package_data={
        "": ["*.pyi", "*.pxd", "*.h", "kernels/*.cuh", "emulator/*.h", "emulator/*.cpp"],
        "pagedcache": ["py.typed"],
        "pagedcache.replay": ["data/*"],
    },
    # Windows: MinGW with CC=clang. MSVC lacks vectors of GNU C, and GCC there misplaces those of AVX on the stack.
    options={"build_ext": {"parallel": os.cpu_count(), **({"compiler": "mingw32"} if os.name == "nt" else {})}},
    ext_modules=cythonize_strictly(
        [extension(pyx) for place in SOURCES for pyx in sorted(Path(place).glob("*/*.pyx"))]
    ),
)
