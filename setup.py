"""The part of the build that pyproject.toml cannot say: the packages and the extension modules.

``backends/`` is a real top-level folder; it is reached, built and installed as ``pagedcache.backends`` through the
link ``pagedcache/backends -> ../backends``.
"""

import contextlib
import copy
import io
import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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
LIBRARY = "pagedcache.lib.libpagedcache"  # the C interface: a plain shared library, named as linkers expect
# It stays loaded after dlclose: its threads are still there.
LIBRARY_LINK = ["-Wl,-soname,libpagedcache.so", "-Wl,-z,nodelete"]


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


def library() -> list[Extension]:
    """Describe libpagedcache: the C interface in front of the CPU kernels, without Python."""
    folders = [Path("pagedcache/capi/csrc"), Path("pagedcache/backends/cpu/csrc")]
    sources = [str(p) for folder in folders for p in sorted(folder.glob("*.c"))]
    headers = [p for folder in (*folders, Path("pagedcache/include")) for p in sorted(folder.glob("*.h"))]
    if not sources:  # a part of the tree, which tests build
        return []
    return [
        Extension(
            LIBRARY,
            sources,
            include_dirs=[*(str(folder) for folder in folders), "pagedcache/include"],
            depends=[str(p) for p in headers],
            libraries=["m"],
            extra_compile_args=[*FLAGS, *KERNEL_FLAGS, "-fvisibility=hidden"],
            extra_link_args=["-pthread", *(LIBRARY_LINK if sys.platform == "linux" else [])],
        )
    ]


class BuildExtensions(build_ext):
    """Builds the library beside the extension modules."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return where the built file goes: a library's name does not say for which Python it is."""
        path = Path(super().get_ext_filename(fullname))
        return str(path.with_name("libpagedcache.so") if path.name.startswith("libpagedcache.") else path)

    def copy_extensions_to_source(self) -> None:
        """Copy what was built into the packages; the library's folder is none, and no checkout has it."""
        Path(*LIBRARY.split(".")[:-1]).mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        """Build one; the library in a folder of its own, since an extension module has the kernels too."""
        if ext.name != LIBRARY:
            super().build_extension(ext)
            return
        apart = copy.copy(self)  # extensions are built by several threads
        apart.build_temp = str(Path(self.build_temp, "library"))
        build_ext.build_extension(apart, ext)


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
        "pagedcache": ["py.typed", "include/*.h", "include/*.hpp"],
        "pagedcache.interop.jax": ["attend.c"],
        "pagedcache.replay": ["data/*"],
    },
    # Windows: MinGW with CC=clang. MSVC lacks vectors of GNU C, and GCC there misplaces those of AVX on the stack.
    options={"build_ext": {"parallel": os.cpu_count(), **({"compiler": "mingw32"} if os.name == "nt" else {})}},
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=[
        *cythonize_strictly([extension(pyx) for place in SOURCES for pyx in sorted(Path(place).glob("*/*.pyx"))]),
        *library(),
    ],
)
