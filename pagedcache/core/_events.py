"""Portable names for what the event log recorded."""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pagedcache.digests

NO_NODE = -1


class EventKind(IntEnum):
    """What an event of the prefix cache tells."""

    STORED = 1  #: a block can be found from here on
    REMOVED = 2  #: it no longer can
    CLEARED = 3  #: events were lost: forget everything; what is published follows


def event_dtype(block_size: int, tokens: bool) -> np.dtype[Any]:
    """Fields of one event."""
    fields: list[Any] = [("kind", "u1"), ("block", "<i4"), ("digest", "V32"), ("parent", "V32")]
    return np.dtype(fields + [("tokens", "<i4", (block_size,))] * tokens)


class EventNamer:
    """Digest of every published node, kept from event to event.

    Parameters
    ----------
    block_size : int
        Tokens per block.
    fingerprint : bytes
        ``CacheSpec.fingerprint``: part of every digest.
    """

    def __init__(self, block_size: int, fingerprint: bytes = b"") -> None:
        self._block_size, self._fingerprint = block_size, fingerprint
        self._digests: dict[int, tuple[bytes, bytes | None]] = {}  # node -> digest, secret of its namespace

    def named(self, events: list[tuple[Any, ...]], tokens: bool, *, cleared: bool) -> NDArray[Any]:
        """The log's (kind, node, parent, block, key entry, token bytes) as a structured array."""
        told = np.zeros(len(events) + cleared, event_dtype(self._block_size, tokens))
        if cleared:
            self._digests.clear()
            told[0]["kind"] = EventKind.CLEARED
        for event, (kind, node, parent, block, entry, data) in zip(told[cleared:], events, strict=True):
            event["kind"], event["block"] = kind, block
            if kind == EventKind.REMOVED:
                event["digest"] = np.void(self._digests.pop(node)[0])
                continue
            framed, _, secret = (b"", None, None) if entry is None else entry
            if parent == NO_NODE:
                before = pagedcache.digests.root_digest(self._block_size, self._fingerprint, secret)
            else:
                before, secret = self._digests[parent]
                event["parent"] = np.void(before)
            ids = np.frombuffer(data, np.int32)
            digest = pagedcache.digests.block_digest(before, ids, framed, secret)
            self._digests[node] = digest, secret
            event["digest"] = np.void(digest)
            if tokens:
                event["tokens"] = ids
        return told
