"""Faults of the prefix cache: what pins, evictions and events say must be what happens."""

import numpy as np
import pytest

from pagedcache import content, salt
from pagedcache.core import EventKind
from pagedcache.digests import prompt_digests

SYSTEM = list(range(8))


def test_w05_an_image_is_told_apart_by_its_content_and_place(make):
    told, tokens = make(), [1, 2, 3, 4, *[7] * 6, 5, 6, 8]  # 4..9 are placeholders
    told.prompt(tokens, keys=[[content("imgA", 4, 10)]])
    for name, start, shared in (("imgA", 4, 12), ("imgB", 4, 4), ("imgA", 5, 4)):
        assert told.cache.match([tokens], keys=[[content(name, start, start + 6)]])[0] == shared
    assert told.cache.match([tokens])[0] == 4


def test_r08_a_salt_separates_tenants_behind_the_shared_prompt(make):
    told, tokens = make(), [*SYSTEM, 11, 12, 13, 14, 15]
    told.prompt(tokens, keys=[[salt("ours", 8)]])
    assert told.cache.match([tokens], keys=[[salt("ours", 8)]])[0] == 12, "without this the next line proves nothing"
    assert told.cache.match([tokens], keys=[[salt("theirs", 8)]])[0] == 8
    assert told.cache.match([tokens])[0] == 8


def test_r02_a_pinned_prompt_survives_a_full_pool(make):
    told = make(num_blocks=8)
    told.cache.release([told.prompt(SYSTEM)])
    assert told.cache.pin([SYSTEM], "system") == 2
    for turn in range(6):
        told.cache.release([told.prompt([20 + turn] * 24)])
    assert told.cache.match([[*SYSTEM, 9]])[0] == 8
    sid = told.prompt([*SYSTEM, 9])
    assert told.held(sid) == [*SYSTEM, 9]
    told.cache.release([sid])
    told.cache.release([told.prompt([50] * 13)])
    with pytest.raises(ValueError, match="4"):  # half of the pool, and no more
        told.cache.pin([[50] * 13], "too much")
    assert told.cache.unpin("system") == 2
    told.cache.release([told.prompt([60] * 32)])
    assert told.cache.match([[*SYSTEM, 9]])[0] == 0


def test_r02_reset_drops_every_pin(make):
    told = make(num_blocks=8)
    told.cache.release([told.prompt(SYSTEM)])
    told.cache.pin([SYSTEM], "system")
    told.cache.reset()
    assert told.cache.stats().pinned == 0 and told.cache.match([[*SYSTEM, 9]])[0] == 0


def test_m14_evict_counts_what_it_evicts_and_ends(make):
    told = make(num_blocks=8)
    told.cache.release([told.prompt(SYSTEM)])
    told.cache.pin([SYSTEM], "system")
    assert told.cache.evict(5) == 0
    told.cache.release([told.prompt([30 + i for i in range(12)])])
    assert told.cache.evict(5) == 3
    assert told.cache.evict(5) == 0 and told.cache.stats().cached == 0


def test_c14_no_victim_is_taken_where_that_gains_nothing(make):
    """What is cached goes only if the newcomer can then be had; what cannot be reused yet is not counted as free."""
    told = make(num_blocks=6, backend="numpy")
    told.cache.release([told.prompt(SYSTEM)])
    sids = [told.prompt([40 + i]) for i in range(3)]
    told.cache.cover(7)  # as after work that may still read these blocks
    assert told.cache.release(sids) == 0, "freed, and not usable yet"
    assert told.cache.stats().free == 3 and told.cache.stats().waiting == 3
    assert told.cache.admit([[1] * 16]).status[0] == 1
    assert told.cache.stats().evictions == 0 and told.cache.match([[*SYSTEM, 9]])[0] == 8
    assert told.cache.retire(7) == 3
    assert told.cache.admit([[1] * 16]).status[0] == 0


def test_r04_events_replayed_are_the_index_at_all_times(make):
    told, rng = make(num_blocks=10, block_size=2, events="digests"), np.random.default_rng(0)
    mirror, prompts = set(), [rng.integers(0, 3, rng.integers(3, 12)).tolist() for _ in range(20)]
    for _ in range(120):
        told.cache.release([told.prompt(prompts[rng.integers(20)])])
        if rng.random() < 0.2:
            told.cache.evict(int(rng.integers(4)))
        if rng.random() < 0.05:
            told.cache.reset()
        for event in told.cache.events():
            if event["kind"] == EventKind.CLEARED:
                mirror.clear()
            elif event["kind"] == EventKind.STORED:
                mirror.add(event["digest"].tobytes())
            else:
                mirror.remove(event["digest"].tobytes())
        assert len(mirror) == told.cache.stats().published
        for prompt in prompts:
            chain = [digest in mirror for digest in prompt_digests(prompt, 2)]
            leading = [*chain, False].index(False)
            assert min(leading, (len(prompt) - 1) // 2) == told.cache.match([prompt])[0] // 2
    assert told.cache.stats().evictions > 20
