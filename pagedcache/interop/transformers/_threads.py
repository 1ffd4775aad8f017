"""The kernels on torch's own threads.

torch's OpenMP threads wait awake for some milliseconds after each of its operators, on the cores that the kernels'
own threads would need between two of them. So the kernels borrow these: they are there, and awake.
"""

import ctypes
from pathlib import Path

import torch

from pagedcache.backends.cpu import _native

__all__ = ["borrow_threads"]


def borrow_threads() -> bool:
    """Let all kernels of the backend cpu run on torch's OpenMP threads; False where torch has not GNU's."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        address = ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p)
        ctypes.CDLL(_native.__file__).pc_borrow_threads(address)
        return True
    return False
