"""The base of the state machine of layer groups: a table beside its memory; prompts come in, steps open and close."""

import random

import pytest
from group_model import Sequence, lowest_seen, seen
from group_states import States
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize
from machine_steps import StepMachine
from model import About
from simulated import Memory, contents

from pagedcache.core import BlockPool, PriorityTTL, SequenceTable
from pagedcache.errors import OutOfBlocks, PositionReleased, StepOpen
from pagedcache.keys import Namespace

SEEDS = st.integers(0, 2**20 - 1).map(random.Random)
ABOUT = About(Namespace())


class GroupSteps(RuleBasedStateMachine):
    """Prompts and steps; what follows, the other verbs, is the test's."""

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
        states=st.sampled_from([(), (), (), (1,), (2, 1)]),
        num_blocks=st.sampled_from([12, 20, 30, 60, 100]),
        flight=st.sampled_from([1, 1, 2]),
        ttls=st.sampled_from([None, None, [1, None]]),
        rng=SEEDS,
    )
    def start(self, block_size, sides, states, num_blocks, flight, ttls, rng):
        self.bs, self.sides, self.most = block_size, sides, rng.choice([3, 8])
        self.pool = BlockPool(num_blocks, policy=None if ttls is None else PriorityTTL(ttls))
        self.table = SequenceTable(
            self.pool,
            block_size,
            max_sequences=8,
            steps_in_flight=flight,
            side_groups=sides,
            max_step_tokens=self.most,
            state_blocks=states,
        )
        self.levels = 1 if ttls is None else 2
        self.fenced = rng.random() < 0.2
        self.rules = [(None, 0, False), *sides]
        self.memory = Memory(block_size)
        self.states = States(states)
        self.rows: dict[int, Sequence] = {}
        self.open = []  # (step, {id: (new tokens, their paths, what is stored for them)}), oldest first
        self.known: list[list[int]] = [[]]  # token lists that may be found
        self.pins: set[str] = set()
        self.shared = False  # blocks of windows may be somebody else's too: admit's promise is off
        self.fence = 0
        self.saved: dict[int, list] = {}
        self.saved_states: dict[int, list] = {}

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
        assert match[len(self.rules) :] == [0] * len(self.states.state_blocks)
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
        paths, depths = StepMachine.paths(self, rng, counts, branching=rng.random() < 0.2 and not self.states)
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
            self.states.forget([*view.new_blocks.tolist(), *view.copies[:, 1].tolist()])
            self.memory.copy(view.copies.tolist())
            stored = [(g, one) for sid in ids for one in written[sid]]
            self.memory.slots.update(zip(view.slots.tolist(), stored, strict=True))
        self.states.run(step, [base[s][0] for s in ids], [base[s][0] + new for s, new in zip(ids, news, strict=True)])
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
            choices = [whole] if whole and sid in newer else [[], *(paths[-1:] if self.states else paths)]
            accepted[sid] = rng.choice(choices) if rng.random() < 0.4 or whole is None else whole
            if not new:
                accepted[sid] = []
        known, lists = rng.random() < 0.95, list(accepted.values())
        note(f"commit {accepted} {known}")
        self.refuse_parts(step, news)
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

    def refuse_parts(self, step, news):
        """A state cannot be rolled back to the middle of a step."""
        some = [[*range(len(new) - 1)] for new, _, _ in news.values()]
        newer = {sid for _, later in self.open[1:] for sid in later}
        if self.states and any(part and sid in self.rows for part, sid in zip(some, news, strict=True)):
            with pytest.raises(StepOpen if newer & news.keys() & self.rows.keys() else PositionReleased):
                self.table.commit(step, None, some)

    def abandon(self, rng):
        step, _ = self.open.pop()
        self.table.abandon(step)
