"""Blocks on a real Redis server: they come back as they went."""

import dataclasses

import numpy as np
import pytest
from redis_setting import FORM, SPEC, empty_places, got, keys_of, put, random_places, records, tier_at

from pagedcache.errors import ForeignFormat
from pagedcache.tiers import BlockFormat, Places


@pytest.fixture
def tier(redis_server):
    tier = tier_at(redis_server.url)
    yield tier
    tier.close()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("tokens", [4, 1000])
def test_bytes_come_back_into_other_rows(redis_server, dtype, tokens):
    form = BlockFormat.of(dataclasses.replace(SPEC, dtype=dtype, block_size=tokens))
    tier, keys, places = tier_at(redis_server.unix_url, form), keys_of(5), random_places(form, 5, [8, 1, 0, 9, 3])
    assert put(tier, keys, places) == 5
    load, there = tier.prepare_load(keys), random_places(form, 5, [2, 7, 4, 0, 6])
    assert tier.load(load, range(form.layers), there) == 5
    tier.complete_load(load)
    assert (records(form, there) == records(form, places)).all()
    tier.close()


def test_other_rows_are_left_alone(tier):
    keys = keys_of(2)
    put(tier, keys, random_places(FORM, 2))
    there = random_places(FORM, 2, [1, 3])
    others = Places(there.layers, np.array([0, 2, 4]))
    before = records(FORM, others)
    load = tier.prepare_load(keys)
    assert tier.load(load, range(FORM.layers), there) == 2
    assert (records(FORM, others) == before).all()


@pytest.mark.parametrize("steps", [[range(1), range(1, 2), range(2, 3)], [range(2), range(2, 3)]])
def test_layers_come_one_by_one(tier, steps):
    keys, places, there = keys_of(3), random_places(FORM, 3), empty_places(FORM, 3)
    put(tier, keys, places)
    load = tier.prepare_load(keys)
    for layers in steps:
        assert tier.load(load, layers, there) == 3
        done = slice(0, layers.stop)
        assert (records(FORM, there)[:, done] == records(FORM, places)[:, done]).all()
        assert not records(FORM, there)[:, layers.stop :].any()
    tier.complete_load(load)
    assert tier.stats().hits == 3


def test_many_blocks_go_in_several_trips(tier):
    keys, places = keys_of(300), random_places(FORM, 300)
    assert put(tier, keys, places) == 300 and tier.longest_prefix(keys) == 300
    assert (got(tier, FORM, keys) == records(FORM, places)).all()


@pytest.mark.parametrize("gap", [0, 1, 2])
def test_a_prefix_ends_at_the_first_gap(tier, gap):
    keys, places = keys_of(3), random_places(FORM, 3)
    put(tier, keys, places)
    assert tier.remove([keys[gap]]) == 1
    assert tier.longest_prefix(keys) == gap
    assert (got(tier, FORM, keys) == records(FORM, places)[:gap]).all()
    stats = tier.stats()
    assert (stats.hits, stats.misses, stats.corrupt, stats.errors) == (gap, 3 - gap, 0, 0)


def test_nothing_is_nothing(tier):
    load, store = tier.prepare_load([]), tier.prepare_store([])
    tier.store(store, empty_places(FORM, 0))
    assert load.count == 0 == tier.load(load, range(3), empty_places(FORM, 0)) == tier.complete_store(store)
    tier.touch([])
    assert tier.longest_prefix([]) == tier.pin([], "none") == tier.unpin("none") == tier.remove([]) == 0


# T04: what is half done is not there.
def test_t04_a_store_is_seen_when_it_is_complete(tier):
    keys, places = keys_of(2), random_places(FORM, 2)
    store = tier.prepare_store(keys)
    tier.store(store, places)
    assert tier.longest_prefix(keys) == 0
    assert tier.complete_store(store) == 2 == tier.longest_prefix(keys)
    assert tier.complete_store(store) == 0 and tier.stats().stored == 2


def test_an_aborted_store_leaves_nothing(tier, redis_server):
    store = tier.prepare_store(keys_of(2))
    tier.store(store, random_places(FORM, 2))
    tier.abort_store(store)
    with redis_server.client() as client:
        assert client.dbsize() == 0
    assert tier.complete_store(store) == 0


def test_a_store_that_nobody_ends_expires(tier, redis_server):
    tier.store(tier.prepare_store(keys_of(1)), random_places(FORM, 1))
    with redis_server.client() as client:
        (name,) = client.keys()
        assert 0 < client.ttl(name) <= 60


def test_what_is_there_is_not_wanted(tier):
    keys = keys_of(4)
    put(tier, keys[1:3], random_places(FORM, 2))
    assert tier.prepare_store(keys).wanted.tolist() == [0, 3]
    assert tier.prepare_store([keys[0], keys[3], keys[0]]).wanted.tolist() == [0, 1]


def test_the_first_of_two_stores_stays(tier, redis_server):
    keys, places = keys_of(1), random_places(FORM, 1)
    other = tier_at(redis_server.url)
    first, second = tier.prepare_store(keys), other.prepare_store(keys)
    tier.store(first, places)
    other.store(second, random_places(FORM, 1))
    assert (tier.complete_store(first), other.complete_store(second)) == (1, 0)
    assert (got(other, FORM, keys) == records(FORM, places)).all()
    with redis_server.client() as client:
        assert client.dbsize() == 1
    other.close()


# T08: blocks of another kind have other keys, and are never looked at.
@pytest.mark.parametrize(
    "change", [{"fingerprint": b"other"}, {"dtype": "float32"}, {"head_dim": 16}, {"block_size": 8}]
)
def test_t08_formats_live_side_by_side(tier, redis_server, change):
    form, keys = BlockFormat.of(dataclasses.replace(SPEC, **change)), keys_of(2)
    other, ours, theirs = tier_at(redis_server.url, form), random_places(FORM, 2), random_places(form, 2)
    put(tier, keys, ours)
    assert other.longest_prefix(keys) == 0
    put(other, keys, theirs)
    assert (got(tier, FORM, keys) == records(FORM, ours)).all()
    assert (got(other, form, keys) == records(form, theirs)).all()
    other.close()


def test_prefixes_live_side_by_side(tier, redis_server):
    keys, other = keys_of(1), tier_at(redis_server.url, prefix="elsewhere")
    put(tier, keys, random_places(FORM, 1))
    assert other.longest_prefix(keys) == 0
    other.close()


def test_a_tier_has_one_format(tier):
    tier.bind(FORM)
    with pytest.raises(ForeignFormat, match="block_size 4; this cache has 8"):
        tier.bind(BlockFormat.of(dataclasses.replace(SPEC, block_size=8)))


def test_a_closed_tier_holds_nothing(tier):
    keys = keys_of(1)
    put(tier, keys, random_places(FORM, 1))
    tier.close()
    tier.close()
    assert tier.longest_prefix(keys) == 0 == tier.prepare_load(keys).count
