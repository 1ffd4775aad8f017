"""Every verb in every order on tables with several layer groups: windows, sinks and chunks beside full attention.

Beside the table runs a memory that does what a backend would. Whatever a query may see must be there, in each group;
what a window has let go must be gone, and nothing may be lost.
"""

import os

import pytest
from group_model import Sequence, kept, seen
from group_steps import ABOUT, SEEDS, GroupSteps
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import invariant, rule
from simulated import contents

from pagedcache.errors import OutOfBlocks, OutOfSequences, PositionReleased

VERBS = {
    "decode": 20,
    "admit": 5,
    "fork": 4,
    "reorder": 2,
    "truncate": 2,
    "release": 2,
    "pin": 1,
    "evict": 1,
    "swap_out": 1,
    "swap_in": 2,
    "compact": 1,
    "fences": 1,
    "reset": 0.1,
}


class GroupMachine(GroupSteps):
    def cut(self, rng, row):
        """A position to cut a row at, and the lowest one that there is."""
        if not self.states:
            return rng.randint(row.pad, row.position), row.lowest_cut(self.sides, self.bs)
        return rng.choice([row.position, rng.randint(row.pad, row.position)]), row.position

    def fork(self, rng):
        ids = self.some(rng, self.still(), 2)
        for sid in ids:
            row = self.rows[sid]
            at, lowest = self.cut(rng, row)
            note(f"fork {sid & 0xFFFFFFFF} at {at}")
            if at < lowest:
                with pytest.raises(PositionReleased, match=f"left is {lowest}"):
                    self.table.fork([sid], 1, at=at)
                continue
            try:
                [[kid]] = self.table.fork([sid], 1, at=at).tolist()
            except OutOfSequences:
                return
            row.promised, self.shared = 0, True
            self.rows[kid] = Sequence(row.tokens[: at - row.pad], row.pad, 0, list(row.first))

    def reorder(self, rng):
        ids = self.some(rng, self.still(), 3)
        parents = [rng.randrange(len(ids)) for _ in ids]
        note(f"reorder {parents}")
        self.table.reorder(ids, parents)
        former = [self.rows[sid] for sid in ids]
        for i, sid in enumerate(ids):
            if parents[i] != i:
                row = former[parents[i]]
                self.rows[sid] = Sequence(list(row.tokens), row.pad, 0, list(row.first))
                self.shared, row.promised = True, 0

    def truncate(self, rng):
        for sid in self.some(rng, self.still(), 2):
            row = self.rows[sid]
            at, lowest = self.cut(rng, row)
            if at < lowest:
                with pytest.raises(PositionReleased, match=f"left is {lowest}"):
                    self.table.truncate([sid], [at])
                continue
            self.table.truncate([sid], [at])
            row.tokens, row.promised, row.prompt = row.tokens[: at - row.pad], 0, []

    def release(self, rng):
        for sid in self.some(rng, self.rows, 3) if self.rows else []:
            self.table.release([sid])
            del self.rows[sid]
            self.saved.pop(sid, None)

    def pin(self, rng):
        name = f"pin {rng.randrange(3)}"
        if name in self.pins:
            self.table.unpin(name)
            self.pins.discard(name)
            return
        try:
            self.table.pin([rng.choice(self.known)], name)
        except ValueError as error:
            if "max_pinned" not in str(error):
                raise
        else:
            self.pins.add(name)
            self.shared = True

    def evict(self, rng):
        self.table.evict(rng.choice([1, 2, 99]))

    def reset(self, rng):
        self.table.reset()
        self.pins.clear()

    def swap_out(self, rng):
        for sid in self.some(rng, self.still(), 1):
            blocks, _ = self.table.swap_list([sid])
            self.saved_states[sid] = [self.states.blocks.get(block) for block in blocks.tolist()]
            self.saved[sid] = self.memory.read(self.memory.of_blocks(blocks.tolist()))
            self.rows[sid].away, self.rows[sid].promised = True, 0
            assert self.table.swap_out([sid], blocks) >= 0

    def swap_in(self, rng):
        for sid in self.some(rng, [s for s, row in self.rows.items() if row.away], 1):
            try:
                blocks = self.table.swap_in([sid]).tolist()
            except OutOfBlocks:
                self.release(rng)
                return
            slots = self.memory.of_blocks(blocks)
            self.memory.slots.update(zip(slots, self.saved.pop(sid), strict=True))
            self.states.forget(blocks)
            states = zip(blocks, self.saved_states.pop(sid), strict=True)
            self.states.blocks.update((block, state) for block, state in states if state)
            self.rows[sid].away = False

    def compact(self, rng):
        if not self.open:
            pairs = self.table.compaction()
            self.memory.copy(pairs.tolist())
            assert self.table.compact(pairs) == len(pairs)

    def fences(self, rng):
        if self.fenced:
            self.fence += 1
            self.table.cover(self.fence)
            if rng.random() < 0.7:
                self.table.retire(self.fence)

    @rule(rng=SEEDS)
    def act(self, rng):
        [verb] = rng.choices(list(VERBS), VERBS.values())
        getattr(self, verb)(rng)

    # ---- what holds after each of them

    @invariant()
    def audit(self):
        if not hasattr(self, "table"):
            return
        self.table.check()
        for sid, row in self.rows.items():
            if row.away:
                continue
            assert self.table.position(sid) == row.position
            self.states.check_row(self.table, sid, len(self.rules), self.following(sid)[0])
            stored = contents(ABOUT, row.tokens, self.bs)
            for g, (side, table) in enumerate(zip(self.rules, self.tables(sid), strict=True)):
                for p in seen(side, row.position, row.pad)[:-1]:
                    slot = table[p // self.bs] * self.bs + p % self.bs
                    assert self.memory.slots.get(slot) == (g, stored[p - row.pad])
                if g:
                    sinks = kept(side, row.pad, self.bs)
                    assert not any(table[sinks : row.first[g - 1]]), "a window keeps what nobody sees"

    def teardown(self):
        if hasattr(self, "table"):
            while self.open:
                self.abandon(None)
            self.table.release(sorted(self.rows))
            self.table.reset()
            self.table.retire(self.fence)
            self.table.check()
            stats = self.table.stats()
            assert (stats.free, stats.cached, stats.published) == (self.pool.num_blocks, 0, 0)


GroupMachine.TestCase.settings = settings(
    max_examples=120 * int(os.environ.get("PAGEDCACHE_SOAK", "1")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGroupMachine = GroupMachine.TestCase
