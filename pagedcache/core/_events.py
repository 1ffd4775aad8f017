"""Portable names for what the event log recorded."""

import sys
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import pagedcache.digests
from pagedcache.keys import NAMESPACE, parts

NO_NODE = -1
NO_DIGEST = bytes(32)

LogEntry = tuple[int, int, int, int, tuple[bytes, bytes, bytes | None] | None, bytes]


class EventKind(IntEnum):
    """What an event of the prefix cache tells."""

    STORED = 1  #: a block can be found from here on
    REMOVED = 2  #: it no longer can
    CLEARED = 3  #: events were lost: forget everything; what is published follows
    MOVED = 4  #: it can still be found; its content is in this block from here on


def event_dtype(block_size: int, tokens: bool) -> np.dtype[Any]:
    """Fields of one event."""
    fields: list[Any] = [("kind", "u1"), ("block", "<i4"), ("digest", "V32"), ("parent", "V32")]
    fields += [("namespace", "O"), ("adapter", "O"), ("keyed", "?")]
    return np.dtype(fields + [("tokens", "<i4", (block_size,))] * tokens)


class Named(NamedTuple):
    """What is known of a published block, and of a prompt before its first one."""

    digest: bytes
    secret: bytes | None  # of its namespace
    namespace: bytes
    adapter: bytes = b""  # that all its tokens, and those before them, were computed with
    keyed: bool = False  # whether other keys begin in it or in a block before it


class EventNamer:
    """What is known of every published block, kept from event to event.

    Parameters
    ----------
    block_size : int
        Tokens per block.
    fingerprint : bytes
        ``CacheSpec.fingerprint``: part of every digest.
    """

    def __init__(self, block_size: int, fingerprint: bytes = b"") -> None:
        self._block_size, self._fingerprint = block_size, fingerprint
        self._known: dict[int, Named] = {}  # node -> its block

    def named(self, events: list[LogEntry], tokens: bool, *, cleared: bool) -> NDArray[Any]:
        """The log's (kind, node, parent, block, key entry, token bytes) as a structured array."""
        told = np.zeros(len(events) + cleared, event_dtype(self._block_size, tokens))
        if cleared:
            self._known.clear()
            told[0] = (EventKind.CLEARED, 0, NO_DIGEST, NO_DIGEST, b"", b"", False, *[0] * tokens)
        if not events:
            return told
        pairs = [self._name(*event) for event in events]
        tail = told[cleared:]
        tail["kind"] = [event[0] for event in events]
        tail["block"] = [event[3] for event in events]
        tail["digest"] = np.frombuffer(b"".join(block.digest for block, _ in pairs), "V32")
        tail["parent"] = np.frombuffer(b"".join(parent for _, parent in pairs), "V32")
        tail["namespace"] = [block.namespace for block, _ in pairs]
        tail["adapter"] = [block.adapter for block, _ in pairs]
        tail["keyed"] = [block.keyed for block, _ in pairs]
        if tokens:
            ids = np.frombuffer(b"".join(event[5] for event in events), np.int32).reshape(len(events), -1)
            tail["tokens"] = np.where(tail["kind"][:, None] == EventKind.STORED, ids, 0)
        return told

    def _name(
        self,
        kind: int,
        node: int,
        parent: int,
        block: int,
        entry: tuple[bytes, bytes, bytes | None] | None,
        data: bytes,
    ) -> tuple[Named, bytes]:
        """The event's block, and the digest of the one before it; zeros where there is none to tell."""
        if kind == EventKind.REMOVED:
            return self._known.pop(node), NO_DIGEST
        if kind == EventKind.MOVED:
            return self._known[node], NO_DIGEST
        framed, namespace, secret = entry or (b"", b"", None)
        if parent == NO_NODE:
            root = pagedcache.digests.root_digest(self._block_size, self._fingerprint, secret)
            before, told = Named(root, secret, namespace), NO_DIGEST
        else:
            before = self._known[parent]
            told = before.digest
        adapter, keyed = before.adapter, before.keyed
        for part in parts(framed):
            if part.kind == "adapter" and parent == NO_NODE and part.offset == 0 == part.extent:
                adapter = part.value
            elif part.kind != NAMESPACE:
                keyed = True
        ids = data if sys.byteorder == "little" else np.frombuffer(data, np.int32).astype("<i4").tobytes()
        digest = pagedcache.digests.chain(before.digest, memoryview(ids), self._block_size, framed, before.secret)
        self._known[node] = before._replace(digest=digest, adapter=adapter, keyed=keyed)
        return self._known[node], told
