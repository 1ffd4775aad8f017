"""Backend "numpy": attention to be read, in float32 NumPy; what every other backend is compared with."""

from pagedcache.backends.reference._backend import NumpyBackend
from pagedcache.backends.reference._storage import NumpyStorage

__all__ = ["NumpyBackend", "NumpyStorage"]
