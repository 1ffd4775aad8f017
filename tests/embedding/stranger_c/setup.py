"""Builds a C and a Cython module over the table of functions, as a third party does: nothing is linked."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import pagedcache

include = [pagedcache.get_include()]
warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-cast-function-type"]
setup(
    name="stranger_c",
    ext_modules=[
        Extension("c_module", ["c_module.c"], include_dirs=include, extra_compile_args=["-std=c99", *warnings]),
        *cythonize([Extension("cython_module", ["cython_module.pyx"], include_dirs=include)]),
    ],
)
