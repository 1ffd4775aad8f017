"""Every verb in every order on tables with several layer groups: windows, sinks and chunks beside full attention.

Beside the table runs a memory that does what a backend would. Whatever a query may see must be there, in each group;
what a window has let go must be gone, and nothing may be lost.
"""

import os
import random

import pytest
from group_model import Sequence, kept, lowest_seen, seen
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from machine_steps import StepMachine
from model import About
from simulated import Memory, contents

from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import OutOfBlocks, OutOfSequences, PositionReleased
from pagedcache.keys import Namespace

SEEDS = st.integers(0, 2**20 - 1).map(random.Random)
ABOUT = About(Namespace())
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


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([4, 2, 3, 1]),
        sides=st.lists(
            st.sampled_from(
                [
                    (None, 0, False),
                    (5, 0, False),
                    (1, 0, False),
                    (8, 3, False),
                    (7, 0, True),
                    (4, 0, True),
                    (12, 1, False),
                ]
            ),
            min_size=1,
            max_size=3,
        ),
        num_blocks=st.sampled_from([12, 20, 30, 60, 100]),
        flight=st.sampled_from([1, 1, 2]),
        ttls=st.sampled_from([None, None, [1, None]]),
        rng=SEEDS,
    )
    def start(self, block_size, sides, num_blocks, flight, ttls, rng):
        self.bs, self.sides, self.most = block_size, sides, rng.choice([3, 8])
        self.pool = BlockPool(num_blocks, policy=None if ttls is None else PriorityTTL(ttls))
        self.table = SequenceTable(
            self.pool, block_size, max_sequences=8, steps_in_flight=flight, side_groups=sides, max_step_tokens=self.most
        )
        self.levels = 1 if ttls is None else 2
        self.fenced = rng.random() < 0.2
        self.rules = [(None, 0, False), *sides]
        self.memory = Memory(block_size)
        self.rows: dict[int, Sequence] = {}
        self.open = []  # (step, {id: (new tokens, their paths, what is stored for them)}), oldest first
        self.known: list[list[int]] = [[]]  # token lists that may be found
        self.pins: set[str] = set()
        self.shared = False  # blocks of windows may be somebody else's too: admit's promise is off
        self.fence = 0
        self.saved: dict[int, list] = {}

    # ---- helpers

    def some(self, rng, ids, most=4):
        ids = rng.sample(sorted(ids), len(ids))
        return ids[: rng.randint(1, most)]

    def busy(self):
        return {sid for _, news in self.open for sid in news}

    def still(self):
        return {sid for sid, row in self.rows.items() if not row.away and sid not in self.busy()}

    def end(self, sid):
        return self.rows[sid].position + sum(len(news[sid][0]) for _, news in self.open if sid in news)

    def tables(self, sid):
        return [self.table.block_table(sid, group).tolist() for group in range(len(self.rules))]

    def state(self):
        rows = {sid: (self.table.position(sid), self.tables(sid)) for sid, row in self.rows.items() if not row.away}
        return rows, self.table.stats().used

    # ---- verbs

    def admit(self, rng):
        base = rng.choice(self.known)
        prompt = base[: rng.randint(0, len(base))] + [rng.randrange(2) for _ in range(rng.randint(0, 3 * self.bs))]
        pad, reserve = rng.choice([0] * 5 + [1, self.bs]), rng.choice([0, 0, 5])
        [match] = self.table.match([prompt], by_group=True).tolist()
        [expected] = self.table.match([prompt]).tolist()
        assert expected // self.bs * self.bs <= min(match)
        note(f"admit {prompt} pad {pad} reserve {reserve}")
        got = self.table.admit([prompt], pads=[pad], reserve=reserve, priority=rng.randrange(self.levels))
        if got.status[0] != 0:
            if got.status[0] == 1 and not (self.rows or self.pins or self.open or self.fenced):
                raise AssertionError("a prompt waits for an empty pool")
            self.release(rng)
            return
        sid, cached = int(got.ids[0]), int(got.cached[0])
        shorter = (0, expected // self.bs * self.bs) if reserve else ()  # the pool is short of a block more
        assert cached == (0 if pad else expected) or cached in shorter
        self.shared |= cached > 0
        row = Sequence(prompt[:cached], pad, pad + len(prompt) + reserve, [0] * len(self.sides), prompt=prompt)
        if cached:
            row.slide(self.sides, self.bs, pad + cached // self.bs * self.bs)
        self.rows[sid] = row

    def decode(self, rng):
        if len(self.open) < self.table.steps_in_flight:
            self.extend(rng)
        if self.open and rng.random() < 0.9:
            (self.abandon if rng.random() < 0.2 else self.commit)(rng)

    def extend(self, rng):
        ids = self.some(rng, {sid for sid, row in self.rows.items() if not row.away}) if self.rows else []
        news = []
        for sid in ids:
            left = self.rows[sid].prompt[self.end(sid) - self.rows[sid].pad :]
            news.append((left or [rng.randrange(2) for _ in range(rng.choice([1, 1, 2, self.most]))])[: self.most])
        counts = [len(new) for new in news]
        paths, depths = StepMachine.paths(self, rng, counts, branching=rng.random() < 0.2)
        if any(self.end(sid) + n > self.table.max_length for sid, n in zip(ids, counts, strict=True)):
            return
        note(f"extend {ids} {news} {depths}")
        can, before = self.table.can_extend(ids, counts, depths=depths), self.state()
        try:
            step = self.table.extend(ids, counts, depths=depths)
        except OutOfBlocks:
            within = all(self.end(s) + n <= self.rows[s].promised for s, n in zip(ids, counts, strict=True))
            assert not can and (not within or self.shared or self.fenced or self.open), "less than admit has promised"
            assert self.state() == before
            self.release(rng)
            return
        assert can
        base, written = {sid: self.following(sid) for sid in ids}, {}
        for sid, new, of_row in zip(ids, news, paths, strict=True):
            tokens, _ = base[sid]
            written[sid] = [contents(ABOUT, tokens + [new[k] for k in path], self.bs)[-1] for path in of_row]
        for g, view in enumerate(step.groups):
            self.memory.slots.update(dict.fromkeys(self.memory.of_blocks(view.new_blocks.tolist())))
            self.memory.copy(view.copies.tolist())
            stored = [(g, one) for sid in ids for one in written[sid]]
            self.memory.slots.update(zip(view.slots.tolist(), stored, strict=True))
        self.open.append((step, {s: (n, p, written[s]) for s, n, p in zip(ids, news, paths, strict=True)}))
        self.see(step, ids, counts, base)

    def following(self, sid):
        """Tokens of a row as all open steps leave it, and what its slots hold."""
        tokens = list(self.rows[sid].tokens)
        stored = contents(ABOUT, tokens, self.bs)
        for _, news in self.open:
            if sid in news:
                tokens += news[sid][0]
                stored += news[sid][2]
        return tokens, stored

    def see(self, step, ids, counts, base):
        """In each group, all that the first new query sees of the tokens before it is there."""
        for g, (view, side) in enumerate(zip(step.groups, self.rules, strict=True)):
            for i, sid in enumerate(ids):
                row, start = self.rows[sid], int(step.kv_lens[i]) - counts[i]
                table, stored = view.block_tables[i].tolist(), base[sid][1]
                held = self.table.block_table(sid, g).tolist()[: -(-int(step.kv_lens[i]) // self.bs)]
                assert table[: len(held)] == held and set(table[len(held) :]) <= {-1}
                assert view.kv_starts[i] <= max(row.pad, lowest_seen(side, start, row.pad))
                for p in seen(side, start, row.pad):
                    if p < start:
                        assert table[p // self.bs] > 0, "released, and seen"
                        slot = table[p // self.bs] * self.bs + p % self.bs
                        assert self.memory.slots[slot] == (g, stored[p - row.pad])

    def commit(self, rng):
        step, news = self.open[0]
        newer = {sid for _, later in self.open[1:] for sid in later}
        accepted = {}
        for sid, (new, paths, _) in news.items():
            whole = paths[-1] if paths and len(paths[-1]) == len(new) else None
            if sid in newer and sid in self.rows and whole is None and new:
                return self.abandon(rng)
            choices = [whole] if whole and sid in newer else [[], *paths]
            accepted[sid] = rng.choice(choices) if rng.random() < 0.4 or whole is None else whole
            if not new:
                accepted[sid] = []
        known, lists = rng.random() < 0.95, list(accepted.values())
        note(f"commit {accepted} {known}")
        for view in step.groups:
            self.memory.move(*(slots.tolist() for slots in view.moves(lists)))
        tokens = [token for new, _, _ in news.values() for token in new]
        self.table.commit(step, tokens if known else None, lists)
        self.open.pop(0)
        for sid, (new, _, _) in news.items():
            if sid in self.rows and new:
                self.rows[sid].tokens += [new[k] for k in accepted[sid]]
                self.rows[sid].slide(self.sides, self.bs, self.rows[sid].position)
                self.rows[sid].prompt = self.rows[sid].prompt if accepted[sid] == list(range(len(new))) else []
                if len(accepted[sid]) < len(new):
                    self.rows[sid].promised = 0
                self.known = [*self.known[-20:], list(self.rows[sid].tokens)] if not self.rows[sid].pad else self.known

    def abandon(self, rng):
        step, _ = self.open.pop()
        self.table.abandon(step)

    def fork(self, rng):
        ids = self.some(rng, self.still(), 2)
        for sid in ids:
            row = self.rows[sid]
            at, lowest = rng.randint(row.pad, row.position), row.lowest_cut(self.sides, self.bs)
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
            at, lowest = rng.randint(row.pad, row.position), row.lowest_cut(self.sides, self.bs)
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
