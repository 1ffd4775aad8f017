"""The C interface: where its header and its library are, and its table of functions for extension modules.

    cc decode.c $(python -m pagedcache.capi --cflags --libs)

``pagedcache.h`` says what the functions do. An extension module takes the table from the capsule
``pagedcache.capi._C_API`` (by ``pagedcache_python.h``), and needs not be linked with the library.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

__all__ = ["API_VERSION", "get_include", "get_library", "load_library"]

PACKAGE = Path(__file__).resolve().parents[1]
CAPSULE = b"pagedcache.capi._C_API"  # capsules keep the address of their name, and so must we

API_VERSION = 1
"""PAGEDCACHE_API_VERSION of the header."""


def get_include() -> str:
    """Return the folder of ``pagedcache.h``, for the compiler's ``-I``.

    >>> Path(get_include(), "pagedcache.h").is_file()
    True
    """
    return str(PACKAGE / "include")


def get_library() -> str:
    """Return the path of the shared library; programs link with ``-lpagedcache`` from its folder.

    >>> Path(get_library()).name
    'libpagedcache.so'
    """
    return str(PACKAGE / "lib" / "libpagedcache.so")


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the library, loaded: for ctypes, and whoever wants addresses.

    Examples
    --------
    >>> get_api = load_library().pagedcache_get_api
    >>> get_api.restype = ctypes.c_void_p
    >>> get_api(API_VERSION) is not None, get_api(API_VERSION + 1)
    (True, None)
    """
    return ctypes.CDLL(get_library())


@functools.cache
def _capsule() -> Any:
    get_api = load_library().pagedcache_get_api
    get_api.restype, get_api.argtypes = ctypes.c_void_p, [ctypes.c_int32]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(get_api(API_VERSION), CAPSULE, None)


def __getattr__(name: str) -> Any:
    if name == "_C_API":  # made when it is first asked for: importing pagedcache loads no library
        return _capsule()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
