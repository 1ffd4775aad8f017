"""Snapshots: what they say of a cache, and what is refused of strangers' files."""

import json

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache
from pagedcache.errors import CacheClosed, CorruptFile
from pagedcache.inspection import SequenceShot, Snapshot, sharing


@pytest.fixture
def cache():
    with KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4), num_blocks=40) as cache:
        yield cache


def fill(cache, tokens):
    ids = cache.admit([tokens]).ids
    left = len(tokens) - cache.sequences.position(int(ids[0]))
    cache.commit(cache.extend(ids, [left]), tokens[-left:])
    return int(ids[0])


def test_counts_are_those_of_the_cache(cache):
    one = fill(cache, list(range(20)))
    cache.fork([one], 3)
    cache.release([fill(cache, [9] * 12)])
    shot, stats = Snapshot.of(cache), cache.stats()
    assert (shot.used, shot.shared, shot.cached) == (stats.used, stats.shared, stats.cached)
    assert shot.used + shot.cached + shot.free == shot.num_blocks == 40
    assert len(shot.sequences) == stats.sequences == 4


def test_handles_are_those_of_live_sequences(cache):
    assert cache.sequences.handles().tolist() == []
    one, two = fill(cache, [1, 2, 3]), fill(cache, [4, 5])
    assert cache.sequences.handles().dtype == np.int64
    assert set(cache.sequences.handles().tolist()) == {one, two}
    cache.release([one])
    assert cache.sequences.handles().tolist() == [two]
    cache.swap_out([two])
    assert cache.sequences.handles().tolist() == []


def test_utilisation_counts_a_shared_block_once(cache):
    one = fill(cache, list(range(6)))  # 4 + 2 of 8
    assert Snapshot.of(cache).utilisation == 6 / 8
    cache.fork([one], 3)
    assert Snapshot.of(cache).utilisation == 6 / 8
    assert Snapshot(4, 2, [0, 0], [], []).utilisation == 0


def test_a_snapshot_survives_its_file(cache, tmp_path):
    fill(cache, list(range(9)))
    shot = Snapshot.of(cache)
    shot.write(tmp_path / "shot")
    assert Snapshot.of_file(tmp_path / "shot") == shot


def test_no_tokens_are_in_a_file(cache, tmp_path):
    fill(cache, [123456789] * 9)
    Snapshot.of(cache).write(tmp_path / "shot")
    assert b"123456789" not in (tmp_path / "shot").read_bytes()


def test_a_closed_cache_has_none():
    cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8), num_blocks=3)
    cache.close()
    with pytest.raises(CacheClosed):
        Snapshot.of(cache)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another 1"},
        {"block_size": 0},
        {"block_size": True},
        {"num_blocks": 7},
        {"holders": [1.5] * 40},
        {"holders": [-1] * 40},
        {"published": [41]},
        {"published": "abc"},
        {"sequences": [{"name": "1", "length": 3, "blocks": [99]}]},
        {"sequences": [{"name": "1", "length": -3, "blocks": []}]},
        {"sequences": [{"name": "1"}]},
        {"sequences": 3},
        {"more": 1},
    ],
)
def test_files_that_make_no_sense_are_refused(cache, tmp_path, change):
    Snapshot.of(cache).write(tmp_path / "shot")
    told = json.loads((tmp_path / "shot").read_text()) | change
    (tmp_path / "shot").write_text(json.dumps(told))
    with pytest.raises(CorruptFile, match="is no snapshot"):
        Snapshot.of_file(tmp_path / "shot")


@pytest.mark.parametrize("text", ["{", "{}", "{" * 100_000, '{"format": 1}', "[]", ""])
def test_files_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "shot").write_text(text)
    with pytest.raises(CorruptFile):
        Snapshot.of_file(tmp_path / "shot")


def test_forks_of_forks_may_be_deep():
    shots = [SequenceShot(str(n), 4 * n, list(range(1, n + 1))) for n in range(1, 1200)]
    [run] = sharing(Snapshot(4, 1200, [1] * 1200, [], shots))
    depth = 1
    while run.branches:
        [run] = run.branches
        depth += 1
    assert depth == 1199
