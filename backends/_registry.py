"""Backends by name: this package's own and those that other packages declare as entry points."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pagedcache.errors import UnknownBackend

if TYPE_CHECKING:
    from pagedcache.backends.protocol import Backend

__all__ = ["get", "names"]

GROUP = "pagedcache.backends"
BUILT_IN = {  # found without an installed package too
    "cpu": "pagedcache.backends.cpu:CpuBackend",
    "cuda": "pagedcache.backends.cuda:CudaBackend",
    "cuda-emulated": "pagedcache.backends.cuda_emulated:CudaEmulatedBackend",
    "numpy": "pagedcache.backends.reference:NumpyBackend",
}


def names() -> list[str]:
    """Return the names of the backends that are installed, sorted; none of them is imported.

    >>> "numpy" in names()
    True
    """
    return sorted(_locations())


def get(backend: "str | Backend") -> "Backend":
    """Return the backend of this name, made once per process; a backend itself is returned as it is.

    Raises
    ------
    UnknownBackend
        No such name is installed, or what is installed under it cannot be imported.
    TypeError
        Neither a name nor a backend.

    Examples
    --------
    >>> get("numpy").device
    'cpu'
    """
    if isinstance(backend, str):
        return _make(backend)
    from pagedcache.backends.protocol import Backend

    if isinstance(backend, type) or not isinstance(backend, Backend):
        raise TypeError(f"{backend!r} is no backend: give a name ({', '.join(names())}) or an instance")
    return backend


@cache
def _make(name: str) -> "Backend":
    location = _locations().get(name)
    if location is None:
        raise UnknownBackend(f"no backend is named {name!r}; installed are {', '.join(names())}")
    module, _, attribute = location.partition(":")
    try:
        return cast("Backend", getattr(import_module(module), attribute)())
    except ImportError as error:
        raise UnknownBackend(f"backend {name!r} ({location}) cannot be imported: {error}") from error


def _locations() -> dict[str, str]:
    from importlib.metadata import entry_points  # some ms, needed only where a backend is looked up

    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN
