"""A paged cache for ``model.generate`` of transformers: beams share blocks, and attention reads them where they are.

Importing this registers the attention implementation ``"pagedcache"``; see `PagedCache`.
"""

from pagedcache.interop.transformers._attention import register
from pagedcache.interop.transformers._cache import PagedCache

__all__ = ["PagedCache"]

register()
