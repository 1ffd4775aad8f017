"""A paged cache for ``model.generate`` of transformers: beams share blocks, and attention reads them where they are.

Importing this registers the attention implementation ``"pagedcache"``; see `PagedCache`.
"""

from pagedcache.interop.transformers._attention import register
from pagedcache.interop.transformers._cache import PagedCache
from pagedcache.interop.transformers._threads import borrow_threads

__all__ = ["PagedCache"]

register()
borrow_threads()
