"""The state machine's base: a table beside its model, prompts that have much in common, what must hold at any time."""

import random
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from model import ADMITTED, AWAY, NEVER_FITS, NOT_NOW, About, Model
from simulated import FINGERPRINT, Device, Memory, Reader, contents

from pagedcache.core import (
    ARC,
    LFUDA,
    LRU,
    S3FIFO,
    BlockPool,
    NamespaceQuotas,
    NeverHitFirst,
    PriorityTTL,
    SequenceTable,
    Step,
)
from pagedcache.keys import Key, Namespace, block_keys, content, salt

# Each rule draws all it does from one seed: hypothesis's own choices would be nearly empty lists and tables.
SEEDS = st.integers(0, 2**20 - 1).map(random.Random)  # a wider range is drawn mostly small
POLICIES = [LRU, LRU, lambda: PriorityTTL([0.5, 60, None]), ARC, LFUDA, NeverHitFirst, S3FIFO]
POLICIES += [lambda: NamespaceQuotas({"ours": 2, None: 5})]
NAMESPACES = [Namespace(), Namespace("ours"), Namespace("theirs", secret=b"at least 16 bytes")]


@dataclass
class Opened:
    """An open step, and what it must show until it closes."""

    step: Step
    ids: list[int]
    news: list[list[int]]
    paths: list[list[list[int]]]  # per row and new token: the new tokens that it follows, itself the last
    written: dict[int, list[int]]  # per row: contents of the new tokens
    arrays: list[Any]
    reads: dict[int, tuple[list[int], list[int]]]  # per row: the slots it attends to, and their contents

    def is_tree(self) -> bool:
        return any(path != list(range(k + 1)) for paths in self.paths for k, path in enumerate(paths))


class CacheMachine(RuleBasedStateMachine):
    """Prompts come in, and the prefix cache is controlled."""

    verbs: ClassVar[dict[str, float]]  # how often each is tried

    @initialize(
        num_blocks=st.sampled_from([4, 5, 6, 8, 10, 13, 20, 30, 40, 40]),
        block_size=st.sampled_from([4, 3, 2, 5, 1]),
        max_sequences=st.sampled_from([12, 12, 8, 2]),
        max_length=st.sampled_from([None, None, None, 30, 9]),
        tag_bits=st.sampled_from([64, 64, 2, 0]),  # few bits: everything collides in the prefix index
        steps_in_flight=st.sampled_from([2, 1, 3]),
        policy=st.sampled_from(POLICIES),
        events=st.sampled_from([None, "digests", "tokens"]),
        rng=SEEDS,
    )
    def start(self, num_blocks, block_size, max_sequences, max_length, tag_bits, steps_in_flight, policy, events, rng):
        self.pool = BlockPool(num_blocks, policy=policy())
        self.table = SequenceTable(
            self.pool,
            block_size,
            max_sequences=max_sequences,
            max_length=max_length,
            tag_bits=tag_bits,
            steps_in_flight=steps_in_flight,
            events=events,
            fingerprint=FINGERPRINT,
        )
        bound = num_blocks * block_size if max_length is None else max_length
        self.bs = block_size
        self.weights = [
            weight * rng.choice([0.2, 1, 1, 3]) for weight in self.verbs.values()
        ]  # another mix in each run
        self.asynchronous = rng.choice([0, 0, 0.5])  # steps whose fence is named when they are closed
        self.namespaces = rng.choice([NAMESPACES[:1], NAMESPACES])
        self.keyed = rng.choice([0, 0, 0.1, 0.3])  # prompts that get a key more
        self.model = Model(num_blocks, block_size, max_sequences, bound, self.read)
        self.memory, self.device = Memory(block_size), Device()
        self.reader = None if events is None else Reader(self.model, events == "tokens")
        self.levels = self.pool.policy.num_levels
        self.open: list[Opened] = []  # steps, oldest first
        self.closed = None  # the last one that was closed
        self.stale = []  # released handles
        self.prompts = {}  # id -> prompt admitted
        self.saved = {}  # id -> contents of its swapped blocks

    def read(self, sid):
        return [int(b) for b in self.table.block_table(sid)]

    def some(self, rng, ids, most=99):
        """A few of the ids, often all of them, in any order."""
        ids = rng.sample(sorted(ids), len(ids))
        return ids[: most if rng.random() < 0.4 else rng.randint(rng.random() > 0.1, max(1, min(most, len(ids))))]

    def tokens(self, rng, most, least=0):
        """Up to `most` tokens of two kinds, so that unrelated rows often agree."""
        return [rng.randrange(2) for _ in range(rng.randint(least, most))]

    def here(self):
        return {sid for sid, row in self.model.rows.items() if not row.away}

    def settled(self):
        """Rows at hand that no open step names."""
        return {sid for sid in self.here() if not self.model.is_open(sid)}

    def say(self, verb, ids, *rest):
        note(f"{verb}({[sid & 0xFFFFFFFF for sid in ids]}, {', '.join(map(str, rest))})")

    # ---- prompts

    def keys(self, rng, known: tuple[Key, ...], length: int) -> tuple[Key, ...]:
        """What is known of a prompt and still lies within it; sometimes one thing more."""
        keys = tuple(key for key in known if (key.stop or key.start) <= length)
        if rng.random() < self.keyed:
            start = rng.randint(0, length)
            stop = rng.randint(start, length)
            more = (
                salt("pepper", start)
                if stop == start
                else content(
                    rng.choice(["cat", "dog", f"picture {rng.randrange(50)}"]),
                    start,
                    stop,
                )
            )
            try:
                block_keys(None, [*keys, more], self.bs, length)
            except ValueError:  # overlaps what is there
                return keys
            return (*keys, more)
        return keys

    def ask(self, rng, most):
        """A namespace, and prompts in it that have much in common with what is known."""
        namespace = rng.choice(self.namespaces)
        known = [(row.about, row.tokens) for row in self.model.rows.values()]
        known += [(self.model.origin[p], [t for _, block in p[1] for t in block]) for p in self.model.published]
        known = [entry for entry in known if entry[0].namespace == namespace] or [(About(namespace), [])]
        prompts, abouts = [], []
        for _ in range(rng.randint(rng.random() > 0.1, most)):
            about, base = rng.choice(known)
            cut = rng.choice([len(base), len(base), rng.randint(0, len(base)), max(0, len(base) - self.bs // 2)])
            prompt = base[:cut] + self.tokens(rng, 2 * self.bs + 1)
            prompts.append(prompt)
            abouts.append(About(namespace, self.keys(rng, about.keys, len(prompt))))
        keys = [about.keys or None for about in abouts]
        return prompts, abouts, {"namespace": namespace, "keys": keys if any(keys) or rng.random() < 0.5 else None}

    def admit(self, rng):
        prompts, abouts, told = self.ask(rng, 3)
        reserve, pads = (
            rng.choice([0, 0, 0, 0, 1, 7]),
            [rng.choice([0] * 6 + [1, self.bs, self.bs + 1]) for _ in prompts],
        )
        for prompt, about, cached in zip(prompts, abouts, self.table.match(prompts, **told).tolist(), strict=True):
            fits = self.model.expect_admit(about, prompt, 0, 0)[0] != NEVER_FITS
            assert cached == (self.model.shares(about, prompt, self.model.span(len(prompt)))[1] if fits else 0)
        self.say("admit", [], prompts, reserve, pads, told)
        told |= {"reserve": reserve, "pads": pads if any(pads) else None, "priority": rng.randrange(self.levels)}
        got = self.table.admit(prompts, **told)
        waiting = False
        for i, (prompt, about, pad) in enumerate(zip(prompts, abouts, pads, strict=True)):
            status, found, cached = self.model.expect_admit(about, prompt, pad, reserve)
            status, found, cached = (NOT_NOW, [], 0) if waiting else (status, found, cached)
            self.short = waiting = status == NOT_NOW
            assert (int(got.status[i]), int(got.cached[i])) == (status, cached)
            assert (got.ids[i] == -1) == (status != ADMITTED)
            if status == ADMITTED:
                sid = int(got.ids[i])
                assert sid not in self.model.rows and sid not in self.stale
                self.model.admitted(sid, about, prompt, pad, reserve, found, cached)
                self.prompts[sid] = prompt

    def pin(self, rng):
        prompts, abouts, told = self.ask(rng, 1)
        name = f"pin {rng.randrange(4)}"
        self.say("pin", [], name, prompts, told)
        if name in self.model.pins:
            with pytest.raises(ValueError, match="taken"):
                self.table.pin(prompts, name, **told)
            return
        found = self.model.pinned(name, *abouts, prompts) if prompts else 0
        if prompts and name not in self.model.pins:
            with pytest.raises(ValueError, match="max_pinned"):
                self.table.pin(prompts, name, **told)
        elif prompts:
            assert self.table.pin(prompts, name, **told) == found

    def demote(self, rng):
        prompts, _, told = self.ask(rng, 2)
        assert 0 <= self.table.demote(prompts, **told) <= len(prompts) * self.table.stats().cached

    def unpin(self, rng):
        name = f"pin {rng.randrange(4)}"
        if name not in self.model.pins:
            with pytest.raises(KeyError):
                self.table.unpin(name)
            return
        self.say("unpin", [], name)
        before = self.model.free()
        del self.model.pins[name]
        assert self.table.unpin(name) == self.model.free() - before

    def evict(self, rng):
        longest = max((len(prefix[1]) + 1 for prefix in self.model.published), default=0) * self.bs
        if longest > min(self.model.max_length, self.model.num_blocks * self.bs):
            return  # match cannot tell what is left
        idle, n = self.model.idle(), rng.choice([0, 1, 1, 2, 99])
        self.say("evict", [], n)
        assert self.table.evict(n) == min(n, len(idle))

        def gone(prefix, block):
            about, tokens = self.model.origin[prefix], [token for _, told in prefix[1] for token in told]
            keys = [key for key in about.keys if key.start < len(tokens)]
            longer = tokens + [0] * max(1, About(about.namespace, tuple(keys)).settled() - len(tokens))
            [cached] = self.table.match([longer], namespace=about.namespace, keys=[keys])
            assert cached >= len(tokens) or block in idle
            return cached < len(tokens)

        went = self.model.forget(gone)
        assert went == min(n, len(idle))
        self.model.evictions += went

    def reset(self, rng):
        self.say("reset", [])
        assert self.table.reset() == self.model.invalidate(None)

    def invalidate(self, rng):
        namespace = rng.choice(self.namespaces)
        self.say("invalidate", [], namespace)
        got = self.table.invalidate(namespace=namespace if namespace.name else None)
        assert got == self.model.invalidate(namespace.name)

    def events(self, rng):
        if self.reader is not None:
            self.reader.drain(self.table)

    def wait(self, rng):
        if self.levels > 1:
            self.pool.policy.advance(rng.choice([0.3, 1, 100]))

    # ---- what holds after each of them

    @invariant()
    def audit(self):
        if not hasattr(self, "table"):
            return
        model, stats, references = self.model, self.table.stats(), self.model.references()
        self.table.check()
        assert dict(enumerate(self.pool.refcounts().tolist())) == {
            b: references[b] for b in range(model.num_blocks + 1)
        }
        assert (stats.free, stats.used, stats.cached) == (model.free(), len(model.used()), len(model.idle()))
        assert stats.num_blocks == stats.free + stats.used and stats.sequences == len(model.rows)
        assert stats.shared == sum(n > 1 for n in references.values()) and stats.published == len(model.published)
        assert stats.waiting == len(model.waiting.keys() - model.held) and stats.copies == model.copies
        assert stats.pinned == sum(len(blocks) for _, blocks in model.pins.values())
        assert stats.swapped == sum(row.blocks.count(AWAY) for row in model.rows.values())
        assert stats.tokens == sum(len(row.tokens) for row in model.rows.values())
        assert stats.evictions == model.evictions
        assert all((p[0], p[1][:-1]) in model.published for p in model.published if len(p[1]) > 1)  # all reachable
        self.audit_contents()

    def audit_contents(self):
        model, bs = self.model, self.bs
        for sid, row in model.rows.items():
            assert row.away or self.read(sid) == row.blocks
            expected = contents(row.about, row.tokens, bs)
            for p in range(row.pad, row.position):
                block = row.blocks[p // bs]
                assert block == AWAY or self.memory.slots[block * bs + p % bs] == expected[p - row.pad]
        for prefix, block in model.published.items():
            want = contents(model.origin[prefix], [token for _, told in prefix[1] for token in told], bs)[-bs:]
            assert self.memory.read(self.memory.of_blocks([block])) == want
        for opened in self.open:
            assert self.arrays(opened.step) == opened.arrays
            for sid, (slots, want) in opened.reads.items():
                assert sid not in model.rows or self.memory.read(slots) == want
                assert {slot // bs for slot in slots} <= model.used()
