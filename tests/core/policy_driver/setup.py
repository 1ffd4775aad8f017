"""Builds the driver against the installed pagedcache."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import pagedcache.core

include = [str(Path(pagedcache.core.__file__).parent)]  # the headers that the .pxd files name
flags = ["-O0", "-g0"]  # built for one run
driver = Extension("policy_driver", ["policy_driver.pyx"], include_dirs=include, extra_compile_args=flags)
setup(name="policy-driver", ext_modules=cythonize([driver], language_level=3))
