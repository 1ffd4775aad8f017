"""Builds a module against the installed pagedcache, as a third party does."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import pagedcache.core

include = [str(Path(pagedcache.core.__file__).parent)]  # the headers that the .pxd files name
setup(name="stranger", ext_modules=cythonize([Extension("stranger", ["stranger.pyx"], include_dirs=include)]))
