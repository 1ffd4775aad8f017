"""Portable names for what the event log recorded."""

import sys
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pagedcache.digests

NO_NODE = -1
NO_DIGEST = bytes(32)


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
        if not events:
            return told
        pairs = [self._digest(*event) for event in events]
        tail = told[cleared:]
        tail["kind"] = [event[0] for event in events]
        tail["block"] = [event[3] for event in events]
        tail["digest"] = np.frombuffer(b"".join(digest for digest, _ in pairs), "V32")
        tail["parent"] = np.frombuffer(b"".join(parent for _, parent in pairs), "V32")
        if tokens:
            ids = np.frombuffer(b"".join(event[5] for event in events), np.int32).reshape(len(events), -1)
            tail["tokens"] = np.where(tail["kind"][:, None] == EventKind.STORED, ids, 0)
        return told

    def _digest(
        self,
        kind: int,
        node: int,
        parent: int,
        block: int,
        entry: tuple[bytes, bytes, bytes | None] | None,
        data: bytes,
    ) -> tuple[bytes, bytes]:
        """Digests of the event's block and of the one before it; zeros where there is none to tell."""
        if kind == EventKind.REMOVED:
            return self._digests.pop(node)[0], NO_DIGEST
        framed, _, secret = entry or (b"", b"", None)
        told = NO_DIGEST
        if parent == NO_NODE:
            before = pagedcache.digests.root_digest(self._block_size, self._fingerprint, secret)
        else:
            before, secret = self._digests[parent]
            told = before
        ids = data if sys.byteorder == "little" else np.frombuffer(data, np.int32).astype("<i4").tobytes()
        digest = pagedcache.digests.chain(before, memoryview(ids), self._block_size, framed, secret)
        self._digests[node] = digest, secret
        return digest, told
