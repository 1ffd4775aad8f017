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


class About(NamedTuple):
    """What blocks that continue each other have in common, until a key begins."""

    secret: bytes | None  # of the namespace
    namespace: bytes
    adapter: bytes  # that all tokens so far were computed with, or b""
    keyed: bool  # whether other keys have begun

    def after(self, framed: bytes, is_first: bool) -> "About":
        """The same with what begins in the next block, the first one of a prompt or a later one."""
        adapter, keyed = self.adapter, self.keyed
        for part in parts(framed):
            if part.kind == "adapter" and is_first and part.offset == 0 == part.extent:
                adapter = part.value
            elif part.kind != NAMESPACE:
                keyed = True
        return About(self.secret, self.namespace, adapter, keyed)


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
        self._known: dict[int, tuple[bytes, About]] = {}  # node -> digest of its block, and what it is about

    def named(self, events: list[LogEntry], tokens: bool, *, cleared: bool) -> NDArray[Any]:
        """The log's (kind, node, parent, block, key entry, token bytes) as a structured array."""
        told = np.zeros(len(events) + cleared, event_dtype(self._block_size, tokens))
        if cleared:
            self._known.clear()
            told[0] = (EventKind.CLEARED, 0, NO_DIGEST, NO_DIGEST, b"", b"", False, *[0] * tokens)
        if not events:
            return told
        names = [self._name(*event) for event in events]
        tail = told[cleared:]
        tail["kind"] = [event[0] for event in events]
        tail["block"] = [event[3] for event in events]
        tail["digest"] = np.frombuffer(b"".join(digest for digest, _, _ in names), "V32")
        tail["parent"] = np.frombuffer(b"".join(parent for _, parent, _ in names), "V32")
        tail["namespace"] = [about.namespace for _, _, about in names]
        tail["adapter"] = [about.adapter for _, _, about in names]
        tail["keyed"] = [about.keyed for _, _, about in names]
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
    ) -> tuple[bytes, bytes, About]:
        """Digests of the block and of the one before it, zeros where there is none to tell; what it is about."""
        if kind != EventKind.STORED:
            digest, about = self._known[node] if kind == EventKind.MOVED else self._known.pop(node)
            return digest, NO_DIGEST, about
        framed, namespace, secret = entry or (b"", b"", None)
        told = NO_DIGEST
        if parent == NO_NODE:
            before = pagedcache.digests.root_digest(self._block_size, self._fingerprint, secret)
            about = About(secret, namespace, b"", False)
        else:
            told, about = self._known[parent]
            before = told
        if framed:
            about = about.after(framed, parent == NO_NODE)
        ids = data if sys.byteorder == "little" else np.frombuffer(data, np.int32).astype("<i4").tobytes()
        digest = pagedcache.digests.chain(before, memoryview(ids), self._block_size, framed, about.secret)
        self._known[node] = digest, about
        return digest, told, about
