"""Wrong bytes on the server, put there by hand: they are misses, are counted and go."""

import pytest
from redis_setting import FORM, empty_places, got, keys_of, put, random_places, records, tier_at

HEADER = 92 + 4 * FORM.layers


@pytest.fixture
def three(redis_server):
    """A tier with three blocks, their keys, names on the server and bytes, and a client to do harm."""
    tier, keys, places = tier_at(redis_server.url), keys_of(3), random_places(FORM, 3)
    put(tier, keys, places)
    with redis_server.client() as client:
        yield tier, keys, tier._names(keys), records(FORM, places), client
    tier.close()


def wrong_at(value, at):
    return value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]


# T09: no byte that is wrong is served.
@pytest.mark.parametrize("at", [0, 9, 20, 60, 82, HEADER - 1, HEADER, HEADER + FORM.record_nbytes, -1])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_t09_a_flipped_bit_is_a_miss_once(three, block, at):
    tier, keys, names, content, client = three
    value = client.get(names[block])
    client.set(names[block], wrong_at(value, at % len(value)))
    assert (got(tier, FORM, keys) == content[:block]).all()
    assert tier.stats().corrupt == 1 and not client.exists(names[block])
    assert tier.longest_prefix(keys) == block
    assert tier.prepare_store(keys).wanted.tolist() == [block]


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER, HEADER + 1, HEADER + FORM.record_nbytes, -1])
def test_a_cut_value_is_a_miss(three, size):
    tier, keys, names, content, client = three
    client.set(names[1], client.get(names[1])[:size])
    assert (got(tier, FORM, keys) == content[:1]).all()
    assert tier.stats().errors == 0
    if size:  # an empty value looks like none, and is overwritten by no store, but expires or is evicted
        assert tier.stats().corrupt == 1 and not client.exists(names[1])


def test_bytes_behind_a_value_do_no_harm(three):
    tier, keys, names, content, client = three
    client.append(names[1], b"more")
    assert (got(tier, FORM, keys) == content).all()


# T09: another request's block under the right name is not served.
def test_t09_swapped_values_are_misses(three):
    tier, keys, names, _, client = three
    first, second = client.mget(names[:2])
    client.mset({names[0]: second, names[1]: first})
    assert len(got(tier, FORM, keys)) == 0 and tier.stats().corrupt == 1
    assert len(got(tier, FORM, keys[1:])) == 0 and tier.stats().corrupt == 2


def test_another_type_under_a_name_is_a_miss(three):
    tier, keys, names, content, client = three
    client.delete(names[1])
    client.rpush(names[1], "a list")
    assert (got(tier, FORM, keys) == content[:1]).all()
    assert (tier.stats().corrupt, tier.stats().errors) == (1, 0) and not client.exists(names[1])


def test_a_wrong_layer_ends_the_layers_after_it(three):
    tier, keys, names, content, client = three
    client.set(names[2], wrong_at(client.get(names[2]), HEADER + FORM.record_nbytes))
    load, places = tier.prepare_load(keys), empty_places(FORM, 3)
    rights = [tier.load(load, range(layer, layer + 1), places) for layer in range(FORM.layers)]
    tier.complete_load(load)
    assert rights == [3, 2, 2] and tier.stats().hits == 2
    assert (records(FORM, places)[:2] == content[:2]).all()


# C03: what goes while it is loaded is a shorter load, and no error.
def test_c03_eviction_between_headers_and_layers_is_a_miss(three):
    tier, keys, names, content, client = three
    load, places = tier.prepare_load(keys), empty_places(FORM, 3)
    client.delete(names[1])
    assert load.count == 3 and tier.load(load, range(FORM.layers), places) == 1
    assert (records(FORM, places)[:1] == content[:1]).all()
    stats = tier.stats()
    assert (stats.corrupt, stats.errors) == (0, 0)
    assert (got(tier, FORM, keys) == content[:1]).all(), "the next load has a connection in step"


def test_a_block_stored_anew_while_it_is_loaded_is_a_miss(three):
    tier, keys, *_ = three
    load = tier.prepare_load(keys[:1])
    other = random_places(FORM, 1)
    tier.remove(keys[:1])
    put(tier, keys[:1], other)
    assert tier.load(load, range(FORM.layers), empty_places(FORM, 1)) == 0


# T04: bytes that were lost before they became visible are not stored.
def test_t04_staged_bytes_that_are_evicted_are_not_stored(three):
    tier, _, _, _, client = three
    keys = keys_of(2)
    store = tier.prepare_store(keys)
    tier.store(store, random_places(FORM, 2))
    client.delete(*client.keys("*store-*")[:1])
    assert tier.complete_store(store) == 1 == len(got(tier, FORM, keys[:1])) + len(got(tier, FORM, keys[1:]))


@pytest.mark.parametrize("call", ["longest_prefix", "prepare_load", "prepare_store", "touch", "remove"])
def test_keys_that_are_no_digests_are_refused(three, call):
    tier = three[0]
    with pytest.raises(ValueError, match="a key has 31 bytes"):
        getattr(tier, call)([bytes(31)])


def test_places_that_do_not_fit_are_refused(three):
    tier, keys, *_ = three
    load, every = tier.prepare_load(keys), range(FORM.layers)
    locked = empty_places(FORM, 3)
    for layer in locked.layers:
        layer[0].flags.writeable = False
    for places, layers, word in [
        (empty_places(FORM, 2), every, "2 rows for 3 blocks"),
        (random_places(FORM, 3, [0, 1, -1]), every, "rows -1 to 1"),
        (empty_places(FORM, 3), range(4), "range\\(0, 4\\)"),
        (empty_places(FORM, 3), range(0, 3, 2), "range"),
        (locked, every, "read-only"),
    ]:
        with pytest.raises(ValueError, match=word):
            tier.load(load, layers, places)
    assert tier.load(load, every, empty_places(FORM, 3)) == 3
