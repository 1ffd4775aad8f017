"""pagedcache: the KV cache of transformer inference, in blocks, without a framework.

Start with `KVCache` and `CacheSpec`, or with the five small classes of `pagedcache.simple`; ``docs/`` has
the guide, ``pagedcache.backends`` the places where bytes live, ``pagedcache.testing`` the suite that every
backend passes.
"""

try:
    from pagedcache.core import (
        ARC,
        LFUDA,
        LRU,
        S3FIFO,
        Admission,
        AdmitStatus,
        BlockPool,
        CacheStats,
        EventKind,
        EvictionPolicy,
        NamespaceQuotas,
        NeverHitFirst,
        PriorityTTL,
        SequenceTable,
        Step,
    )
except ModuleNotFoundError as error:  # met by everyone who starts Python in a clone
    if not (error.name or "").startswith("pagedcache.core"):
        raise
    raise ImportError(
        f"{__path__[0]} is a source tree that is not built: start Python in another folder, "
        "or build it with 'pip install -e .'"
    ) from error

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pagedcache.cache import KVCache
from pagedcache.errors import (
    CacheClosed,
    InvalidBlock,
    InvalidSequence,
    OutOfBlocks,
    OutOfSequences,
    PagedCacheError,
    PositionReleased,
    StepBusy,
    StepClosed,
    StepError,
    StepOpen,
    SwappedOut,
    UnknownBackend,
    UnsupportedByBackend,
    UnsupportedModel,
    ViewsOutstanding,
)
from pagedcache.keys import Key, Namespace, adapter, content, salt
from pagedcache.spec import CacheSpec, LayerGroup

if TYPE_CHECKING:
    from pagedcache.capi import get_include, get_library
    from pagedcache.simple import BlockManager, Page, PagedAttention, PageTable, SequenceManager

__version__ = "0.1.0"

__all__ = [
    "ARC",
    "LFUDA",
    "LRU",
    "S3FIFO",
    "Admission",
    "AdmitStatus",
    "BlockManager",
    "BlockPool",
    "CacheClosed",
    "CacheSpec",
    "CacheStats",
    "EventKind",
    "EvictionPolicy",
    "InvalidBlock",
    "InvalidSequence",
    "KVCache",
    "Key",
    "LayerGroup",
    "Namespace",
    "NamespaceQuotas",
    "NeverHitFirst",
    "OutOfBlocks",
    "OutOfSequences",
    "Page",
    "PageTable",
    "PagedAttention",
    "PagedCacheError",
    "PositionReleased",
    "PriorityTTL",
    "SequenceManager",
    "SequenceTable",
    "Step",
    "StepBusy",
    "StepClosed",
    "StepError",
    "StepOpen",
    "SwappedOut",
    "UnknownBackend",
    "UnsupportedByBackend",
    "UnsupportedModel",
    "ViewsOutstanding",
    "adapter",
    "content",
    "get_include",
    "get_library",
    "salt",
]

_WHERE = {  # what not every program needs is imported when it is first asked for
    **dict.fromkeys(("get_include", "get_library"), "capi"),
    **dict.fromkeys(("BlockManager", "Page", "PageTable", "PagedAttention", "SequenceManager"), "simple"),
}


def __getattr__(name: str) -> Any:
    if name == "capi":  # PyCapsule_Import looks for it here
        return import_module(f"{__name__}.capi")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
