"""Blocks in a Mooncake Store: a false one that keeps its rules and, where it is installed, the real one."""

import dataclasses

import numpy as np
import pytest
from mooncake_setting import FakeStore, real_store
from redis_setting import FORM, SPEC, empty_places, got, keys_of, put, random_places, records

from pagedcache.errors import ForeignFormat, TierError
from pagedcache.tiers import BlockFormat, MooncakeTier


@pytest.fixture(scope="module")
def real():
    with real_store() as store:
        yield store


@pytest.fixture(params=["false", "real"])
def store(request):
    if request.param == "false":
        return FakeStore()
    found = request.getfixturevalue("real")
    if found is None:
        pytest.skip("Mooncake is not installed")
    return found


def tier_of(store, form=FORM, **arguments):
    tier = MooncakeTier(store, **arguments)
    tier.bind(form)
    return tier


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("buffer_bytes", [1, 16 << 20])
def test_bytes_come_back_into_other_rows(store, dtype, buffer_bytes):
    form = BlockFormat.of(dataclasses.replace(SPEC, dtype=dtype))
    tier, keys, places = tier_of(store, form, buffer_bytes=buffer_bytes), keys_of(5), random_places(form, 5)
    assert put(tier, keys, places) == 5 == tier.longest_prefix(keys)
    load, there = tier.prepare_load(keys), random_places(form, 5, [2, 7, 4, 0, 6])
    assert [tier.load(load, layers, there) for layers in (range(1), range(1, 3))] == [5, 5]
    tier.complete_load(load)
    assert (records(form, there) == records(form, places)).all()
    assert (got(tier, form, keys) == records(form, places)).all() and tier.stats().hits == 10
    tier.close()


def test_a_prefix_ends_at_the_first_gap(store):
    tier, keys, places = tier_of(store), keys_of(3), random_places(FORM, 3)
    put(tier, keys, places)
    assert tier.remove(keys[1:2]) == 1 and tier.remove(keys[1:2]) == 0
    assert tier.longest_prefix(keys) == 1
    assert (got(tier, FORM, keys) == records(FORM, places)[:1]).all()
    assert tier.prepare_store(keys).wanted.tolist() == [1]
    assert (tier.stats().misses, tier.stats().corrupt, tier.stats().errors) == (2, 0, 0)
    tier.close()


# T04: what is half done is not there.
def test_t04_a_store_is_seen_when_it_is_complete(store):
    tier, keys, places = tier_of(store), keys_of(3), random_places(FORM, 3)
    begun = tier.prepare_store(keys)
    assert tier.prepare_store(keys).wanted.tolist() == []
    tier.store(begun, places)
    assert tier.longest_prefix(keys) == 0 == tier.prepare_load(keys).count
    assert tier.complete_store(begun) == 3 == tier.longest_prefix(keys)
    assert tier.complete_store(begun) == 0
    tier.close()


def test_what_is_aborted_or_was_never_sent_is_not_there(store):
    tier, keys, places = tier_of(store), keys_of(2), random_places(FORM, 2)
    aborted = tier.prepare_store(keys)
    tier.store(aborted, places)
    tier.abort_store(aborted)
    assert tier.complete_store(tier.prepare_store(keys)) == 0 == tier.longest_prefix(keys)
    assert put(tier, keys, places) == 2
    tier.close()


# T08, T09: formats are apart.
def test_t08_formats_live_side_by_side(store):
    form, keys = BlockFormat.of(dataclasses.replace(SPEC, fingerprint=b"other")), keys_of(2)
    ours, theirs, places = tier_of(store), tier_of(store, form), random_places(FORM, 2)
    put(ours, keys, places)
    assert theirs.longest_prefix(keys) == 0 and put(theirs, keys, random_places(form, 2)) == 2
    assert (got(ours, FORM, keys) == records(FORM, places)).all()
    with pytest.raises(ForeignFormat, match="fingerprint"):
        ours.bind(form)
    ours.close()
    theirs.close()


# T09: no byte that is wrong is served, or reaches the caller.
@pytest.mark.parametrize("at", [0, 60, 103, 104, 300, -1])
def test_t09_a_flipped_bit_is_a_miss_once(at):
    store, keys, places = FakeStore(), keys_of(3), random_places(FORM, 3)
    tier = tier_of(store)
    put(tier, keys, places)
    name = tier._names(keys)[1]
    value = bytearray(store.objects[name])
    value[at] ^= 1
    store.put_whole(name, bytes(value))
    load, there = tier.prepare_load(keys), empty_places(FORM, 3)
    assert tier.load(load, range(FORM.layers), there) == 1
    assert not records(FORM, there)[1:].any()
    assert tier.stats().corrupt == 1 and name not in store.objects and tier.stats().errors == 0


@pytest.mark.parametrize("size", [0, 50, 104, 200])
def test_a_cut_object_is_a_miss_once(size):
    store, keys = FakeStore(), keys_of(2)
    tier = tier_of(store)
    put(tier, keys, random_places(FORM, 2))
    name = tier._names(keys)[1]
    store.put_whole(name, store.objects[name][:size])
    assert len(got(tier, FORM, keys)) == 1
    assert tier.stats().corrupt == 1 and name not in store.objects


def test_a_full_store_takes_what_it_can():
    store = FakeStore()
    tier, keys = tier_of(store), keys_of(3)
    store.room = 2 * (104 + FORM.block_nbytes)
    assert put(tier, keys, random_places(FORM, 3)) == 2
    assert tier.stats().errors == 0


@pytest.mark.parametrize("failure", [{"code": -900}, {"code": -1}, {"raises": RuntimeError("from C++")}])
def test_a_store_that_fails_is_a_miss_and_then_left_alone(failure):
    store, keys, places = FakeStore(), keys_of(2), random_places(FORM, 2)
    tier = tier_of(store, retry_after=1000)
    put(tier, keys, places)
    vars(store).update(failure)
    assert tier.longest_prefix(keys) == 0
    vars(store).update(code=0, raises=None)
    assert len(got(tier, FORM, keys)) == 0 and put(tier, keys, places) == 0 == tier.remove(keys)
    tier.touch(keys)
    assert tier.pin(keys, "name") == 0 == tier.unpin("name")
    assert tier.stats().errors == 1 and tier.stats().more["refused"] > 4


def test_sessions_that_a_failure_left_open_do_not_block_their_names():
    store, keys, places = FakeStore(), keys_of(2), random_places(FORM, 2)
    tier = tier_of(store, max_failures=1000)
    begun = tier.prepare_store(keys)
    store.code = -900
    tier.store(begun, places)
    assert tier.complete_store(begun) == 0
    store.code = 0
    assert put(tier, keys, places) == 0
    assert put(tier, keys, places) == 2


def test_pins_only_count():
    tier, keys = tier_of(FakeStore()), keys_of(3)
    put(tier, keys[:2], random_places(FORM, 2))
    assert tier.pin(keys, "prompt") == 2
    tier.remove(keys[:1])
    assert tier.unpin("prompt") == 1 and tier.unpin("prompt") == 0


def test_a_closed_tier_holds_nothing_and_gives_its_buffer_back():
    store, keys = FakeStore(), keys_of(1)
    tier = tier_of(store)
    put(tier, keys, random_places(FORM, 1))
    tier.close()
    tier.close()
    assert tier.longest_prefix(keys) == 0 and not store.memory


def test_a_buffer_that_is_not_taken_is_told():
    store = FakeStore()
    store.code = -600
    with pytest.raises(TierError, match="code -600"):
        tier_of(store)


@pytest.mark.parametrize(
    ("arguments", "word"), [({"prefix": ""}, "prefix"), ({"buffer_bytes": 0}, "buffer_bytes is 0")]
)
def test_arguments_without_sense_are_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        MooncakeTier(FakeStore(), **arguments)


def test_calls_before_bind_are_refused():
    with pytest.raises(RuntimeError, match="call bind first"):
        MooncakeTier(FakeStore()).longest_prefix(keys_of(1))


def test_nothing_is_nothing(store):
    tier = tier_of(store)
    load, begun = tier.prepare_load([]), tier.prepare_store([])
    tier.store(begun, empty_places(FORM, 0))
    assert load.count == 0 == tier.load(load, range(3), empty_places(FORM, 0)) == tier.complete_store(begun)
    assert tier.prepare_store([]).wanted.dtype == np.int64
    tier.close()
