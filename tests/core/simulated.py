"""What stands beside a table in the state machine, and believes it: memory, a table on a device, a reader of events."""

from collections.abc import Iterable, Sequence

import numpy as np
from model import About, Model, Prefix, framed
from numpy.typing import NDArray

from pagedcache.core import EventKind, SequenceTable, Step
from pagedcache.digests import prompt_digests

FINGERPRINT = b"of the simulated model"


def contents(about: About, tokens: Sequence[int], block_size: int) -> list[int]:
    """A number for each token that stands for its K/V: it depends on all before, and on what begins in the block."""
    frames, chain, out = framed(about.keys, block_size), hash(about.namespace.name), []
    for position, token in enumerate(tokens):
        begins = frames.get(position // block_size) if position % block_size == 0 else None
        chain = hash((chain, token, begins))
        out.append(chain)
    return out


class Memory:
    """K/V by slot, moved as the core says: all sources of one call are read before anything is written."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, int | None] = {}

    def read(self, slots: Iterable[int]) -> list[int | None]:
        return [self.slots.get(slot) for slot in slots]

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        assert len(set(destinations)) == len(destinations)
        self.slots.update(zip(destinations, self.read(sources), strict=True))

    def of_blocks(self, blocks: Iterable[int]) -> list[int]:
        return [block * self.block_size + k for block in blocks for k in range(self.block_size)]

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        sources, destinations = [src for src, _ in pairs], [dst for _, dst in pairs]
        assert not set(sources) & set(destinations), "a block is both source and destination"
        self.move(self.of_blocks(sources), self.of_blocks(destinations))

    def open_step(self, step: Step, written: Sequence[int]) -> None:
        """What a backend does with a step: forget what was in new blocks, copy, write."""
        self.slots.update(dict.fromkeys(self.of_blocks(step.new_blocks.tolist())))
        self.copy(step.copies.tolist())
        self.slots.update(zip(step.slots.tolist(), written, strict=True))


class Device:
    """Block tables kept elsewhere, by nothing but the diffs of steps."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], int] = {}

    def replay(self, diff: NDArray[np.int32]) -> None:
        self.entries.update({(row, logical): block for row, logical, block in diff.tolist()})

    def table(self, sid: int, blocks: int) -> list[int | None]:
        return [self.entries.get((sid & 0xFFFFFFFF, k)) for k in range(blocks)]


class Reader:
    """Knows what is published from events alone, by digests."""

    def __init__(self, model: Model, tell_tokens: bool) -> None:
        self.model, self.tell_tokens = model, tell_tokens
        self.digests: dict[Prefix, bytes] = {}
        self.told: set[bytes] = set()

    def digest(self, prefix: Prefix) -> bytes:
        if prefix not in self.digests:
            about, tokens = self.model.origin[prefix], [token for _, block in prefix[1] for token in block]
            longer = tokens + [0] * about.settled()  # keys may reach beyond what is published
            names = prompt_digests(longer, self.model.block_size, fingerprint=FINGERPRINT, **about._asdict())
            self.digests[prefix] = names[len(prefix[1]) - 1]
        return self.digests[prefix]

    def drain(self, table: SequenceTable) -> None:
        named = {self.digest(prefix): prefix for prefix in self.model.origin}
        for event in table.events():
            digest, parent = event["digest"].tobytes(), event["parent"].tobytes()
            if event["kind"] == EventKind.REMOVED:
                self.told.remove(digest)
                continue
            if event["kind"] == EventKind.MOVED:
                assert digest in self.told
                continue
            assert event["kind"] == EventKind.STORED and digest not in self.told
            namespace, blocks = named[digest]
            assert parent == (self.digest((namespace, blocks[:-1])) if len(blocks) > 1 else bytes(32))
            assert len(blocks) == 1 or parent in self.told
            assert not self.tell_tokens or tuple(event["tokens"].tolist()) == blocks[-1][1]
            self.told.add(digest)
        assert self.told == {self.digest(prefix) for prefix in self.model.published}
