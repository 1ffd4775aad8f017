"""Windows that slide while work is in flight: no block that it may read is handed out before it is done."""

import random

import pytest
from hybrid_drive import Rows, make_cache

from pagedcache.errors import OutOfBlocks
from pagedcache.testing import DelayedBackend


class Watched(DelayedBackend):
    """Knows which blocks the calls of attend in its queue may read."""

    def attend(self, storage, layer, q, step, **options):
        tables = step.groups[storage.spec.locate(layer)[0]].block_tables
        blocks = {block for block in tables.ravel().tolist() if block > 0}
        out = super().attend(storage, layer, q, step, **options)
        self._queue[-1].blocks = blocks
        return out

    def busy(self):
        return set().union(*[getattr(call, "blocks", ()) for call in self._queue])


@pytest.mark.parametrize("completes", [False, True], ids=["at the end", "now and then"])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_in_use_are_not_handed_out(seed, completes):
    """Two steps in flight; some are abandoned, and guesses are rejected."""
    rng, backend = random.Random(seed), Watched()
    with make_cache(150, backend=backend, steps_in_flight=2, max_step_tokens=4) as cache:
        rows, opened = Rows(cache), []
        ids = cache.admit([[]] * 3).ids.tolist()
        for _ in range(50):
            if opened and (len(opened) == 2 or rng.random() < 0.3):
                if rng.random() < 0.2:
                    cache.abandon(opened.pop()[0])
                else:
                    step, new = opened.pop(0)
                    alone = not any(sid in later for _, later in opened for sid in new)
                    keep = [range(rng.randint(0, len(row)) if alone else len(row)) for row in new.values()]
                    cache.commit(step, [token for row in new.values() for token in row], [list(kept) for kept in keep])
            else:
                new = {sid: [rng.randrange(200) for _ in range(rng.randint(1, 4))] for sid in rng.sample(ids, 2)}
                busy, before = backend.busy(), held(cache, ids)
                try:
                    step = cache.extend(list(new), [len(tokens) for tokens in new.values()])
                except OutOfBlocks:
                    cache.synchronize()
                    continue
                assert not (held(cache, ids) - before) & busy, "handed out before work on it was done"
                for layer in range(cache.spec.layers):
                    rows.compute(layer, step, [token for tokens in new.values() for token in tokens])
                opened.append((step, new))
            if completes and rng.random() < 0.5:
                backend.complete(rng.randint(1, 9))
                cache.retire(backend.completed_fence)
            cache.check()
        while opened:
            cache.abandon(opened.pop()[0])
        cache.release(ids)
        cache.synchronize()
        assert cache.pool.num_free == cache.num_blocks


def held(cache, ids):
    """All blocks that the tables of some sequences name."""
    tables = [cache.sequences.block_table(sid, group) for sid in ids for group in range(cache.spec.num_groups)]
    return {block for table in tables for block in table.tolist()}


@pytest.mark.parametrize("late_arguments", [False, True])
def test_results_when_all_work_is_late(late_arguments):
    """Steps are opened and committed while windows slide and nothing is computed; in the end all is right."""
    backend = DelayedBackend(late_arguments=late_arguments)
    with make_cache(400, backend=backend, steps_in_flight=2) as cache:
        rows = Rows(cache)
        sid = rows.admit([7 * k % 200 for k in range(20)])
        for k in range(12):
            step = cache.extend([sid], [3])
            for layer in range(cache.spec.layers):
                rows.compute(layer, step, [k, k + 1, k + 2])
            if late_arguments:
                cache.synchronize()  # before arrays of the step are used again
            cache.commit(step, [k, k + 1, k + 2])
            rows.tokens[sid] += [k, k + 1, k + 2]
            assert late_arguments or backend.pending > 0
        rows.run({sid: [5, 6]})
        rows.release(sid)
        cache.synchronize()
        assert cache.pool.num_free == 400
