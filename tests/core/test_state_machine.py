"""Every verb in every order, in pools small enough that exhaustion, eviction and copy-on-write never stop.

Beside the model runs a memory that does what a backend would (see simulated.py). At any moment each row must read
its own tokens back through its block table, and each open step through the arrays it was opened with: a wrong copy,
move, adoption, eviction or hit cannot hide.
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule
from machine import SEEDS
from machine_steps import StepMachine
from model import AWAY
from simulated import contents

from pagedcache.errors import InvalidSequence, OutOfBlocks, OutOfSequences, StepClosed, StepOpen, SwappedOut

VERBS = {
    "decode": 18,  # extend, then commit or abandon
    "admit": 5,
    "extend": 4,
    "commit": 2,
    "abandon": 0.5,
    "fork": 6,
    "reorder": 2,
    "truncate": 2,
    "release": 1,
    "cover": 2,
    "retire": 1,
    "pin": 1.5,
    "unpin": 0.5,
    "evict": 0.5,
    "demote": 0.5,
    "reset": 0.1,
    "invalidate": 0.2,
    "swap_out": 1,
    "swap_in": 2,
    "compact": 3,
    "events": 1,
    "wait": 0.3,
    "borrow": 1,
    "adopt": 1,
    "hold": 0.5,
    "let_go": 0.7,
    "refused": 1,
}


class Machine(StepMachine):
    verbs = VERBS

    @rule(rng=SEEDS)
    def act(self, rng):
        [verb] = rng.choices(list(VERBS), self.weights)
        self.short = False
        getattr(self, verb)(rng)
        if self.short and rng.random() < 0.7:  # as a scheduler would
            self.release(rng)
            self.retire(rng)

    # ---- sequences

    def fork(self, rng):
        ids, n = self.some(rng, self.settled(), 3), rng.choice([1, 1, 1, 2, 0])
        rows, near = [self.model.rows[sid] for sid in ids], rng.choice([self.bs - 1, self.bs - 1, 99])
        at = [rng.randint(max(row.pad, row.position - near), row.position) for row in rows]
        where = at if rng.random() < 0.7 else None
        self.say("fork", ids, n, where)
        if len(ids) * n > self.model.free_rows():
            self.short = True
            with pytest.raises(OutOfSequences):
                self.table.fork(ids, n, at=where)
            return
        kids = self.table.fork(ids, n, at=where)
        assert kids.shape == (len(ids), n) and kids.dtype == np.int64
        for parent, p, row in zip(ids, at, kids.tolist(), strict=True):
            for kid in row:
                assert kid not in self.model.rows and kid not in self.stale
                self.model.forked(kid, parent, self.model.rows[parent].position if where is None else p)

    def reorder(self, rng):
        ids = self.some(rng, self.settled(), 4)
        parents = [rng.randrange(len(ids)) for _ in ids]
        self.say("reorder", ids, parents)
        self.table.reorder(ids, parents)
        self.model.reorder(ids, parents)

    def truncate(self, rng):
        ids = self.some(rng, self.settled(), 3)
        positions = [rng.randint(row.pad, row.position) for row in (self.model.rows[s] for s in ids)]
        self.say("truncate", ids, positions)
        before = self.model.free()
        got = self.table.truncate(ids, positions)
        for sid, position in zip(ids, positions, strict=True):
            self.model.truncate(sid, position)
        assert got == self.model.free() - before

    def release(self, rng):
        ids = self.some(rng, self.model.rows, rng.choice([1, 1, 1, 2, 9]))
        self.say("release", ids)
        before = self.model.free()
        got = self.table.release(ids)
        for sid in ids:
            self.model.release(sid)
        self.stale += ids
        assert got == self.model.free() - before

    # ---- asynchronous work, and where blocks are

    def cover(self, rng):
        fence = max(0, self.model.fence + rng.choice([-1, 0, 1, 1, 1, 5]))
        self.say("cover", [], fence)
        self.table.cover(fence)
        self.model.cover(fence)

    def retire(self, rng):
        fence = self.model.fence + (rng.random() < 0.2)
        if self.model.waiting and rng.random() < 0.5:
            fence = min(self.model.waiting.values())
        self.say("retire", [], fence)
        assert self.table.retire(fence) == self.model.retire(fence)

    def swap_out(self, rng):
        ids = self.some(rng, self.settled(), 2)
        self.say("swap_out", ids)
        blocks, indptr = self.table.swap_list(ids)
        before = self.model.free()
        for i, sid in enumerate(ids):
            row = self.model.rows[sid]
            told = blocks[indptr[i] : indptr[i + 1]].tolist()
            used = row.blocks[: self.model.span(row.position)]
            assert told == [used[k] for k in self.model.own(sid) if k < len(used)]
            self.saved[sid] = self.memory.read(self.memory.of_blocks(told))
            self.model.swap_out(sid)
        assert self.table.swap_out(ids) == self.model.free() - before

    def swap_in(self, rng):
        ids = self.some(rng, self.model.rows.keys() - self.here(), 2)
        self.say("swap_in", ids)
        wanted = sum(self.model.rows[sid].blocks.count(AWAY) for sid in ids)
        if wanted > self.model.free():
            self.short = True
            with pytest.raises(OutOfBlocks):
                self.table.swap_in(ids)
            return
        expected = self.model.may_evict(wanted)
        blocks = self.table.swap_in(ids).tolist()
        for sid in ids:
            self.model.swap_in(sid)
        assert self.model.evictions == expected, "evicted more than it had to"
        saved = [one for sid in ids for one in self.saved.pop(sid)]
        self.memory.slots.update(zip(self.memory.of_blocks(blocks), saved, strict=True))

    def compact(self, rng):
        while self.open and rng.random() < 0.9:
            self.commit(rng)
        if self.open:
            for verb in (self.table.compact, self.table.compaction):
                with pytest.raises(StepOpen):
                    verb()
            return
        pairs = [tuple(pair) for pair in self.table.compaction().tolist()]
        self.say("compact", [], pairs)
        self.memory.copy(pairs)
        assert self.table.compact() == len(pairs)
        self.model.compact(pairs)

    def borrow(self, rng):
        """A caller has blocks from the pool itself, and gives them back."""
        back = self.some(rng, self.model.borrowed)
        before = self.model.free()
        self.model.borrowed = [block for block in self.model.borrowed if block not in back]
        self.say("borrow", [], back)
        assert self.pool.decref(back) == self.model.free() - before
        n = rng.choice([0, 1, 4, self.model.free() // 2])
        if n <= self.model.free():
            expected = self.model.may_evict(n)
            self.model.borrow(self.pool.allocate(n).tolist())
            assert self.model.evictions == expected, "evicted more than it had to"

    def adopt(self, rng):
        """Blocks that a caller has filled are published behind what is known of a prompt, or not."""
        prompts, abouts, told = self.ask(rng, 1)
        if not prompts:
            return
        [prompt], [about] = prompts, abouts
        full = len(prompt) // self.bs
        first = rng.choice([min(len(self.model.hits(about, prompt, left=0)), full), rng.randint(0, full)])
        blocks = self.model.borrowed[: rng.randint(0, full - first)]
        known = contents(about, prompt, self.bs)[first * self.bs :][: len(blocks) * self.bs]
        self.memory.slots.update(zip(self.memory.of_blocks(blocks), known, strict=True))
        self.say("adopt", [], prompt, blocks, first, told)
        told["keys"] = about.keys or None
        assert self.table.adopt(prompt, blocks, first=first, **told) == self.model.adopt(about, prompt, blocks, first)

    def hold(self, rng):
        """What is known of a prompt stays, while more of it is on its way."""
        for prompt, about in zip(*self.ask(rng, 2)[:2], strict=True):
            held = self.model.hits(about, prompt, left=0)
            self.say("hold", [], prompt, about)
            hold, blocks = self.table.hold(prompt, namespace=about.namespace, keys=about.keys or None)
            assert blocks == len(held)
            self.model.holds[hold] = held
            self.model.used()

    def let_go(self, rng):
        for hold in self.some(rng, self.model.holds, 2):
            self.say("let_go", [], hold)
            before = self.model.free()
            del self.model.holds[hold]
            assert self.table.let_go(hold) == self.model.free() - before

    # ---- what must be refused

    def refused(self, rng):
        """Calls that must raise; the invariants then see that nothing changed."""
        t, rows = self.table, self.model.rows
        if self.closed is not None:
            for verb in (lambda s: t.commit(s, None), t.abandon):
                with pytest.raises(StepClosed):
                    verb(self.closed)
        if len(self.open) > 1:
            for verb, step in ((lambda s: t.commit(s, None), self.open[-1].step), (t.abandon, self.open[0].step)):
                with pytest.raises(StepClosed, match="open"):
                    verb(step)
        for states, error in ((self.here() - self.settled(), StepOpen), (rows.keys() - self.here(), SwappedOut)):
            for sid in self.some(rng, states, 1):
                at = rows[sid].position
                for verb in (
                    t.fork,
                    t.swap_out,
                    t.swap_list,
                    lambda s, p=at: t.truncate(s, [p]),
                    lambda s: t.reorder(s, [0]),
                ):
                    with pytest.raises(error):
                        verb([sid])
        for sid in self.some(rng, rows.keys() - self.here(), 1):
            with pytest.raises(SwappedOut):
                t.position(sid)
        ids = self.some(rng, self.settled())
        if self.stale:
            ids.insert(rng.randint(0, len(ids)), rng.choice(self.stale))
            calls = [lambda: t.release(ids), lambda: t.truncate(ids, [0] * len(ids)), lambda: t.fork(ids)]
            calls += [lambda: t.swap_in(ids), lambda: t.swap_out(ids), lambda: t.reorder(ids, [0] * len(ids))]
            calls += [lambda: t.extend(ids, 1), lambda: t.can_extend(ids, 1)] if not self.open else []
            for call in calls:
                with pytest.raises((InvalidSequence, OutOfSequences, ValueError)):
                    call()
        for sid in self.some(rng, self.settled(), 1):
            with pytest.raises(ValueError, match="not swapped out"):
                t.swap_in([sid])
            for beyond in (-1, rows[sid].position + 1):
                with pytest.raises(ValueError, match=str(beyond)):
                    t.truncate([sid], [beyond])
                with pytest.raises((ValueError, OutOfSequences)):
                    t.fork([sid], 1, at=beyond)

    def teardown(self):
        """Whatever the order, every block comes back (M03, C13)."""
        if hasattr(self, "table"):
            while self.open:
                self.abandon(None)
            self.events(None)
            self.table.release(sorted(self.model.rows))
            self.pool.decref(self.model.borrowed)
            for hold in self.model.holds:
                self.table.let_go(hold)
            self.table.reset()
            self.table.retire(self.model.fence)
            self.table.check()
            stats = self.table.stats()
            assert (stats.free, stats.cached, stats.published) == (self.model.num_blocks, 0, 0)


# At most 160 runs of up to 50 rules, some 8,000 in all. PAGEDCACHE_SOAK multiplies the runs.
Machine.TestCase.settings = settings(
    max_examples=160 * int(os.environ.get("PAGEDCACHE_SOAK", "1")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStateMachine = Machine.TestCase
