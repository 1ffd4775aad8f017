"""Random verbs over random tiers: every byte that is found is compared, and nothing is lost in the end."""

import random
from contextlib import suppress

import pytest
from kv_drive import Rows, make_cache
from tiered import Faulty

from pagedcache import Namespace, content, core, salt
from pagedcache.errors import LoadFailed, OutOfBlocks, OutOfSequences
from pagedcache.testing import DelayedBackend
from pagedcache.tiers import DiskTier, HostTier, SecondHit

BORDERS = [None, None, "theirs", Namespace("mine", secret=b"k" * 32)]
FAULTS = ["longest_prefix", "prepare_load", "load", "wrong", "store", "complete_store"]


def one_of_the_prompts(chance):
    """One that shares a beginning with some of the others, of any length from nothing to more than the pool takes."""
    base = 60 * chance.randrange(4)
    tokens = [base + i for i in range(chance.choice([0, 1, 3, 4, 5, 9, 13, 17, 21, 90]))]
    if tokens and chance.random() < 0.5:
        at = chance.randrange(len(tokens))
        tokens[at:] = [300 + chance.randrange(3) for _ in tokens[at:]]
    return tokens


class Driver:
    """Does random verbs on a cache."""

    def __init__(self, seed, tiers, **options):
        self.chance = random.Random(seed)
        self.cache = make_cache(18, fingerprint=b"kv drive", tiers=tiers, max_sequences=6, steps_in_flight=2, **options)
        self.rows, self.live, self.tiers, self.swapped = Rows(self.cache), [], tiers, set()

    def about(self, prompts):
        """The namespace and keys of prompts."""
        some = [None, [salt(b"x")], [content(b"picture", 0, 2)]]
        keys = [self.chance.choice(some) if len(prompt) > 1 else None for prompt in prompts]
        return {"namespace": self.chance.choice(BORDERS), "keys": self.chance.choice([None, keys])}

    def verify(self):
        self.cache.synchronize()
        if self.here():
            self.rows.verify(*self.here())
        self.cache.check()

    def enter(self):
        """Prefetch, admit, begin_load and compute some prompts, or a part of that."""
        chance = self.chance
        prompts = [one_of_the_prompts(chance) for _ in range(chance.choice([1, 1, 2, 3]))]
        about = self.about(prompts)
        if chance.random() < 0.6:
            load = self.cache.prefetch(prompts, **about)
            if chance.random() < 0.2:
                load.cancel()
            if chance.random() < 0.7:
                assert load.wait(60)
        pads = [chance.choice([0, 0, 2, 5]) for _ in prompts] if chance.random() < 0.2 else None
        admission = self.cache.admit(prompts, **about, pads=pads)
        there = [i for i, status in enumerate(admission.status) if status == core.AdmitStatus.ADMITTED]
        ids, prompts = admission.ids[there].tolist(), [prompts[i] for i in there]
        keys = None if about["keys"] is None else [about["keys"][i] for i in there]
        self.live += ids
        self.rows.tokens |= {
            sid: prompt[: admission.cached[i]] for sid, prompt, i in zip(ids, prompts, there, strict=True)
        }
        self.verify()
        load = None
        if chance.random() < 0.5:
            load = self.cache.begin_load(ids, prompts, namespace=about["namespace"], keys=keys)
        self.compute(ids, prompts, load)
        self.verify()

    def compute(self, ids, prompts, load):
        """One step for the rest of some prompts."""
        loaded = [0] * len(ids) if load is None else load.counts.tolist()
        rest = {
            sid: prompt[len(self.rows.tokens[sid]) + count :]
            for sid, prompt, count in zip(ids, prompts, loaded, strict=True)
        }
        flat = [token for tokens in rest.values() for token in tokens]
        step = None
        try:
            step = self.cache.extend(ids, [len(tokens) for tokens in rest.values()])
            if ids and self.chance.random() < 0.1:
                self.leave(ids[0])
            self.rows.write(step, flat)
            if self.chance.random() < 0.2:
                raise LoadFailed
            if self.chance.random() < 0.1:
                self.cache.reset()
            self.cache.commit(step, flat)
            self.rows.tokens |= {
                sid: list(prompt) for sid, prompt in zip(ids, prompts, strict=True) if sid in self.rows.tokens
            }
        except (LoadFailed, OutOfBlocks):
            if step is not None:
                self.cache.abandon(step)
            if load is not None:
                self.chance.choice([lambda: self.cache.cancel_load(load), lambda: self.cache.abandon(load.step)])()

    def grow(self):
        if self.here():
            self.rows.run({self.pick(): [400 + self.chance.randrange(2)] * self.chance.randrange(6)})

    def here(self):
        return [sid for sid in self.live if sid not in self.swapped]

    def pick(self):
        return self.chance.choice(self.here())

    def fork(self):
        if self.here():
            self.live.append(self.rows.fork(self.pick()))

    def reorder(self):
        some = self.chance.sample(self.here(), min(2, len(self.here())))
        if len(some) == 2:
            self.cache.reorder(some, [0, 0])
            self.rows.tokens[some[1]] = list(self.rows.tokens[some[0]])

    def truncate(self):
        if self.here():
            sid = self.pick()
            tokens, at = self.rows.tokens[sid], self.cache.sequence(sid).position
            less = self.chance.randrange(len(tokens) + 1)
            self.cache.truncate([sid], [at - less])
            self.rows.tokens[sid] = tokens[: len(tokens) - less]

    def swap(self):
        if self.swapped:
            sid = min(self.swapped)
            self.cache.swap_in([sid])
            self.swapped.remove(sid)
        elif self.here():
            sid = self.pick()
            self.cache.swap_out([sid])
            self.swapped.add(sid)

    def leave(self, sid=None):
        if self.live:
            sid = self.chance.choice(self.live) if sid is None else sid
            self.live.remove(sid)
            self.swapped.discard(sid)
            self.rows.release(sid)

    def pin(self):
        with suppress(KeyError):
            self.cache.unpin("p")
        self.cache.pin([one_of_the_prompts(self.chance)[:13]], "p")

    def forget(self):
        if self.chance.random() < 0.5:
            self.cache.invalidate(namespace=self.chance.choice(BORDERS))
        else:
            self.cache.evict(self.chance.randrange(18))

    def break_or_mend(self):
        for tier in self.tiers:
            if isinstance(tier, Faulty):
                tier.failing = {self.chance.choice(FAULTS)} if self.chance.random() < 0.4 else set()

    def other(self):
        overwrite = [self.rows.overwrite] if len(self.live) < 6 else []
        self.chance.choice([self.cache.compact, self.cache.flush, *overwrite])()

    def told(self):
        self.cache.events(anew=self.chance.random() < 0.3)

    def drive(self, steps):
        verbs = [self.enter] * 8 + [self.leave] * 6 + [
            self.grow, self.fork, self.reorder, self.truncate, self.swap, self.pin, self.forget, self.break_or_mend,
            self.other, self.told,
        ]  # fmt: skip
        for _ in range(steps):
            with suppress(OutOfBlocks, OutOfSequences):
                self.chance.choice(verbs)()
            assert not self.cache.open_steps
            self.verify()
        self.close()

    def close(self):
        while self.live:
            self.leave()
        with suppress(KeyError):
            self.cache.unpin("p")
        self.cache.flush()
        self.cache._tiers.loaders.submit(int).result(60)
        self.cache._tiers.loaders.submit(int).result(60)
        while self.cache._tiers.under_way:
            pass
        self.cache.synchronize()
        self.cache.check()
        assert self.cache.stats().free == 18 and self.cache.stats().used == 0
        self.cache.close()


TIERS = {
    "host": lambda path: [HostTier(12 * 512)],
    "disk": lambda path: [DiskTier(path / "blocks", "1 MiB")],
    "failing": lambda path: [Faulty("64 KiB")],
    "all": lambda path: [HostTier(5 * 512), Faulty(9 * 512), SecondHit(DiskTier(path / "blocks", "1 MiB"))],
}
POLICIES = {
    "LRU": core.LRU, "LFUDA": core.LFUDA, "ARC": core.ARC, "S3FIFO": core.S3FIFO, "NeverHitFirst": core.NeverHitFirst,
    "PriorityTTL": lambda: core.PriorityTTL([1000.0]),
}  # fmt: skip


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("backend", ["cpu", "numpy", "delayed"])
def test_any_verbs_over_any_tiers(tmp_path, backend, tiers):
    seed = list(TIERS).index(tiers)
    policy = list(POLICIES.values())[seed]()
    backend = DelayedBackend() if backend == "delayed" else backend
    Driver(seed, TIERS[tiers](tmp_path), backend=backend, events="tokens", policy=policy).drive(60)
