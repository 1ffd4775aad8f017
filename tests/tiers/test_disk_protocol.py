"""The disk tier as any tier: stores, loads, pins, counters."""

import threading

import numpy as np
import pytest
from disk_blocks import FORM, SLOT, get, key, opened, put, records_of, there

from pagedcache.errors import ForeignFormat, TierError
from pagedcache.tiers import DiskTier, Places


@pytest.fixture
def tier(tmp_path):
    with opened(tmp_path / "tier") as tier:
        yield tier


def test_what_is_stored_is_loaded(tier):
    assert put(tier, [0, 1, 2]) == 3
    assert tier.longest_prefix([key(0), key(1), key(9), key(2)]) == 2
    assert get(tier, [0, 1, 2]) == 3
    stats = tier.stats()
    assert (stats.blocks, stats.nbytes, stats.stored, stats.hits) == (3, 3 * SLOT, 3, 3)


def test_a_block_is_invisible_until_complete(tier):
    store = tier.prepare_store([key(0)])
    tier.store(store, Places.of_records(records_of([0])))
    assert tier.longest_prefix([key(0)]) == 0 and get(tier, [0]) == 0
    assert tier.complete_store(store) == 1
    assert get(tier, [0]) == 1


def test_an_aborted_store_gives_its_room_back(tier):
    put(tier, [0])
    free = tier.stats().more["free"]
    store = tier.prepare_store([key(1), key(2)])
    tier.store(store, Places.of_records(records_of([1, 2])))
    tier.abort_store(store)
    tier.abort_store(store)
    assert tier.complete_store(store) == 0
    assert there(tier, [0, 1, 2]) == [0]
    assert tier.stats().more["free"] >= free


def test_only_what_is_missing_is_wanted_and_once(tier):
    put(tier, [1])
    store = tier.prepare_store([key(0), key(1), key(2), key(0)])
    assert store.wanted.tolist() == [0, 2]
    assert tier.prepare_store([key(2), key(3)]).wanted.tolist() == [1]  # 2 is being stored
    tier.abort_store(store)
    assert tier.prepare_store([key(2)]).wanted.tolist() == [0]


def test_a_load_stops_at_what_is_missing(tier):  # T04: nothing that was not read counts as read
    put(tier, [0, 1, 3])
    assert get(tier, [0, 1, 2, 3]) == 2
    stats = tier.stats()
    assert (stats.hits, stats.misses) == (2, 2)


def test_pieces_and_rows_of_a_pool(tier):
    """Records come from, and go to, rows of several arrays."""
    keys, values = np.random.default_rng(0).integers(
        0, 256, (2, FORM.layers, 6, FORM.record_nbytes // 2), dtype=np.uint8
    )
    pool = Places([(keys[layer], values[layer]) for layer in range(FORM.layers)], np.array([4, 1]))
    store = tier.prepare_store([key(7), key(8)])
    tier.store(store, pool)
    tier.complete_store(store)
    k, v = np.zeros_like(keys), np.zeros_like(values)
    load = tier.prepare_load([key(7), key(8)])
    into = Places([(k[layer], v[layer]) for layer in range(FORM.layers)], np.array([0, 5]))
    assert tier.load(load, range(FORM.layers), into) == 2
    tier.complete_load(load)
    assert (k[:, [0, 5]] == keys[:, [4, 1]]).all() and (v[:, [0, 5]] == values[:, [4, 1]]).all()
    assert not k[:, 1:5].any()


def test_remove(tier):
    put(tier, [0, 1, 2])
    tier.pin([key(1)], "kept")
    assert tier.remove([key(1), key(1), key(9)]) == 1
    assert there(tier, [0, 1, 2]) == [0, 2]
    assert tier.stats().more["pinned"] == 0 and tier.pins() == {}


def test_a_removed_block_keeps_its_slot_while_it_is_read(tier):
    put(tier, [0])
    load = tier.prepare_load([key(0)])
    tier.remove([key(0)])
    put(tier, list(range(1, 200)))
    found = np.zeros((1, FORM.layers, FORM.record_nbytes), np.uint8)
    assert tier.load(load, range(FORM.layers), Places.of_records(found)) == 1
    tier.complete_load(load)
    assert (found == records_of([0])).all()


def test_pins_count_what_is_there(tier):
    put(tier, [0, 1])
    assert tier.pin([key(0), key(5)], "a") == 1
    assert tier.pin([key(0), key(1)], "a") == 2
    assert {name: set(held) for name, held in tier.pins().items()} == {"a": {key(0), key(1)}}
    assert tier.unpin("a") == 2 and tier.unpin("a") == 0


def test_bind_twice(tier):
    tier.bind(FORM)
    other = FORM.__class__(**{**vars(FORM), "fingerprint": "ff"})
    with pytest.raises(ForeignFormat, match="fingerprint"):
        tier.bind(other)


def test_places_that_do_not_fit_are_refused(tier):
    store = tier.prepare_store([key(0)])
    with pytest.raises(ValueError, match="places of 2 blocks"):
        tier.store(store, Places.of_records(records_of([0, 1])))
    with pytest.raises(ValueError, match="bytes wide"):
        tier.store(store, Places.of_records(records_of([0])[:, :, :-1]))
    assert tier.complete_store(store) == 0
    with pytest.raises(ValueError, match="not a digest"):
        tier.prepare_store([b"short"])


def test_places_that_do_not_fit_a_load_cost_no_block(tier):
    put(tier, [0, 1])
    load = tier.prepare_load([key(0), key(1)])
    right = np.zeros((2, FORM.layers, FORM.record_nbytes), np.uint8)
    for places, layers, said in [
        (Places.of_records(right[:, :, 1:]), range(1), "bytes wide"),
        (Places.of_records(right[:1]), range(1), "places of 1 blocks, for 2"),
        (Places.of_records(right[:, :2]), range(1), "places of 2 layers"),
        (Places.of_records(right), range(2, 4), "layers range"),
        (Places.of_records(right), range(-1, 1), "layers range"),
    ]:
        with pytest.raises(ValueError, match=said):
            tier.load(load, layers, places)
    assert tier.load(load, range(0), Places.of_records(right)) == 2
    assert tier.load(load, range(FORM.layers - 1, -1, -2), Places.of_records(right)) == 2
    tier.complete_load(load)
    assert tier.stats().corrupt == 0 and get(tier, [0, 1]) == 2


def test_a_load_that_fails_holds_nothing(tier, monkeypatch):  # T04
    put(tier, [0])

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(tier._opened.slab, "heads", fail)
    with pytest.raises(MemoryError):
        tier.prepare_load([key(0)])
    assert not tier._opened.writer.catalog._held


def test_before_bind_and_after_close(tmp_path):
    tier = DiskTier(tmp_path / "tier", "4 MiB")
    with pytest.raises(TierError, match="bind"):
        tier.longest_prefix([key(0)])
    assert not (tmp_path / "tier").exists()
    tier.bind(FORM)
    tier.close()
    tier.close()
    for call in (tier.prepare_load, tier.prepare_store, tier.longest_prefix, tier.remove):
        with pytest.raises(TierError, match="closed"):
            call([key(0)])
    with pytest.raises(TierError, match="closed"):
        tier.bind(FORM)


def test_a_writer_needs_a_size_that_holds_a_block(tmp_path):
    with pytest.raises(ValueError, match="needs a size"):
        DiskTier(tmp_path)
    with pytest.raises(ValueError, match="size is 5000 bytes"):
        opened(tmp_path / "tier", 5000)
    assert not (tmp_path / "tier").exists()


def test_threads_get_their_own_blocks(tier):  # T09
    """Threads that store and load at random, with evictions, never see another's bytes (`get` compares)."""
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        try:
            for _ in range(60):
                begin = int(random.integers(0, 900))
                numbers = list(range(begin, begin + int(random.integers(1, 9))))
                if get(tier, numbers) < len(numbers):
                    put(tier, numbers)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and tier.stats().corrupt == 0
