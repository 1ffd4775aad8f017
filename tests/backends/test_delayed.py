"""Backend "delayed" does everything right, later; and shows what goes wrong when somebody does not wait."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, backends
from pagedcache.testing import BackendConformance, DelayedBackend, make_scene, make_step

SPEC = CacheSpec(1, 2, 8, block_size=4)


class TestDelayed(BackendConformance):
    @pytest.fixture
    def backend(self):
        return DelayedBackend()


def rows(value, tokens=4):
    """K or V of some tokens, filled with one number."""
    return np.full((tokens, 2, 8), value, np.float32)


def slots_of(block):
    return np.arange(block * 4, block * 4 + 4)


def first_key(storage, block):
    return float(storage.view(0)[0][block, 0, 0, 0])


def test_nothing_is_there_before_it_is_done():
    backend = DelayedBackend()
    storage = backend.allocate(SPEC, 4)
    backend.write(storage, 0, rows(1), rows(1), slots_of(1))
    out = backend.attend(storage, 0, np.ones((1, 2, 8), np.float32), make_step([[1]], [(1, 4)], 4))
    records = backend.read_blocks(storage, [1])
    merged, _ = backend.merge(out[None], np.zeros((1, 1, 2), np.float32))
    assert backend.pending == 4
    assert not storage.view(0)[0].any()
    assert np.isnan(out).all() and np.isnan(merged).all() and (records == 0xFF).all()
    assert backend.complete(2) == 2
    assert (out == 1).all() and np.isnan(merged).all() and (records == 0xFF).all()
    backend.synchronize()
    assert (merged == 1).all()
    assert records[0, 0].view(np.float32).tolist() == [1] * 128
    assert (backend.pending, backend.complete()) == (0, 0)


def test_results_have_the_bits_of_the_backend_behind():
    lengths = [(1, 40), (7, 7), (5, 33)]
    now = make_scene(backends.get("numpy"), SPEC, lengths, q_heads=4).attend()
    later = make_scene(DelayedBackend(), SPEC, lengths, q_heads=4).attend()
    assert [array.tobytes() for array in now] == [array.tobytes() for array in later]


def test_fences_cover_what_was_submitted_before():
    backend = DelayedBackend()
    storage = backend.allocate(SPEC, 4)
    assert (backend.fence(), backend.completed_fence, backend.capabilities.synchronous) == (0, 0, False)
    fences = []
    for block in (1, 2, 3):
        backend.write(storage, 0, rows(block), rows(block), slots_of(block))
        fences.append(backend.fence())
    assert fences == [1, 2, 3]
    for done in fences:
        backend.complete()
        assert backend.completed_fence == done
    backend.copy_blocks(storage, [(1, 4)])
    backend.write(storage, 0, rows(9), rows(9), slots_of(2))
    assert backend.complete(only="write") == 1
    assert backend.completed_fence == 3, "a call that overtook others leaves them open"
    assert (first_key(storage, 2), first_key(storage, 4)) == (9, 0)


def test_a_refused_call_leaves_nothing_in_the_queue():
    backend = DelayedBackend()
    storage = backend.allocate(SPEC, 4)
    with pytest.raises(ValueError, match="slot 3"):
        backend.write(storage, 0, rows(1), rows(1), np.arange(3, 7))
    with pytest.raises(ValueError, match="both"):
        backend.copy_blocks(storage, [(1, 2), (2, 3)])
    assert (backend.pending, backend.fence(), backend.submitted.bytes_moved) == (0, 0, 0)


@pytest.mark.parametrize(("wait", "restored"), [(True, 1.0), (False, 2.0)])
def test_a_block_that_is_reused_while_it_is_read_shows(wait, restored):  # C04
    backend = DelayedBackend()
    storage = backend.allocate(SPEC, 4)
    backend.write(storage, 0, rows(1), rows(1), slots_of(1))
    backend.synchronize()
    saved = backend.read_blocks(storage, [1])
    if wait:
        backend.complete(only="read_blocks")
    backend.write(storage, 0, rows(2), rows(2), slots_of(1))  # somebody else's block by now
    backend.complete(only="write")
    backend.synchronize()
    backend.write_blocks(storage, [3], saved)
    backend.synchronize()
    assert first_key(storage, 3) == restored


@pytest.mark.parametrize(("late", "seen"), [(False, [1.0, 2.0]), (True, [2.0, 2.0])])
def test_a_table_that_is_overwritten_too_early_shows(late, seen):  # C05
    backend = DelayedBackend(late_arguments=late)
    storage = backend.allocate(SPEC, 4)
    for block in (1, 2):
        backend.write(storage, 0, rows(block), rows(block), slots_of(block))
    step = make_step([[1]], [(1, 4)], 4)
    buffers = SimpleNamespace(**{name: getattr(step, name) for name in dir(step) if not name.startswith("_")})
    buffers.block_tables = np.array([[1]], np.int32)
    q = np.ones((1, 2, 8), np.float32)
    first = backend.attend(storage, 0, q, buffers)
    buffers.block_tables[0, 0] = 2
    second = backend.attend(storage, 0, q, buffers)
    backend.synchronize()
    assert [float(first[0, 0, 0]), float(second[0, 0, 0])] == seen


def test_closing_finishes_the_work():
    backend = DelayedBackend()
    mine = [tuple(np.zeros(SPEC.key_shape(4), np.float32) for _ in "kv")]
    storage = backend.allocate(SPEC, 4, buffers=mine)
    backend.write(storage, 0, rows(1), rows(1), slots_of(1))
    storage.close()
    assert backend.pending == 0
    assert (mine[0][0][1] == 1).all()


def test_a_decode_step_waits_for_nothing_and_copies_what_it_must():  # S08, S05
    backend = DelayedBackend()
    with KVCache(CacheSpec(3, 2, 8, block_size=4), num_blocks=40, backend=backend) as cache:
        ids = cache.admit([[1, 2, 3, 4, 5, 6]]).ids
        for count in (6, 1):
            step = cache.extend(ids, [count] * len(ids))
            tokens = count * len(ids)
            for layer in range(3):
                out = cache.attend(layer, np.ones((tokens, 4, 8), np.float32), *[rows(layer, tokens)] * 2, step)
            cache.commit(step, np.arange(tokens))
            if count == 6:
                ids = np.concatenate([ids, cache.fork(ids, 4)[0]])
        assert backend.submitted.calls == {"write": 6, "attend": 6, "copy_blocks": 1}
        assert backend.submitted.blocks_copied == 4, "five sequences shared a partial block: one keeps it"
        moved = 4 * cache.spec.bytes_per_block + (6 + 5) * cache.spec.bytes_per_token
        assert (backend.submitted.bytes_moved, backend.completed.bytes_moved) == (moved, 0)
        assert np.isnan(out).all()
        backend.synchronize()
        assert (out == 2).all()
        assert backend.completed.calls["synchronize"] == 1
        assert backend.completed == backend.submitted
