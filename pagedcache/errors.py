"""Every exception that pagedcache raises on its own account.

::

    PagedCacheError
    ├── OutOfBlocks            (MemoryError)    the pool has not enough usable blocks
    ├── OutOfSequences         (MemoryError)    all ``max_sequences`` rows are in use
    ├── InvalidSequence        (LookupError)    a stale, foreign or released handle
    ├── InvalidBlock           (ValueError)     a block id out of range, free, or freed twice
    ├── SwappedOut             (RuntimeError)   the sequence's blocks are in another tier
    ├── PositionReleased       (ValueError)     a position whose block a window has let go
    ├── StepError              (RuntimeError)
    │   ├── StepBusy                            ``steps_in_flight`` steps are open already
    │   ├── StepOpen                            not legal for a sequence that an open step names
    │   └── StepClosed                          a closed step was used, or not the next one was to be closed
    ├── CacheClosed            (RuntimeError)   a verb on a closed cache
    ├── ViewsOutstanding       (BufferError)    ``close()`` while arrays of the storage are in use
    ├── TierError              (OSError)        a tier cannot do what was asked of it
    │   ├── TierLocked                          another process writes there
    │   ├── LoadFailed                          K/V that a step waits for did not come
    │   ├── CorruptFile                         a file that is damaged, or is none of ours
    │   └── ForeignFormat                       stored blocks of another model, dtype, shape or version
    ├── UnknownBackend         (LookupError)    no installed backend has this name
    ├── UnsupportedByBackend   (ValueError)     the backend lacks what a spec or an ``attend`` asks for
    └── UnsupportedModel       (ValueError)     a model file that the runners cannot compute

Each also derives from the built-in exception in brackets, so that callers who know nothing of
pagedcache handle it rightly. Wrong arguments raise plain ``ValueError`` or ``TypeError``.
A call that raises has changed nothing; only ``attend``, refused late, may have stored K/V of the
open step's own new tokens, which count for nothing before ``commit``.
"""

__all__ = [
    "CacheClosed",
    "CorruptFile",
    "ForeignFormat",
    "InvalidBlock",
    "InvalidSequence",
    "LoadFailed",
    "OutOfBlocks",
    "OutOfSequences",
    "PagedCacheError",
    "PositionReleased",
    "StepBusy",
    "StepClosed",
    "StepError",
    "StepOpen",
    "SwappedOut",
    "TierError",
    "TierLocked",
    "UnknownBackend",
    "UnsupportedByBackend",
    "UnsupportedModel",
    "ViewsOutstanding",
]


class PagedCacheError(Exception):
    """Base of every exception that pagedcache raises on its own account."""


class OutOfBlocks(PagedCacheError, MemoryError):
    """The pool has fewer usable blocks than the call needs; nothing was changed."""


class OutOfSequences(PagedCacheError, MemoryError):
    """All ``max_sequences`` rows of the table are in use; nothing was changed."""


class InvalidSequence(PagedCacheError, LookupError):
    """The handle names no live sequence of this cache: it was released, or is foreign."""


class InvalidBlock(PagedCacheError, ValueError):
    """The block id is out of range, or names a block that is free."""


class SwappedOut(PagedCacheError, RuntimeError):
    """The sequence was swapped out; only ``swap_in`` and ``release`` are legal for it."""


class PositionReleased(PagedCacheError, ValueError):
    """The position lies before what a window has kept; the message names the lowest one left."""


class StepError(PagedCacheError, RuntimeError):
    """Base of the errors about open and closed steps."""


class StepBusy(StepError):
    """``steps_in_flight`` steps are open already: commit or abandon one first."""


class StepOpen(StepError):
    """The verb is not legal for a sequence that an open step names, or, for ``compact``, while any is open."""


class StepClosed(StepError):
    """The step was committed or abandoned before, or is not the next one to close."""


class CacheClosed(PagedCacheError, RuntimeError):
    """The cache was closed."""


class ViewsOutstanding(PagedCacheError, BufferError):
    """Arrays of the storage are still in use, so its memory cannot be given back."""


class TierError(PagedCacheError, OSError):
    """A tier cannot do what was asked of it; where its cache asks, that is a miss and no error."""


class TierLocked(TierError):
    """Another process has the tier open for writing; readers may open it all the same."""


class LoadFailed(TierError):
    """K/V that a step attends to did not come from its tier; abandon the step and compute it."""


class CorruptFile(TierError):
    """A file is damaged, or none that pagedcache has written; the message names what is wrong."""


class ForeignFormat(TierError):
    """Stored blocks are of another model, dtype, shape or format version; the message names the field."""


class UnknownBackend(PagedCacheError, LookupError):
    """No installed backend has this name."""


class UnsupportedByBackend(PagedCacheError, ValueError):
    """The backend lacks a dtype, size, variant or precision that a CacheSpec or a call of ``attend`` asks for."""


class UnsupportedModel(PagedCacheError, ValueError):
    """The model file needs something that the model runners do not compute."""
