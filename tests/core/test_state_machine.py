"""Every verb in every order, in pools small enough that exhaustion, eviction and copy-on-write never stop.

Beside the model runs a memory that does what a backend would: it applies ``copies``, then writes each new
token's slot. What is written stands for K/V, so it depends on the whole prefix, like K/V. At any moment each
row must read its own tokens back through its block table: a wrong copy, adoption, eviction or hit cannot hide.
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model import ADMITTED, NOT_NOW, Model

from pagedcache.core import BlockPool, SequenceTable
from pagedcache.errors import InvalidSequence, OutOfBlocks, OutOfSequences, StepBusy, StepClosed, StepOpen

TOKENS = st.integers(0, 2)  # few, so that unrelated rows often agree


def keys(tokens):
    """One key per token that stands for its K/V: it depends on everything before."""
    chain, out = 0, []
    for token in tokens:
        chain = hash((chain, token))
        out.append(chain)
    return out


class Machine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 40),
        block_size=st.integers(1, 5),
        max_sequences=st.integers(1, 9),
        max_length=st.none() | st.integers(1, 40),
    )
    def start(self, num_blocks, block_size, max_sequences, max_length):
        pool = BlockPool(num_blocks)
        self.table = SequenceTable(pool, block_size, max_sequences=max_sequences, max_length=max_length)
        bound = num_blocks * block_size if max_length is None else max_length
        self.bs = block_size
        self.model = Model(num_blocks, block_size, max_sequences, bound, self.read)
        self.step = None  # the open step
        self.closed = None  # the last one that was closed
        self.stale = []  # released handles
        self.prompts = {}  # id -> prompt admitted
        self.memory = {}  # slot -> key
        self.device = {}  # (table row, logical block) -> block, kept only by replaying step.diff

    def read(self, sid):
        return [int(b) for b in self.table.block_table(sid)]

    def some(self, data, ids, least=0):
        ids = sorted(ids)
        return data.draw(st.lists(st.sampled_from(ids), min_size=least, unique=True)) if ids else []

    def settled(self):
        """Rows that no open step names."""
        return self.model.rows.keys() - (self.model.step or {}).keys()

    # ---- rules

    @rule(data=st.data(), reserve=st.integers(0, 7))
    def admit(self, data, reserve):
        prompts, known = [], list(self.model.published) + [tuple(r.tokens) for r in self.model.rows.values()]
        for _ in range(data.draw(st.integers(0, 3))):
            base = list(data.draw(st.sampled_from(known))) if known and data.draw(st.booleans()) else []
            cut = data.draw(st.integers(0, len(base)))
            prompts.append(base[:cut] + data.draw(st.lists(TOKENS, max_size=2 * self.bs + 1)))
        pads = [data.draw(st.sampled_from([0, 0, 0, 1, self.bs, self.bs + 1])) for _ in prompts]
        probes = self.table.match(prompts)
        assert [int(n) for n in probes] == [len(self.model.hits(p)) * self.bs for p in prompts]
        got = self.table.admit(prompts, reserve=reserve, pads=pads if any(pads) else None)
        waiting = False
        for i, (prompt, pad) in enumerate(zip(prompts, pads, strict=True)):
            status, found = self.model.expect_admit(prompt, pad, reserve)
            status, found = (NOT_NOW, []) if waiting else (status, found)
            waiting = status == NOT_NOW
            assert (int(got.status[i]), int(got.cached[i])) == (status, len(found) * self.bs)
            assert (got.ids[i] == -1) == (status != ADMITTED)
            if status == ADMITTED:
                sid = int(got.ids[i])
                assert sid not in self.model.rows and sid not in self.stale
                self.model.admitted(sid, prompt, pad, reserve, found)
                self.prompts[sid] = prompt

    @rule(data=st.data())
    def extend(self, data):
        ids = self.some(data, self.model.rows)
        news = []
        for sid in ids:
            left = self.prompts.get(sid, [])[len(self.model.rows[sid].tokens) :]
            if left and data.draw(st.booleans()):
                news.append(left[: data.draw(st.integers(1, len(left)))])
            else:
                news.append(data.draw(st.lists(TOKENS, max_size=self.bs + 2)))
        counts = [len(new) for new in news]
        if self.model.step is not None:
            with pytest.raises(StepBusy):
                self.table.extend(ids, counts)
            return
        need = self.model.plan(ids, counts)[1]
        fits = need <= self.model.free()
        if any(self.model.rows[s].position + n > self.model.max_length for s, n in zip(ids, counts, strict=True)):
            with pytest.raises(ValueError):
                self.table.extend(ids, counts)
            return
        assert self.table.can_extend(ids, counts) is fits
        if not fits:
            with pytest.raises(OutOfBlocks):
                self.table.extend(ids, counts)
            return
        self.step = self.table.extend(ids, counts)
        self.new = [token for new in news for token in new]
        starts = [self.model.rows[s].position for s in ids]
        pairs = self.model.extend(ids, news)
        assert sorted((int(a), int(b)) for a, b in self.step.copies) == sorted(pairs)
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

    @precondition(lambda self: self.model.step is not None)
    @rule(known=st.sampled_from([True, True, True, False]))
    def commit(self, known):
        known = known or not all(new for _, new in self.model.step.values())  # a row of no tokens: left unsaid
        got = self.table.commit(self.step, np.array(self.new, np.int32) if known else None)
        assert got == self.model.commit(known)
        self.step, self.closed = None, self.step

    @precondition(lambda self: self.model.step is not None)
    @rule()
    def abandon(self):
        self.table.abandon(self.step)
        self.model.abandon()
        self.step, self.closed = None, self.step

    @rule(data=st.data(), n=st.integers(0, 3))
    def fork(self, data, n):
        ids = self.some(data, self.settled())
        at = [data.draw(st.integers(r.pad, r.position)) for r in (self.model.rows[s] for s in ids)]
        whole = data.draw(st.booleans())
        where = None if whole else at
        if len(ids) * n > self.model.free_rows():
            with pytest.raises(OutOfSequences):
                self.table.fork(ids, n, at=where)
            return
        kids = self.table.fork(ids, n, at=where)
        assert kids.shape == (len(ids), n) and kids.dtype == np.int64
        for parent, p, row in zip(ids, at, kids.tolist(), strict=True):
            for kid in row:
                assert kid not in self.model.rows and kid not in self.stale
                self.model.forked(kid, parent, self.model.rows[parent].position if whole else p)

    @rule(data=st.data())
    def truncate(self, data):
        ids = self.some(data, self.settled())
        positions = [data.draw(st.integers(r.pad, r.position)) for r in (self.model.rows[s] for s in ids)]
        before = self.model.free()
        got = self.table.truncate(ids, positions)
        for sid, position in zip(ids, positions, strict=True):
            self.model.truncate(sid, position)
        assert got == self.model.free() - before

    @rule(data=st.data())
    def release(self, data):
        ids = self.some(data, self.model.rows)
        before = self.model.free()
        got = self.table.release(ids)
        for sid in ids:
            self.model.release(sid)
        self.stale += ids
        assert got == self.model.free() - before

    @rule(data=st.data())
    def refused(self, data):
        """Calls that must raise; the invariants then see that nothing changed."""
        t, rows, held = self.table, self.model.rows, list(self.model.step or ())
        held = [s for s in held if s in rows]
        if self.closed is not None:
            for verb in (lambda s: t.commit(s, None), t.abandon):
                with pytest.raises(StepClosed):
                    verb(self.closed)
        if held:
            sid = data.draw(st.sampled_from(held))
            for verb in (lambda: t.fork([sid]), lambda: t.truncate([sid], [rows[sid].position])):
                with pytest.raises(StepOpen):
                    verb()
        if self.stale:
            sid = data.draw(st.sampled_from(self.stale))
            ids = [*data.draw(st.lists(st.sampled_from(sorted(rows)), unique=True)), sid] if rows else [sid]
            ids = [s for s in ids if s not in held]
            calls = [lambda: t.release(ids), lambda: t.fork(ids), lambda: t.truncate(ids, [0] * len(ids))]
            calls += [lambda: t.extend(ids, 1), lambda: t.can_extend(ids, 1)] if self.step is None else []
            for call in calls:
                with pytest.raises((InvalidSequence, OutOfSequences, ValueError)):
                    call()
        for sid in self.some(data, self.settled())[:1]:
            beyond = data.draw(st.sampled_from([-1, rows[sid].position + 1]))
            with pytest.raises(ValueError):
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
                self.abandon()
            self.table.release(sorted(self.model.rows))
            self.table.check()
            assert self.table.stats().free == self.model.num_blocks


# 80 runs of up to 50 rules: some 3,000 steps and more. PAGEDCACHE_SOAK multiplies them.
Machine.TestCase.settings = settings(
    max_examples=80 * int(os.environ.get("PAGEDCACHE_SOAK", "1")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStateMachine = Machine.TestCase
