"""The disk tier's size limit: who gives way, who stays, and that all files count."""

import numpy as np
import pytest
from disk_blocks import FORM, SLOT, get, key, opened, put, there

from pagedcache.errors import TierError
from pagedcache.tiers import Places

MIB = 1 << 20


def files_nbytes(path):
    """Bytes of everything in a folder."""
    return sum(file.stat().st_size for file in path.iterdir())


def blocks_within(tier):
    """How many blocks the tier has room for."""
    return tier._opened.writer.most


def test_all_files_stay_within_the_size(tmp_path):
    with opened(tmp_path / "tier", 2 * MIB) as tier:
        for begin in range(0, 3000, 20):
            put(tier, list(range(begin, begin + 20)))
            assert files_nbytes(tmp_path / "tier") <= 2 * MIB
        stats = tier.stats()
        assert stats.evicted + stats.blocks == 3000
        assert stats.blocks * SLOT > 1.5 * MIB


def test_the_least_recently_used_go_first(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        most = blocks_within(tier)
        for number in range(most - 8):  # so that none has to go for these
            put(tier, [number])
        assert get(tier, [0])
        tier.touch([key(1)])
        put(tier, list(range(1000, 1030)))
        left = there(tier, list(range(most)))
        assert {0, 1} <= set(left) and not set(left) & set(range(2, 24))
        assert there(tier, list(range(1000, 1030))) == list(range(1000, 1030))


def test_a_chain_loses_its_tail_first(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        chain = list(range(blocks_within(tier)))
        put(tier, chain)
        put(tier, list(range(1000, 1040)))
        left = tier.longest_prefix([key(number) for number in chain])
        assert 0 < left == tier.stats().blocks - 40


def test_the_chain_that_is_stored_does_not_evict_its_own_head(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        most = blocks_within(tier)
        put(tier, list(range(most // 2)))
        store = tier.prepare_store([key(number) for number in range(2 * most)])
        assert len(store.wanted) == most - most // 2  # as many as there is room for, the first ones
        assert store.wanted.tolist() == list(range(most // 2, most))
        tier.abort_store(store)
        assert tier.stats().blocks == most // 2


def test_pins_stay(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        put(tier, [0, 1, 2])
        tier.pin([key(0), key(1)], "a")
        tier.pin([key(1)], "b")
        for begin in range(100, 1000, 30):
            put(tier, list(range(begin, begin + 30)))
        assert there(tier, [0, 1, 2]) == [0, 1]
        tier.unpin("a")
        for begin in range(1000, 2000, 30):
            put(tier, list(range(begin, begin + 30)))
        assert there(tier, [0, 1, 2]) == [1]


def test_where_everything_is_pinned_nothing_more_is_wanted(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        most = blocks_within(tier)
        put(tier, list(range(most)))
        assert tier.pin([key(number) for number in range(most)], "all") == most
        assert put(tier, [1000, 1001]) == 0
        assert tier.stats().blocks == most


def test_what_is_read_stays(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        put(tier, [0, 1])
        load = tier.prepare_load([key(0), key(1)])
        for begin in range(100, 1000, 30):
            put(tier, list(range(begin, begin + 30)))
        found = np.zeros((2, FORM.layers, FORM.record_nbytes), np.uint8)
        assert tier.load(load, range(FORM.layers), Places.of_records(found)) == 2
        tier.complete_load(load)
        assert tier.longest_prefix([key(0), key(1)]) == 2
        assert tier._opened.writer.catalog._held == {}


def test_a_smaller_size_evicts_and_moves(tmp_path):  # T05: the limit counts what is there from before
    with opened(tmp_path / "tier", 4 * MIB) as tier:
        put(tier, list(range(400)))
        for number in range(350, 400):  # late slots, used last
            get(tier, [number])
        tier.pin([key(200)], "kept")
    with opened(tmp_path / "tier", MIB) as tier:
        most = blocks_within(tier)
        assert files_nbytes(tmp_path / "tier") <= MIB
        assert tier.stats().blocks == most
        assert get(tier, list(range(350, 400))) == 50 and get(tier, [200])
        put(tier, list(range(1000, 1010)))
    with opened(tmp_path / "tier", MIB) as tier:
        assert get(tier, list(range(1000, 1010))) == 10 and get(tier, [200])
        assert files_nbytes(tmp_path / "tier") <= MIB
        assert tier.stats().corrupt == 0


def test_pins_that_do_not_fit_a_smaller_size_are_told(tmp_path):
    with opened(tmp_path / "tier", 4 * MIB) as tier:
        put(tier, list(range(400)))
        tier.pin([key(number) for number in range(400)], "all")
    with pytest.raises(TierError, match="pins hold 400 blocks"):
        opened(tmp_path / "tier", MIB)
    with opened(tmp_path / "tier", 4 * MIB) as tier:
        assert get(tier, list(range(400))) == 400


def test_a_larger_size_grows(tmp_path):
    with opened(tmp_path / "tier", MIB) as tier:
        put(tier, list(range(50)))
    with opened(tmp_path / "tier", 4 * MIB) as tier:
        put(tier, list(range(50, 400)))
        assert get(tier, list(range(400))) == 400
