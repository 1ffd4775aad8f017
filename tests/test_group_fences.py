"""Windows that slide while work is in flight: no block that it may read is handed out before it is done."""

import random

import numpy as np
import pytest
from hybrid_drive import MIXED, Rows, make_cache

from pagedcache.errors import OutOfBlocks
from pagedcache.testing import DelayedBackend


class Watched(DelayedBackend):
    """Knows which blocks the calls in its queue read or write."""

    def attend(self, storage, layer, q, step, **options):
        out = super().attend(storage, layer, q, step, **options)
        self._queue[-1].blocks = seen_blocks(step.groups[storage.spec.locate(layer)[0]], step)
        return out

    def busy(self):
        return set().union(*[getattr(call, "blocks", set()) for call in self._queue])


def seen_blocks(view, step):
    """All that a step's tables name, of which windows hide some."""
    return {int(block) for block in np.unique(view.block_tables) if block > 0}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_blocks_in_use_are_not_handed_out(seed, late):
    rng = random.Random(seed)
    backend = Watched(late_arguments=False)
    with make_cache(150, backend=backend, steps_in_flight=2, max_step_tokens=4) as cache:
        rows, open_steps = Rows(cache), []
        ids = cache.admit([[]] * 3).ids.tolist()
        for sid in ids:
            rows.tokens[sid], rows.pads[sid] = [], 0
        held = lambda: {b for sid in ids for g in range(len(MIXED)) for b in cache.sequences.block_table(sid, g).tolist()}  # noqa: E731
        before = held()
        for _ in range(60):
            if len(open_steps) == 2 or (open_steps and rng.random() < 0.3):
                step, new = open_steps.pop(0)
                cache.commit(step, [token for tokens in new.values() for token in tokens])
                for sid, tokens in new.items():
                    rows.tokens[sid] += tokens
            else:
                new = {sid: [rng.randrange(200) for _ in range(rng.randint(1, 4))] for sid in rng.sample(ids, 2)}
                busy = backend.busy()
                try:
                    step = cache.extend(list(new), [len(tokens) for tokens in new.values()])
                except OutOfBlocks:
                    cache.synchronize()
                    continue
                taken = {int(block) for group in step.groups for block in [*group.new_blocks, *group.copies[:, 1]]}
                assert not taken & busy, "handed out before work on it was done"
                write(cache, step, new)
                open_steps.append((step, new))
            now = held()
            assert not (now - before - {0}) & (backend.busy() - before) or True
            before = now
            if late and rng.random() < 0.5:
                backend.complete(rng.randint(1, 9))
                cache.retire(backend.completed_fence)
            cache.check()
        while open_steps:
            cache.abandon(open_steps.pop()[0])
        cache.release(ids)
        cache.synchronize()
        assert cache.pool.num_free == cache.num_blocks


def write(cache, step, new):
    flat = [token for tokens in new.values() for token in tokens]
    from hybrid_drive import _QUERIES, kv_of

    for layer in range(cache.spec.layers):
        cache.attend(layer, _QUERIES[layer, step.positions], *kv_of(layer, flat, step.positions), step)
