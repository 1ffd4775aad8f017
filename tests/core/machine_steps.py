"""Steps in the state machine: several open at a time, trees, accepted paths; their arrays against the model."""

from itertools import pairwise

import numpy as np
import pytest
from machine import CacheMachine, Opened
from simulated import contents

from pagedcache.errors import OutOfBlocks, StepBusy, StepOpen


class StepMachine(CacheMachine):
    """Steps are opened, committed, abandoned."""

    def decode(self, rng):
        if len(self.open) < rng.randint(1, self.table.steps_in_flight):
            self.extend(rng)
        if self.open and rng.random() < 0.8:
            (self.abandon if rng.random() < 0.2 else self.commit)(rng)

    def extend(self, rng):
        if not self.here():
            self.admit(rng)
        ids, news = self.some(rng, self.here()), []
        for sid in ids:
            left = self.prompts.get(sid, [])[self.model.end(sid) - self.model.rows[sid].pad :]
            if left and rng.random() < 0.7:
                news.append(left[: None if rng.random() < 0.7 else rng.randint(1, len(left))])
            else:
                news.append(self.tokens(rng, rng.choice([1, 1, 2, 2 * self.bs + 1]), least=rng.random() < 0.8))
        counts, starts = [len(new) for new in news], [self.model.end(sid) for sid in ids]
        paths, depths = self.paths(rng, counts, branching=rng.random() < 0.2)
        options = {"depths": depths if rng.random() < 0.5 or depths != self.paths(rng, counts, False)[1] else None}
        options["cascade"] = rng.random() < 0.5
        self.say("extend", ids, counts, news, options)
        if len(self.open) == self.table.steps_in_flight:
            with pytest.raises(StepBusy):
                self.table.extend(ids, counts, **options)
            return
        _, need = self.model.plan(ids, counts)
        if any(start + n > self.model.max_length for start, n in zip(starts, counts, strict=True)):
            with pytest.raises(ValueError, match="max_length"):
                self.table.extend(ids, counts, **options)
            return
        assert self.table.can_extend(ids, counts, **options) is (need <= self.model.free())
        if need > self.model.free():
            self.short = True
            with pytest.raises(OutOfBlocks):
                self.table.extend(ids, counts, **options)
            return
        base = {sid: self.following(sid) for sid in ids}
        step = self.table.extend(ids, counts, **options)
        assert sorted(map(tuple, step.copies.tolist())) == sorted(self.model.extend(ids, news))
        self.see(step, ids, starts, counts, depths, options["cascade"])
        written = {}
        for sid, new, of_row in zip(ids, news, paths, strict=True):
            about, tokens = self.model.rows[sid].about, base[sid][0]
            written[sid] = [contents(about, tokens + [new[k] for k in path], self.bs)[-1] for path in of_row]
        self.memory.open_step(step, [one for sid in ids for one in written[sid]])
        reads = {}
        for sid, end in zip(ids, step.kv_lens.tolist(), strict=True):
            row = self.model.rows[sid]
            slots = [row.blocks[p // self.bs] * self.bs + p % self.bs for p in range(row.pad, end)]
            reads[sid] = slots, base[sid][1] + written[sid]
        self.open.append(Opened(step, ids, news, paths, written, self.arrays(step), reads))

    def paths(self, rng, counts, branching):
        """For each row and new token the tokens on the way to it, itself the last; and all depths."""
        rows = []
        for n in counts:
            row = []
            for k in range(n):
                parent = rng.randint(max(-1, k - 3), k - 1) if branching else k - 1
                row.append([*(row[parent] if parent >= 0 else []), k])
            rows.append(row)
        return rows, [len(path) - 1 for row in rows for path in row]

    def following(self, sid):
        """Tokens of a row as all open steps leave it, and what its slots hold."""
        row, tokens = self.model.rows[sid], list(self.model.rows[sid].tokens)
        stored = contents(row.about, tokens, self.bs)
        for opened in self.open:
            if sid in opened.ids:
                tokens += opened.news[opened.ids.index(sid)]
                stored += opened.written[sid]
        return tokens, stored

    def arrays(self, step):
        names = ("ids", "slots", "positions", "token_seq", "qo_indptr", "kv_lens", "kv_pads", "copies", "new_blocks")
        return [getattr(step, name).tolist() for name in names]

    def see(self, step, ids, starts, counts, depths, cascade):
        """The arrays of the step say what the model's rows say."""
        rows, bs = [self.model.rows[s] for s in ids], self.bs
        ends = [a + n for a, n in zip(starts, counts, strict=True)]
        assert step.ids.tolist() == ids and step.kv_lens.tolist() == ends
        assert step.kv_pads.tolist() == step.kv_starts.tolist() == [row.pad for row in rows]
        assert step.qo_indptr.tolist() == np.cumsum([0, *counts]).tolist()
        owners = [i for i, n in enumerate(counts) for _ in range(n)]
        assert step.token_seq.tolist() == owners
        assert step.positions.tolist() == [starts[i] - rows[i].pad + d for i, d in zip(owners, depths, strict=True)]
        coordinates = [(row, p) for row, a, z in zip(rows, starts, ends, strict=True) for p in range(a, z)]
        assert step.slots.tolist() == [row.blocks[p // bs] * bs + p % bs for row, p in coordinates]
        assert len(set(step.slots.tolist())) == step.num_tokens  # no two tokens share a slot
        self.device.replay(step.diff)
        for i, (sid, row, end) in enumerate(zip(ids, rows, ends, strict=True)):
            live = row.blocks[: self.model.span(end)]
            table = step.block_tables[i].tolist()
            assert table[: len(live)] == live and set(table[len(live) :]) <= {-1}
            assert self.device.table(sid, len(live)) == live
            csr = step.kv_indices[step.kv_indptr[i] : step.kv_indptr[i + 1]].tolist()
            assert csr == live and (len(csr) - 1) * bs + step.kv_last_page_len[i] == (end if end else -bs)
        assert (step.shared_prefixes is not None) == cascade
        shared = step.shared_prefixes.tolist() if cascade else []
        assert all(a[0] + a[1] <= b[0] for a, b in pairwise(shared))  # one after the other
        for first, n, blocks in shared:
            assert n > 1 and blocks > 0 and first + n <= len(rows)
            assert len({tuple(row.blocks[:blocks]) for row in rows[first : first + n]}) == 1
            assert all(start >= blocks * bs for start in starts[first : first + n])  # whole before any new token
            assert all(row.pad == 0 for row in rows[first : first + n])

    def commit(self, rng):
        if not self.open:
            return
        if rng.random() < self.asynchronous:
            self.cover(rng)
        opened = self.open[0]
        accepted = [list(range(len(new))) for new in opened.news]
        if chosen := opened.is_tree() or rng.random() < 0.3:
            accepted = [self.choose(rng, sid, *of_row) for sid, of_row in zip(opened.ids, opened.paths, strict=True)]
        known = rng.random() < 0.92
        tokens = np.array([token for new in opened.news for token in new], np.int32) if known else None
        given = (tokens, accepted) if chosen else (tokens,)
        if opened.is_tree() and rng.random() < 0.2:
            with pytest.raises(ValueError, match="accepted"):
                self.table.commit(opened.step, tokens)
        self.say("commit", opened.ids, accepted if chosen else None, known)
        entries = zip(opened.ids, opened.news, accepted, strict=True)
        if any(len(kept) < len(new) and self.goes_on(sid) for sid, new, kept in entries):
            for verb in (self.table.commit, self.table.check_commit):
                with pytest.raises(StepOpen):
                    verb(opened.step, *given)
            self.abandon(rng)
            return
        if chosen:
            self.table.check_commit(opened.step, *given)
            sources, destinations = (slots.tolist() for slots in opened.step.moves(accepted))
            self.memory.move(sources, destinations)
        got = self.table.commit(opened.step, *given)
        assert got == self.model.commit(known, dict(zip(opened.ids, accepted, strict=True)))
        self.closed = self.open.pop(0).step

    def choose(self, rng, sid, *paths):
        """A path of accepted tokens; mostly all of them, where a newer step goes on from the row."""
        if not paths or (self.goes_on(sid) and rng.random() < 0.9 and len(paths[-1]) == len(paths)):
            return list(paths[-1]) if paths else []
        return rng.choice([[], *paths, paths[-1]])

    def goes_on(self, sid):
        """Whether a newer step than the oldest names the row, and it was not released."""
        return sid in self.model.rows and any(sid in opened.ids for opened in self.open[1:])

    def abandon(self, rng):
        if self.open:
            self.closed = self.open.pop().step
            self.say("abandon", self.closed.ids.tolist())
            self.table.abandon(self.closed)
            self.model.abandon()
