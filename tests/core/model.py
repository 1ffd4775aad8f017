"""What the verbs of SequenceTable must show, in plain Python.

A row is a token list and the block ids that the core chose for it; the prefix cache is a plain dict from what a
prefix is (see `Model.prefix`) to the block that holds its end. Which vacant block is taken is the core's own choice, so
the ids of new blocks are read back through ``read``; everything else is predicted from DESIGN 3.
"""

from collections.abc import Callable, Iterable, Sequence

from holdings import AWAY, About, Copy, Holdings, OpenStep, Prefix, Row, agreeing, framed

__all__ = ["ADMITTED", "AWAY", "NEVER_FITS", "NOT_NOW", "About", "Model", "Prefix", "framed"]

ADMITTED, NOT_NOW, NEVER_FITS = 0, 1, 2
SIBLINGS = 16  # blocks after the same prefix that a head is looked for in


class Model(Holdings):
    """The verbs, each with what it changes."""

    def __init__(
        self, num_blocks: int, block_size: int, max_sequences: int, max_length: int, read: Callable[[int], list[int]]
    ) -> None:
        super().__init__(num_blocks, block_size, max_sequences)
        self.max_length, self.read = max_length, read
        self.published: dict[Prefix, int] = {}
        self.origin: dict[Prefix, About] = {}  # of the row that published it last
        self.serial = self.evictions = self.copies = 0

    # ---- the prefix cache

    def prefix(self, about: About, tokens: Sequence[int], blocks: int) -> Prefix:
        """What the first blocks are: their tokens, and what begins in each; this alone decides what is the same."""
        size, frames = self.block_size, framed(about.keys, self.block_size)
        told = ((frames.get(i, b""), tuple(tokens[i * size : (i + 1) * size])) for i in range(blocks))
        return bytes(about.namespace.name), tuple(told)

    def hits(self, about: About, prompt: Sequence[int], left: int = 1) -> list[int]:
        """Blocks that a prompt finds; at least `left` tokens are left to compute."""
        found: list[int] = []
        while (len(found) + 1) * self.block_size <= len(prompt) - left:
            block = self.published.get(self.prefix(about, prompt, len(found) + 1))
            if block is None:
                break
            found.append(block)
        return found

    def head(self, about: About, prompt: Sequence[int], blocks: int) -> tuple[int, int]:
        """How many tokens of the block after the first `blocks` ones a prompt finds, and where."""
        start, (border, before) = blocks * self.block_size, self.prefix(about, prompt, blocks)
        begins, wanted = framed(about.keys, self.block_size).get(blocks, b""), prompt[start:-1][: self.block_size - 1]
        siblings = [p for p in self.published if p[1][:-1] == before and (p[0] == border or not before)]
        best = 0, 0
        for prefix in siblings[: -SIBLINGS - 1 : -1]:  # the newest first
            frame, tokens = prefix[1][-1]
            if (prefix[0], frame) == (border, begins):
                same = agreeing(wanted, tokens)
                best = (same, self.published[prefix]) if same > best[0] else best
        return best

    def shares(self, about: About, prompt: Sequence[int], total: int) -> tuple[list[int], int]:
        """Blocks that a prompt finds which needs `total`, the last one perhaps in part; and the tokens there.

        A block that is shared in part is held beside its own; short of just that one, it does with whole blocks.
        """
        found = self.hits(about, prompt)
        tokens, block = self.head(about, prompt, len(found))
        is_short = total - len(found) == self.free() - len(set(found) - self.used()) and block not in self.used()
        if not tokens or is_short:
            return found, len(found) * self.block_size
        return [*found, block], len(found) * self.block_size + tokens

    def idle(self) -> set[int]:
        return set(self.published.values()) - self.used()

    def forget(self, gone: Callable[[Prefix, int], bool]) -> int:
        """Drop from the index what is `gone`; how many."""
        before = len(self.published)
        self.published = {p: b for p, b in self.published.items() if not gone(p, b)}
        return before - len(self.published)

    def take(self, row: Row, sid: int, total: int, but: Iterable[int] = ()) -> None:
        """Read a row's blocks back: new ones (the tail, and those at `but`) were nobody's, and leave the index."""
        blocks, was, but = self.read(sid), row.blocks, set(but)
        but |= set(range(len(was), len(blocks)))
        fresh = {b for i, b in enumerate(blocks) if i in but}
        assert len(blocks) == total, f"row holds {len(blocks)} blocks, not {total}"
        assert all(b == was[i] for i, b in enumerate(blocks) if i not in but), "blocks that it had no business with"
        assert len(fresh) == len(but) and not fresh & (self.used() | set(was)), "block of another"
        self.evictions += self.forget(lambda _, block: block in fresh)
        row.blocks = blocks
        self.used()

    def may_evict(self, wanted: int) -> int:
        """What `evictions` comes to when so many blocks are taken: no more go than there are too few vacant ones."""
        vacant = self.free() - len(self.idle())
        return self.evictions + max(0, wanted - vacant)

    def borrow(self, blocks: Sequence[int]) -> None:
        assert not set(blocks) & self.used()
        self.evictions += self.forget(lambda _, block: block in blocks)
        self.borrowed += blocks

    def adopt(self, about: About, prompt: Sequence[int], blocks: Sequence[int], first: int) -> int:
        """A caller's blocks become what a prompt finds."""
        self.borrowed = [block for block in self.borrowed if block not in blocks]
        found, before = self.hits(about, prompt[: first * self.block_size], left=0), len(self.published)
        for k, block in enumerate(blocks if len(found) == first else []):
            self.held |= set(found)  # for a moment
            prefix = self.prefix(about, prompt, first + k + 1)
            if prefix not in self.published:
                self.published[prefix], self.origin[prefix] = block, about
        return len(self.published) - before

    def pinned(self, name: str, about: About, prompts: Sequence[Sequence[int]]) -> int:
        """Blocks to pin, and pins them where they are not too many."""
        found = [block for prompt in prompts for block in self.hits(about, prompt, left=0)]
        if sum(len(blocks) for _, blocks in self.pins.values()) + len(found) <= self.num_blocks // 2:
            self.pins[name] = bytes(about.namespace.name), found
        return len(found)

    def invalidate(self, namespace: bytes | None) -> int:
        """None: all of them."""
        self.pins = {name: pin for name, pin in self.pins.items() if namespace not in (None, pin[0])}
        for row in (*self.rows.values(), *self.doomed.values()):
            row.publishes = row.publishes and namespace not in (None, row.about.namespace.name)
        self.used()
        return self.forget(lambda prefix, _: namespace in (None, prefix[0]))

    # ---- sequences

    def expect_admit(self, about: About, prompt: Sequence[int], pad: int, reserve: int) -> tuple[int, list[int], int]:
        """Status, blocks shared, tokens cached."""
        length = pad + len(prompt) + reserve
        if length > self.max_length or self.span(length) > self.num_blocks:
            return NEVER_FITS, [], 0
        found, cached = ([], 0) if pad else self.shares(about, prompt, self.span(length))
        total = self.span(length) + (cached % self.block_size > 0)
        if self.free_rows() < 1 or total - len(self.used() & set(found)) > self.free():
            return NOT_NOW, [], 0
        return ADMITTED, found, cached

    def admitted(
        self, sid: int, about: About, prompt: list[int], pad: int, reserve: int, found: list[int], cached: int
    ) -> None:
        partial = cached if cached % self.block_size else 0
        total = self.span(len(prompt) + pad + reserve) + (partial > 0)
        row = self.rows[sid] = Row(about, prompt[:cached], found, pad, not pad, partial=partial)
        expected = self.may_evict(total - len(found))
        self.take(row, sid, total)
        assert self.evictions == expected, "evicted more than it had to"

    def cut(self, row: Row, at: int) -> Row:
        """A row as it was at a position; of its keys' range nothing must be cut off, or it publishes no more."""
        tokens, blocks = row.tokens[: at - row.pad], row.blocks[: self.span(at)]
        return Row(row.about, tokens, blocks, row.pad, row.publishes and at >= row.about.settled())

    def forked(self, sid: int, parent: int, at: int) -> None:
        self.publish(parent)  # what it swapped in and nobody could find since
        self.rows[sid] = self.cut(self.rows[parent], at)

    def truncate(self, sid: int, position: int) -> None:
        self.rows[sid] = self.cut(self.rows[sid], position)

    def reorder(self, ids: Sequence[int], parents: Sequence[int]) -> None:
        for sid in ids:
            self.publish(sid)
        former = [self.rows[sid] for sid in ids]
        for i, sid in enumerate(ids):
            parent = former[parents[i]]
            self.rows[sid] = former[i] if parents[i] == i else self.cut(parent, parent.position)
            self.rows[sid].publishes = parent.publishes

    def release(self, sid: int) -> None:
        row = self.rows.pop(sid)
        if self.is_open(sid):
            self.doomed[sid] = row

    # ---- where blocks are

    def own(self, sid: int) -> list[int]:
        """Logical blocks that only this row holds."""
        count = self.holders()
        return [i for i, block in enumerate(self.rows[sid].blocks) if count[block] == 1]

    def swap_out(self, sid: int) -> None:
        row, own = self.rows[sid], self.own(sid)
        row.blocks, row.away = [AWAY if i in own else b for i, b in enumerate(row.blocks)], True

    def swap_in(self, sid: int) -> None:
        row = self.rows[sid]
        self.take(row, sid, len(row.blocks), [i for i, block in enumerate(row.blocks) if block == AWAY])
        row.away = False

    def compact(self, pairs: Sequence[tuple[int, int]]) -> None:
        moved, vacant = dict(pairs), set(range(1, self.num_blocks + 1)) - self.used() - set(self.published.values())
        assert set(moved.values()) <= vacant and len(set(moved.values())) == len(moved)
        assert all(self.references()[source] == 1 for source in moved)
        for row in self.rows.values():
            row.blocks = [moved.get(block, block) for block in row.blocks]
        self.published = {prefix: moved.get(block, block) for prefix, block in self.published.items()}

    # ---- steps

    def plan(self, ids: Sequence[int], counts: Sequence[int]) -> tuple[list[int], int]:
        """The rows whose tail must be copied before they write, and how many blocks the whole extend takes."""
        count, published = self.references() - self.sources(), set(self.published.values())
        copies, need = [], 0
        furthest: dict[int, int] = {}  # block -> position of a row that copies it, and that abandon may give it back
        for copy in (copy for step in self.steps for copy in step.copies):
            furthest[copy.source] = max(copy.position, furthest.get(copy.source, 0))
        for sid, n in zip(ids, counts, strict=True):
            row, end = self.rows[sid], self.end(sid)
            have = len(row.blocks)
            if n and end % self.block_size:
                tail = row.blocks[end // self.block_size]
                if count[tail] > 1 or tail in published or end < furthest.get(tail, 0):
                    copies.append(sid)
                    furthest[tail] = max(end, furthest.get(tail, 0))
                    count[tail] -= 1
                    if row.partial == end:  # the copy is its last block
                        have -= 1
                    else:
                        need += 1
            need += max(0, self.span(end + n) - have)
        return copies, need

    def extend(self, ids: Sequence[int], news: Sequence[list[int]]) -> list[tuple[int, int]]:
        """Open a step; the copies (source, destination) it must have."""
        copies, need = self.plan(ids, [len(new) for new in news])
        expected, self.serial = self.may_evict(need), self.serial + 1
        step, ends = OpenStep(self.serial, dict(zip(ids, news, strict=True))), {sid: self.end(sid) for sid in ids}
        for sid in copies:  # sources first: they stay in use until the step closes
            at = ends[sid] // self.block_size
            is_own = self.rows[sid].partial == ends[sid]
            step.copies.append(Copy(sid, ends[sid], at, self.rows[sid].blocks[at], is_own))
        self.steps.append(step)
        for copy in step.copies:
            if copy.is_own:
                blocks = self.rows[copy.sid].blocks
                blocks[copy.logical] = blocks.pop()
        for sid, new in step.new.items():
            row = self.rows[sid]
            had, at = len(row.blocks), [copy.logical for copy in step.copies if copy.sid == sid and not copy.is_own]
            self.take(row, sid, max(had, self.span(ends[sid] + len(new))), at)
            step.appended[sid] = len(row.blocks) - had
        assert self.evictions == expected, "evicted more than it had to"
        self.copies += len(copies)
        return [(copy.source, self.rows[copy.sid].blocks[copy.logical]) for copy in step.copies]

    def commit(self, known: bool, accepted: dict[int, list[int]]) -> int:
        """Close the oldest step, keeping of its tokens those named; the number of blocks that it newly publishes."""
        step, published = self.steps.pop(0), 0
        self.used()  # sources of copies are let go first, though a row may take one back below
        for copy in step.copies:
            if copy.sid in self.rows:
                self.rows[copy.sid].partial = 0
        for sid, new in step.new.items():
            self.finish(sid)
            if (row := self.rows.get(sid)) is None or not new:
                continue
            row.tokens += [new[k] for k in accepted[sid]]
            row.publishes = row.publishes and known
            if len(accepted[sid]) < len(new):
                row.blocks = row.blocks[: max(self.span(row.position), len(row.blocks) - step.appended[sid])]
            published += self.publish(sid)
        self.close()
        return published

    def publish(self, sid: int) -> int:
        """The row's full blocks can be found from here on; an equal one that can be found already takes its place."""
        row, published = self.rows[sid], 0
        for i in range(row.position // self.block_size if row.publishes else 0):
            prefix = self.prefix(row.about, row.tokens, i + 1)
            if prefix not in self.published:
                self.published[prefix], self.origin[prefix] = row.blocks[i], row.about
                published += 1
            elif self.published[prefix] != row.blocks[i]:
                if self.is_open(sid):  # a newer step has the block in its table
                    self.deferred.append((row.blocks[i], self.steps[-1].serial))
                row.blocks[i] = self.published[prefix]
        return published

    def abandon(self) -> None:
        """Close the newest step without a trace."""
        step = self.steps.pop()
        for sid in step.new:
            row = self.rows.get(sid) or self.doomed[sid]
            row.blocks = row.blocks[: len(row.blocks) - step.appended[sid]]
        for copy in step.copies:
            blocks = (self.rows.get(copy.sid) or self.doomed[copy.sid]).blocks
            blocks += blocks[copy.logical : copy.logical + copy.is_own]
            blocks[copy.logical] = copy.source
        self.copies -= len(step.copies)
        self.close()

    def close(self) -> None:
        """What waited for steps that are closed by now is let go."""
        self.deferred = [(b, last) for b, last in self.deferred if any(step.serial <= last for step in self.steps)]
        self.doomed = {sid: row for sid, row in self.doomed.items() if self.is_open(sid)}
