"""What the verbs of SequenceTable must show, in plain Python.

A row is a token list and the block ids that the core chose for it; the prefix cache is a plain dict from a
prefix (whole blocks of tokens) to the block that holds its end. Which free block is taken is the core's own
choice, so the ids of new blocks are read back through ``read``; everything else is predicted from DESIGN 3.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ADMITTED, NOT_NOW, NEVER_FITS = 0, 1, 2


@dataclass
class Row:
    pad: int = 0  # left positions that are never visible
    tokens: list[int] = field(default_factory=list)  # committed tokens, pad excluded
    blocks: list[int] = field(default_factory=list)  # in use, then allotted by admit
    publishes: bool = True  # False: padded, or a commit without tokens

    @property
    def position(self) -> int:
        return self.pad + len(self.tokens)


class Model:
    def __init__(
        self, num_blocks: int, block_size: int, max_sequences: int, max_length: int, read: Callable[[int], list[int]]
    ) -> None:
        self.num_blocks, self.block_size, self.max_sequences = num_blocks, block_size, max_sequences
        self.max_length, self.read = max_length, read
        self.rows: dict[int, Row] = {}
        self.published: dict[tuple[int, ...], int] = {}
        self.step: dict[int, tuple[list[int], list[int]]] | None = None  # id -> (blocks before, new tokens)
        self.deferred: set[int] = set()  # given up by rows of the open step: usable when it closes

    def span(self, length: int) -> int:
        return -(-length // self.block_size)

    def in_use(self) -> set[int]:
        return self.deferred.union(*(row.blocks for row in self.rows.values()))

    def free(self) -> int:
        return self.num_blocks - len(self.in_use())

    def free_rows(self) -> int:
        return self.max_sequences - len(self.rows.keys() | (self.step or {}).keys())

    def hits(self, prompt: Sequence[int]) -> list[int]:
        """Blocks that a prompt finds: at least one token is left to compute."""
        found: list[int] = []
        for end in range(self.block_size, len(prompt), self.block_size):
            if tuple(prompt[:end]) not in self.published:
                break
            found.append(self.published[tuple(prompt[:end])])
        return found

    def expect_admit(self, prompt: Sequence[int], pad: int, reserve: int) -> tuple[int, list[int]]:
        length, found = pad + len(prompt) + reserve, [] if pad else self.hits(prompt)
        if length > self.max_length or self.span(length) > self.num_blocks:
            return NEVER_FITS, []
        if self.free_rows() < 1 or self.span(length) - len(self.in_use() & set(found)) > self.free():
            return NOT_NOW, []
        return ADMITTED, found

    def admitted(self, sid: int, prompt: Sequence[int], pad: int, reserve: int, found: list[int]) -> None:
        row = Row(pad, list(prompt[: len(found) * self.block_size]), found, not pad)
        self._take(row, sid, self.span(pad + len(prompt) + reserve))
        self.rows[sid] = row

    def _take(self, row: Row, sid: int, total: int, copied: int | None = None) -> None:
        """Read a row's blocks back: new ones (the tail, and the copy at `copied`) were nobody's and leave the index."""
        blocks = self.read(sid)
        fresh = [b for i, b in enumerate(blocks) if i >= len(row.blocks) or i == copied]
        assert [b for i, b in enumerate(blocks[: len(row.blocks)]) if i != copied] == [
            b for i, b in enumerate(row.blocks) if i != copied
        ], "a verb changed blocks it had no business with"
        assert len(blocks) == total, f"row holds {len(blocks)} blocks, not {total}"
        assert len(set(fresh)) == len(fresh) and not set(fresh) & (self.in_use() | set(row.blocks)), "block of another"
        self.published = {p: b for p, b in self.published.items() if b not in fresh}
        row.blocks = blocks

    def plan(self, ids: Sequence[int], counts: Sequence[int]) -> tuple[list[int], int]:
        """The rows whose tail must be copied before they write, and how many blocks the whole extend takes."""
        holders = Counter(b for row in self.rows.values() for b in row.blocks)
        copies, need = [], 0
        furthest: dict[int, int] = {}  # block -> position of a row that copies it, and that abandon may give it back
        for sid, n in zip(ids, counts, strict=True):
            row = self.rows[sid]
            if n and row.position % self.block_size:
                tail = row.blocks[row.position // self.block_size]
                written = row.position < furthest.get(tail, 0)
                if holders[tail] > 1 or tail in self.published.values() or written:
                    copies.append(sid)
                    furthest[tail] = max(row.position, furthest.get(tail, 0))
                    holders[tail] -= 1
            need += max(0, self.span(row.position + n) - len(row.blocks))
        return copies, need + len(copies)

    def extend(self, ids: Sequence[int], news: Sequence[list[int]]) -> list[tuple[int, int]]:
        """Open the step; the copies (source, destination) it must have."""
        copies, pairs = self.plan(ids, [len(new) for new in news])[0], []
        before = {sid: list(self.rows[sid].blocks) for sid in ids}
        for sid in copies:  # sources first: they stay in use until the step closes
            self.deferred.add(before[sid][self.rows[sid].position // self.block_size])
        for sid, new in zip(ids, news, strict=True):
            row = self.rows[sid]
            at = row.position // self.block_size if sid in copies else None
            self._take(row, sid, max(len(row.blocks), self.span(row.position + len(new))), at)
            if at is not None:
                pairs.append((before[sid][at], row.blocks[at]))
        self.step = {sid: (before[sid], new) for sid, new in zip(ids, news, strict=True)}
        return pairs

    def commit(self, known: bool) -> int:
        """Close the step; the number of blocks that it newly publishes."""
        assert self.step is not None
        published = 0
        for sid, (_, new) in self.step.items():
            if (row := self.rows.get(sid)) is None:
                continue
            first, row.publishes = row.position // self.block_size, row.publishes and known
            row.tokens += new
            for i in range(first, row.position // self.block_size) if row.publishes else ():
                prefix = tuple(row.tokens[: (i + 1) * self.block_size])
                published += prefix not in self.published
                row.blocks[i] = self.published.setdefault(prefix, row.blocks[i])
        self.step, self.deferred = None, set()
        return published

    def abandon(self) -> None:
        assert self.step is not None
        for sid, (before, _) in self.step.items():
            if sid in self.rows:
                self.rows[sid].blocks = before
        self.step, self.deferred = None, set()

    def forked(self, sid: int, parent: int, at: int) -> None:
        row = self.rows[parent]
        self.rows[sid] = Row(row.pad, row.tokens[: at - row.pad], row.blocks[: self.span(at)], row.publishes)

    def truncate(self, sid: int, position: int) -> None:
        row = self.rows[sid]
        row.tokens, row.blocks = row.tokens[: position - row.pad], row.blocks[: self.span(position)]

    def release(self, sid: int) -> None:
        row = self.rows.pop(sid)
        if self.step is not None and sid in self.step:
            self.deferred |= set(row.blocks)
