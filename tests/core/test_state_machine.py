"""Every verb in every order, in pools small enough that exhaustion, eviction and copy-on-write never stop.

Beside the model runs a memory that does what a backend would: it applies ``copies``, then writes each new
token's slot. What is written stands for K/V, so it depends on the whole prefix, like K/V. At any moment each
row must read its own tokens back through its block table: a wrong copy, adoption, eviction or hit cannot hide.
"""

import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model import ADMITTED, NEVER_FITS, NOT_NOW, Model

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidSequence, OutOfBlocks, OutOfSequences, StepBusy, StepClosed, StepOpen


def keys(tokens):
    """One key per token that stands for its K/V: it depends on everything before."""
    chain, out = 0, []
    for token in tokens:
        chain = hash((chain, token))
        out.append(chain)
    return out


# Each rule draws all it does from one seed: hypothesis's own choices would be nearly empty lists and tables.
SEEDS = st.integers(0, 2**20 - 1).map(random.Random)  # a wider range is drawn mostly small
VERBS = {
    "decode": 8,  # extend, then commit or abandon
    "admit": 4,
    "extend": 1,
    "commit": 1,
    "abandon": 1,
    "fork": 2,
    "truncate": 2,
    "release": 1,
    "refused": 1,
}


class Machine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([4, 5, 6, 8, 10, 13, 20, 40]),
        block_size=st.sampled_from([4, 3, 2, 5, 1]),
        max_sequences=st.sampled_from([12, 8, 5, 2]),
        max_length=st.sampled_from([None, None, None, 30, 9]),
        tag_bits=st.sampled_from([64, 64, 2, 0]),  # few bits: everything collides in the prefix index
        rng=SEEDS,
    )
    def start(self, num_blocks, block_size, max_sequences, max_length, tag_bits, rng):
        pool = BlockPool(num_blocks)
        self.table = SequenceTable(
            pool, block_size, max_sequences=max_sequences, max_length=max_length, tag_bits=tag_bits
        )
        bound = num_blocks * block_size if max_length is None else max_length
        self.bs = block_size
        self.weights = [weight * rng.choice([0.2, 1, 1, 3]) for weight in VERBS.values()]  # another mix in each run
        self.model = Model(num_blocks, block_size, max_sequences, bound, self.read)
        self.step = None  # the open step
        self.closed = None  # the last one that was closed
        self.stale = []  # released handles
        self.prompts = {}  # id -> prompt admitted
        self.memory = {}  # slot -> key
        self.device = {}  # (table row, logical block) -> block, kept only by replaying step.diff

    def read(self, sid):
        return [int(b) for b in self.table.block_table(sid)]

    def some(self, rng, ids, most=99):
        """A few of the ids, often all of them, in any order."""
        ids = rng.sample(sorted(ids), len(ids))
        return ids[: most if rng.random() < 0.4 else rng.randint(0, min(most, len(ids)))]

    def tokens(self, rng, most):
        """Up to `most` tokens of two kinds, so that unrelated rows often agree."""
        return [rng.randrange(2) for _ in range(rng.randint(0, most))]

    def settled(self):
        """Rows that no open step names."""
        return self.model.rows.keys() - (self.model.step or {}).keys()

    def say(self, verb, ids, *rest):
        note(f"{verb}({[sid & 0xFFFFFFFF for sid in ids]}, {', '.join(map(str, rest))})")

    @rule(rng=SEEDS)
    def act(self, rng):
        [verb] = rng.choices(list(VERBS), self.weights)
        self.short = False
        getattr(self, verb)(rng)
        if self.short and rng.random() < 0.7:  # as a scheduler would
            self.release(rng)

    # ---- the verbs, each with its own arguments and their outcome

    def admit(self, rng):
        known = [*self.model.published, *(tuple(row.tokens) for row in self.model.rows.values()), ()]
        prompts, reserve = [], rng.choice([0, 0, 0, 0, 1, 7])
        for _ in range(rng.randint(0, 3)):
            base = list(rng.choice(known))
            prompts.append(base[: rng.randint(0, len(base)) if rng.random() < 0.3 else None])
            prompts[-1] += self.tokens(rng, 2 * self.bs + 1)
        pads = [rng.choice([0] * 6 + [1, self.bs, self.bs + 1]) for _ in prompts]
        for prompt, cached in zip(prompts, self.table.match(prompts).tolist(), strict=True):
            fits = self.model.expect_admit(prompt, 0, 0)[0] != NEVER_FITS
            assert cached == (len(self.model.hits(prompt)) * self.bs if fits else 0)
        self.say("admit", [], prompts, reserve, pads)
        got = self.table.admit(prompts, reserve=reserve, pads=pads if any(pads) else None)
        waiting = False
        for i, (prompt, pad) in enumerate(zip(prompts, pads, strict=True)):
            status, found = self.model.expect_admit(prompt, pad, reserve)
            status, found = (NOT_NOW, []) if waiting else (status, found)
            self.short = waiting = status == NOT_NOW
            assert (int(got.status[i]), int(got.cached[i])) == (status, len(found) * self.bs)
            assert (got.ids[i] == -1) == (status != ADMITTED)
            if status == ADMITTED:
                sid = int(got.ids[i])
                assert sid not in self.model.rows and sid not in self.stale
                self.model.admitted(sid, prompt, pad, reserve, found)
                self.prompts[sid] = prompt

    def decode(self, rng):
        if self.step is None:
            self.extend(rng)
        if self.step is not None:
            (self.abandon if rng.random() < 0.2 else self.commit)(rng)

    def extend(self, rng):
        if not self.model.rows:
            self.admit(rng)
        ids, news = self.some(rng, self.model.rows), []
        for sid in ids:
            left = self.prompts.get(sid, [])[len(self.model.rows[sid].tokens) :]
            if left and rng.random() < 0.7:
                news.append(left[: None if rng.random() < 0.7 else rng.randint(1, len(left))])
            else:
                news.append(self.tokens(rng, rng.choice([1, self.bs + 2])))
        counts = [len(new) for new in news]
        self.say("extend", ids, counts, news)
        if self.model.step is not None:
            with pytest.raises(StepBusy):
                self.table.extend(ids, counts)
            return
        fits = self.model.plan(ids, counts)[1] <= self.model.free()
        if any(self.model.rows[s].position + n > self.model.max_length for s, n in zip(ids, counts, strict=True)):
            with pytest.raises(ValueError, match="max_length"):
                self.table.extend(ids, counts)
            return
        assert self.table.can_extend(ids, counts) is fits
        if not fits:
            self.short = True
            with pytest.raises(OutOfBlocks):
                self.table.extend(ids, counts)
            return
        self.step = self.table.extend(ids, counts)
        self.new = [token for new in news for token in new]
        starts = [self.model.rows[s].position for s in ids]
        pairs = self.model.extend(ids, news)
        assert sorted(map(tuple, self.step.copies.tolist())) == sorted(pairs)
        self.see(ids, starts, counts)
        self.write(ids, starts, news)

    def see(self, ids, starts, counts):
        """The arrays of the step say what the model's rows say."""
        step, rows, bs = self.step, [self.model.rows[s] for s in ids], self.bs
        ends = [a + n for a, n in zip(starts, counts, strict=True)]
        assert step.ids.tolist() == ids and step.kv_lens.tolist() == ends
        assert step.kv_pads.tolist() == step.kv_starts.tolist() == [row.pad for row in rows]
        assert step.qo_indptr.tolist() == np.cumsum([0, *counts]).tolist()
        assert step.token_seq.tolist() == [i for i, n in enumerate(counts) for _ in range(n)]
        coordinates = [(row, p) for row, a, z in zip(rows, starts, ends, strict=True) for p in range(a, z)]
        assert step.positions.tolist() == [p - row.pad for row, p in coordinates]
        assert step.slots.tolist() == [row.blocks[p // bs] * bs + p % bs for row, p in coordinates]
        assert len(set(step.slots.tolist())) == step.num_tokens  # no two tokens share a slot
        for row, logical, block in step.diff.tolist():
            self.device[row, logical] = block
        for i, (sid, row, end) in enumerate(zip(ids, rows, ends, strict=True)):
            live = row.blocks[: self.model.span(end)]
            table = step.block_tables[i].tolist()
            assert table[: len(live)] == live and set(table[len(live) :]) <= {-1}
            assert [self.device[sid & 0xFFFFFFFF, k] for k in range(len(live))] == live
            csr = step.kv_indices[step.kv_indptr[i] : step.kv_indptr[i + 1]].tolist()
            assert csr == live and (len(csr) - 1) * bs + step.kv_last_page_len[i] == (end if end else -bs)

    def write(self, ids, starts, news):
        """What a backend does with the step: forget what was in new blocks, copy, write."""
        step, bs = self.step, self.bs
        for block in step.new_blocks.tolist():
            self.memory.update({block * bs + k: None for k in range(bs)})
        read = [(dst, [self.memory.get(src * bs + k) for k in range(bs)]) for src, dst in step.copies.tolist()]
        for dst, block in read:
            self.memory.update({dst * bs + k: key for k, key in enumerate(block)})
        written = []
        for sid, new in zip(ids, news, strict=True):
            written += keys(self.model.rows[sid].tokens + new)[len(self.model.rows[sid].tokens) :]
        self.memory.update(zip(step.slots.tolist(), written, strict=True))

    def commit(self, rng):
        if self.step is None:
            return
        known = rng.random() < 0.9 or not all(new for _, new in self.model.step.values())  # no tokens: left unsaid
        self.say("commit", self.model.step, known)
        got = self.table.commit(self.step, np.array(self.new, np.int32) if known else None)
        assert got == self.model.commit(known)
        self.step, self.closed = None, self.step

    def abandon(self, rng):
        if self.step is None:
            return
        self.say("abandon", self.model.step)
        self.table.abandon(self.step)
        self.model.abandon()
        self.step, self.closed = None, self.step

    def fork(self, rng):
        ids, n = self.some(rng, self.settled(), 3), rng.choice([1, 1, 1, 2, 0])
        at = [rng.randint(row.pad, row.position) for row in (self.model.rows[s] for s in ids)]
        where = at if rng.random() < 0.5 else None
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

    def refused(self, rng):
        """Calls that must raise; the invariants then see that nothing changed."""
        t, rows = self.table, self.model.rows
        if self.closed is not None:
            for verb in (lambda s: t.commit(s, None), t.abandon):
                with pytest.raises(StepClosed):
                    verb(self.closed)
        held = [sid for sid in self.model.step or () if sid in rows]
        if held:
            sid = rng.choice(held)
            for verb in (lambda: t.fork([sid]), lambda: t.truncate([sid], [rows[sid].position])):
                with pytest.raises(StepOpen):
                    verb()
        ids = self.some(rng, self.settled())
        if self.stale:
            ids.insert(rng.randint(0, len(ids)), rng.choice(self.stale))
            calls = [lambda: t.release(ids), lambda: t.truncate(ids, [0] * len(ids)), lambda: t.fork(ids)]
            calls += [lambda: t.extend(ids, 1), lambda: t.can_extend(ids, 1)] if self.step is None else []
            for call in calls:
                with pytest.raises((InvalidSequence, OutOfSequences, ValueError)):
                    call()
        for sid in self.some(rng, self.settled(), 1):
            for beyond in (-1, rows[sid].position + 1):
                with pytest.raises(ValueError, match=str(beyond)):
                    t.truncate([sid], [beyond])
                with pytest.raises((ValueError, OutOfSequences)):
                    t.fork([sid], 1, at=beyond)

    # ---- what holds after each of them

    @invariant()
    def audit(self):
        if not hasattr(self, "table"):
            return
        model, stats = self.model, self.table.stats()
        self.table.check()
        used, held = model.in_use(), [b for row in model.rows.values() for b in row.blocks]
        idle = set(model.published.values()) - used
        assert (stats.free, stats.used, stats.cached) == (model.free(), len(used), len(idle))
        assert stats.num_blocks == stats.free + stats.used and stats.sequences == len(model.rows)
        if model.step is None:  # what a hold keeps for an open step may be counted or not
            assert stats.shared == sum(held.count(b) > 1 for b in set(held))
        assert all(p[: -self.bs] in model.published for p in model.published if len(p) > self.bs)  # all reachable
        for sid, row in model.rows.items():
            assert self.read(sid) == row.blocks
            slots = [row.blocks[p // self.bs] * self.bs + p % self.bs for p in range(row.pad, row.position)]
            assert [self.memory.get(s) for s in slots] == keys(row.tokens)
        for prefix, block in model.published.items():
            want = keys(prefix)[-self.bs :]
            assert [self.memory.get(block * self.bs + k) for k in range(self.bs)] == want

    def teardown(self):
        """Whatever the order, every block comes back (M03, C13)."""
        if hasattr(self, "table"):
            if self.step is not None:
                self.abandon(None)
            self.table.release(sorted(self.model.rows))
            self.table.check()
            assert self.table.stats().free == self.model.num_blocks


# At most 150 runs of up to 50 rules, some 7,000 in all. PAGEDCACHE_SOAK multiplies the runs.
Machine.TestCase.settings = settings(
    max_examples=150 * int(os.environ.get("PAGEDCACHE_SOAK", "1")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStateMachine = Machine.TestCase
