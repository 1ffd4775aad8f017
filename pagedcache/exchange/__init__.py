"""Arrays between libraries, without copies: DLPack and NumPy's protocols, bfloat16 and fp8 included."""

from pagedcache.exchange._arrays import as_floats, as_numpy, bits_of
from pagedcache.exchange._dtypes import numpy_dtype
from pagedcache.exchange._export import Exported, export

__all__ = ["Exported", "as_floats", "as_numpy", "bits_of", "export", "numpy_dtype"]
