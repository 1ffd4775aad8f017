"""Arrays between libraries, without copies: DLPack and NumPy's protocols, bfloat16 and fp8 included."""

from pagedcache.exchange._arrays import as_numpy, bits_of
from pagedcache.exchange._export import Exported, export

__all__ = ["Exported", "as_numpy", "bits_of", "export"]
