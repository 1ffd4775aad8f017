"""begin_load: layers come from tiers while earlier ones are computed; failures undo all of it."""

import threading

import numpy as np
import pytest
from kv_drive import DIM, HEADS, LAYERS, kv_of
from tiered import Faulty, compute, everything, prompt, tiered

from pagedcache.errors import LoadFailed, StepClosed, StepOpen
from pagedcache.testing import DelayedBackend
from pagedcache.tiers import DiskTier

PROMPT = prompt(1, blocks=5)


@pytest.fixture(params=["float32 NHD", "float16 HND", "delayed"])
def loading(request, monkeypatch):
    """A cache whose tier has PROMPT and the pool a part of it at most; rows; the tier."""
    monkeypatch.setattr("pagedcache._layer_load.PIECE_BYTES", 1)  # layer by layer
    options = {"dtype": request.param.split()[0], "layout": request.param.split()[-1]}
    if request.param == "delayed":
        options = {"backend": DelayedBackend(), "steps_in_flight": 2}
    tier = Faulty()
    cache, rows = tiered(tier, num_blocks=12, **({"steps_in_flight": 2} | options))
    verify, rows.verify = rows.verify, lambda *sids: (cache.synchronize(), verify(*sids))
    compute(rows, PROMPT)
    cache.flush()
    cache.evict(12)
    cache.synchronize()
    tier.entered.clear()
    yield cache, rows, tier
    tier.gate.set()
    cache.synchronize()
    cache.check()
    cache.close()


def finish(rows, sid, load, new):
    """Compute the rest of a prompt behind a load."""
    step = rows.cache.extend([sid], [len(new)])
    rows.write(step, new)
    rows.cache.commit(step, new)
    rows.tokens[sid] = list(PROMPT[: -len(new)]) + new


@pytest.mark.parametrize("cached", [0, 2, 5], ids=["nothing", "two blocks", "all"])
def test_loads_what_is_not_cached(loading, cached):
    cache, rows, _ = loading
    cache.prefetch([PROMPT[: 4 * cached + 1]]).wait(60)
    admission = cache.admit([PROMPT])
    [sid] = admission.ids.tolist()
    load = cache.begin_load([sid], [PROMPT])
    assert (0 if load is None else load.counts[0]) == 4 * (5 - cached)
    finish(rows, sid, load, PROMPT[20:])
    rows.verify(sid)
    assert cache.match([PROMPT])[0] == 20, "published with its step"


def test_a_partial_hit_goes_on_within_its_block(loading):
    cache, rows, _ = loading
    other = [*PROMPT[:10], 498, 498, 498]
    compute(rows, other)
    admission = cache.admit([PROMPT])
    assert admission.cached[0] == 10
    load = cache.begin_load(admission.ids, [PROMPT])
    assert load.counts.tolist() == [10]
    finish(rows, int(admission.ids[0]), load, PROMPT[20:])
    rows.verify(int(admission.ids[0]))


def test_attention_waits_for_its_layer(loading):
    cache, rows, tier = loading
    tier.gate.clear()
    ids = cache.admit([PROMPT]).ids
    load = cache.begin_load(ids, [PROMPT])
    step = cache.extend(ids, [1])
    assert cache.match([PROMPT])[0] == 0 and not load.is_there
    opener = threading.Timer(0.05, tier.gate.set)
    opener.start()
    for layer in range(LAYERS):
        q = np.zeros((1, HEADS, DIM), np.float32)
        k, v = kv_of(PROMPT[20:], layer)
        out = cache.attend(layer, q, k, v, step)
        cache.synchronize()
        np.testing.assert_allclose(out[0], np.mean(kv_of(PROMPT, layer)[1], axis=0), rtol=1e-3)
    cache.commit(step, PROMPT[20:])
    rows.tokens[int(ids[0])] = list(PROMPT)
    rows.verify()


def test_several_sequences_of_which_some_have_nothing(loading):
    cache, rows, _ = loading
    ids = cache.admit([[7, 7, 7], PROMPT]).ids
    load = cache.begin_load(ids, [[7, 7, 7], PROMPT])
    assert load.counts.tolist() == [0, 20]
    step = cache.extend(ids, [3, 1])
    rows.write(step, [7, 7, 7, *PROMPT[20:]])
    cache.commit(step, [7, 7, 7, *PROMPT[20:]])
    rows.tokens = {int(ids[0]): [7, 7, 7], int(ids[1]): list(PROMPT)}
    rows.verify()
    assert cache.begin_load(ids[:1], [[7, 7, 7]]) is None


@pytest.mark.parametrize("how", ["longest_prefix", "prepare_load"])
def test_what_a_tier_cannot_hold_ready_the_next_one_does(tmp_path, how):
    near = Faulty()
    cache, rows = tiered(near, DiskTier(tmp_path / "blocks", "1 MiB"), num_blocks=12, steps_in_flight=2)
    with cache:
        compute(rows, PROMPT)
        cache.flush()
        cache.evict(12)
        near.failing.add(how)
        ids = cache.admit([PROMPT]).ids
        load = cache.begin_load(ids, [PROMPT])
        assert load.counts.tolist() == [20]
        finish(rows, int(ids[0]), load, PROMPT[20:])
        rows.verify(int(ids[0]))


@pytest.mark.parametrize("method", ["load", "wrong"])
def test_a_failed_load_is_undone(loading, method):
    cache, rows, tier = loading
    tier.failing.add(method)
    ids = cache.admit([PROMPT]).ids
    before = everything(cache)
    load = cache.begin_load(ids, [PROMPT])
    step = cache.extend(ids, [1])
    with pytest.raises(LoadFailed, match="abandon the step"):
        cache.attend(0, np.zeros((1, HEADS, DIM), np.float32), *kv_of(PROMPT[20:], 0), step)
    with pytest.raises(LoadFailed):
        cache.commit(step, PROMPT[20:])
    with pytest.raises(StepClosed):
        cache.cancel_load(load)  # the newer step goes first
    cache.abandon(step)
    cache.cancel_load(load)
    assert everything(cache) == before and cache.match([PROMPT])[0] == 0
    rows.tokens[int(ids[0])] = []
    rows.run({int(ids[0]): PROMPT})
    rows.verify()


def test_a_released_sequence_leaves_its_load_alone(loading):
    cache, _, tier = loading
    tier.gate.clear()
    ids = cache.admit([PROMPT]).ids
    load = cache.begin_load(ids, [PROMPT])
    cache.release(ids)
    assert cache.stats().free < 12, "bytes are still on their way"
    threading.Timer(0.05, tier.gate.set).start()
    cache.cancel_load(load)
    cache.synchronize()
    assert cache.stats().free == 12


def test_other_verbs_see_an_open_step(loading):
    cache, _, _ = loading
    ids = cache.admit([PROMPT]).ids
    load = cache.begin_load(ids, [PROMPT])
    with pytest.raises(StepOpen):
        cache.truncate(ids, [0])
    cache.cancel_load(load)


def test_left_pads_are_not_loaded_over(loading):
    """Blocks of a padded sequence begin where no stored ones do."""
    cache, rows, _ = loading
    ids = cache.admit([[7], PROMPT], pads=[0, 2]).ids
    assert cache.begin_load(ids, [[7], PROMPT]) is None
    rows.tokens = {int(ids[1]): []}
    rows.run({int(ids[1]): PROMPT})
    rows.verify()


def test_a_sequence_in_an_open_step_is_refused(loading):
    cache, _, tier = loading
    ids = cache.admit([PROMPT]).ids
    step = cache.extend(ids, [4])
    with pytest.raises(StepOpen, match="first after admit"):
        cache.begin_load(ids, [PROMPT])
    assert cache.open_steps == (step,) and not +tier._readers
    cache.abandon(step)


def test_abandoning_its_step_ends_a_load(loading):
    """C04: whoever finds the step in open_steps must not free blocks that are being filled."""
    cache, rows, tier = loading
    tier.gate.clear()
    load = cache.begin_load(cache.admit([PROMPT]).ids, [PROMPT])
    assert tier.entered.wait(60)
    threading.Timer(0.05, tier.gate.set).start()
    cache.abandon(load.step)
    assert load._ended and not cache._layer_loads
    tier.failing.add("load")
    rows.verify(rows.admit(prompt(3)))


def test_a_step_does_not_wait_for_a_newer_load(loading):
    cache, rows, tier = loading
    first, second = cache.admit([[7, 7, 7], PROMPT]).ids.tolist()
    step = cache.extend([first], [3])
    tier.gate.clear()
    load = cache.begin_load([second], [PROMPT])
    rows.write(step, [7, 7, 7])
    cache.commit(step, [7, 7, 7])
    tier.failing.add("load")
    tier.gate.set()
    cache.cancel_load(load)
    rows.tokens[first] = [7, 7, 7]
    rows.verify()


def test_one_step_in_flight_is_too_few(tmp_path):
    cache, _ = tiered(DiskTier(tmp_path / "blocks", "1 MiB"))
    with cache, pytest.raises(ValueError, match="steps_in_flight=2"):
        cache.begin_load(cache.admit([PROMPT]).ids, [PROMPT])
