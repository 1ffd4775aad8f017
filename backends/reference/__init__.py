"""Backend "numpy": attention to be read, in float32 NumPy; what every other backend is compared with."""

from pagedcache.backends.reference._backend import NumpyBackend

__all__ = ["NumpyBackend"]
