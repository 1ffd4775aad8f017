"""KVCache with tiers: what eviction takes is found again, and every byte of it is right."""

import pytest
from kv_drive import make_cache
from tiered import compute, everything, fetched, prompt, tiered

from pagedcache import CacheSpec, KVCache, LayerGroup, Namespace
from pagedcache.testing import DelayedBackend
from pagedcache.tiers import DiskTier, HostTier, SecondHit


@pytest.fixture(params=["host", "disk"])
def tier(request, tmp_path):
    """A tier that writes back, and one that writes through."""
    return HostTier("1 MiB") if request.param == "host" else DiskTier(tmp_path / "blocks", "1 MiB")


def test_what_was_evicted_is_loaded_again(tier):
    cache, rows = tiered(tier)
    with cache:
        compute(rows, prompt(1))
        assert cache.flush(60)
        compute(rows, prompt(2), prompt(3))  # eight blocks are too few for all three
        assert cache.match([prompt(1)])[0] < 12
        assert fetched(rows, prompt(1)) == [12]
        assert cache.tier_stats()[tier.name].hits > 0


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_backends_dtypes_and_layouts(tier, backend, dtype, layout):
    cache, rows = tiered(tier, backend=backend, dtype=dtype, layout=layout)
    with cache:
        for number in range(6):
            compute(rows, prompt(number))
            cache.flush()
        assert fetched(rows, *map(prompt, range(6))) == [12] * 6


def test_scales_travel_along(tier):
    cache, rows = tiered(tier, dtype="int8", num_blocks=4)
    with cache:
        sid = rows.admit(prompt(1))
        table = cache.sequence(sid).block_table[:3]
        before = [
            array[table].copy()
            for layer in range(2)
            for array in (*cache.storage.view(layer), *cache.storage.scales(layer))
        ]
        rows.release(sid)
        cache.flush()
        rows.release(rows.admit(prompt(2)))
        assert cache.match([prompt(1)])[0] == 0
        assert cache.prefetch([prompt(1)]).wait(60)
        [sid] = cache.admit([prompt(1)]).ids
        table = cache.sequence(sid).block_table[:3]
        after = [
            array[table] for layer in range(2) for array in (*cache.storage.view(layer), *cache.storage.scales(layer))
        ]
        assert all((a == b).all() for a, b in zip(before, after, strict=True))
        del after


def test_asynchronous_backend(tier):
    """C04: bytes are read out before the block is anybody else's, however late the backend's work is."""
    backend = DelayedBackend()
    cache, rows = tiered(tier, backend=backend)
    verify, rows.verify = rows.verify, lambda *sids: (cache.synchronize(), verify(*sids))
    with cache:
        for number in range(6):
            compute(rows, prompt(number))
            cache.flush()
            cache.synchronize()
        assert fetched(rows, *map(prompt, range(6))) == [12] * 6


def test_two_tiers_complete_each_other(tmp_path):
    """What the near tier has lost comes from the far one, in one prompt."""
    near, far = HostTier(3 * 512), DiskTier(tmp_path / "blocks", "1 MiB")
    cache, rows = tiered(near, far)
    with cache:
        for number in range(8):
            compute(rows, prompt(number))
            cache.flush()
        assert cache.tier_stats()["host"].blocks == 3
        assert fetched(rows, *map(prompt, reversed(range(8)))) == [12] * 8
        assert cache.tier_stats()["host"].hits > 0 < cache.tier_stats()["disk"].hits


def test_tiers_of_one_kind_are_told_apart(tmp_path):
    cache, _ = tiered(HostTier(512), *(DiskTier(tmp_path / name, "1 MiB") for name in "ab"))
    with cache:
        assert list(cache.tier_stats()) == ["host", "disk", "disk 2"]


def test_a_restart_finds_all(tmp_path):  # T02, T05
    cache, rows = tiered(DiskTier(tmp_path / "blocks", "1 MiB"))
    with cache:
        compute(rows, *map(prompt, range(5)))
        used = everything(cache)
    cache, rows = tiered(DiskTier(tmp_path / "blocks", "1 MiB"), backend="numpy")
    with cache:
        assert compute(rows, prompt(9)) == [0]
        assert fetched(rows, prompt(4), prompt(3)) == [12, 12]
        assert everything(cache) == used


def test_only_what_is_missing_is_loaded(tmp_path):
    cache, rows = tiered(DiskTier(tmp_path / "blocks", "1 MiB"))
    with cache:
        compute(rows, prompt(1))
        cache.flush()
        cache.evict(1)
        load = cache.prefetch([prompt(1), prompt(1)[:5], prompt(2), []])
        assert load.wait(60) and load.loaded == 1 and load.failed == 0
        assert cache.prefetch([prompt(1)]).wait(60) and cache.tier_stats()["disk"].hits == 1


def test_without_tiers_there_is_nothing_to_do():
    cache = make_cache()
    load = cache.prefetch([[1, 2, 3]])
    assert load.done and load.wait() and cache.flush() and cache.tier_stats() == {}


def test_namespaces_do_not_mix(tier):
    mine, theirs = Namespace("mine", secret=b"k" * 32), Namespace("theirs", secret=b"l" * 32)
    cache, rows = tiered(tier)
    with cache:
        rows.release(rows.admit(prompt(1), namespace=mine))
        cache.flush()
        cache.evict(8)
        for other in (theirs, None, Namespace("mine2", secret=b"k" * 32)):
            assert cache.prefetch([prompt(1)], namespace=other).wait(60)
            assert cache.match([prompt(1)], namespace=other)[0] == 0
        assert cache.prefetch([prompt(1)], namespace=mine).wait(60)
        assert cache.match([prompt(1)], namespace=mine)[0] == 12


@pytest.mark.parametrize("verb", ["reset", "invalidate"])
def test_what_is_forgotten_is_in_no_tier(tier, verb):
    cache, rows = tiered(tier)
    with cache:
        compute(rows, prompt(1))
        assert (cache.reset() if verb == "reset" else cache.invalidate(namespace=None)) == 3
        cache.flush()
        assert cache.prefetch([prompt(1)]).wait(60) and cache.match([prompt(1)])[0] == 0
        assert cache.tier_stats()[tier.name].blocks == 0


def test_second_hit_stores_what_comes_again(tmp_path):
    cache, rows = tiered(SecondHit(DiskTier(tmp_path / "blocks", "1 MiB")))
    with cache:
        for expected in (0, 3, 3):
            compute(rows, prompt(1))
            cache.flush()
            assert cache.tier_stats()["disk"].blocks == expected
            cache.evict(8)


def test_events_are_told_as_without_tiers(tier):
    cache, rows = tiered(tier, events="tokens")
    plain = make_cache(8, fingerprint=b"kv drive", events="tokens")
    others = type(rows)(plain)
    for each in (rows, others):
        compute(each, prompt(1), prompt(2), prompt(3))
    with cache:
        for anew in (False, True):
            told, expected = cache.events(anew=anew), plain.events(anew=anew)
            assert told["kind"].tolist() == expected["kind"].tolist()
            assert told["digest"].tobytes() == expected["digest"].tobytes()
            assert (told["tokens"] == expected["tokens"]).all()
        assert len(cache.events()) == 0


def test_events_nobody_asked_for_are_refused(tier):
    cache, _ = tiered(tier)
    with cache, pytest.raises(ValueError, match="records no events"):
        cache.events()


def test_events_nobody_reads_do_not_pile_up(tier, monkeypatch):
    monkeypatch.setattr("pagedcache._tiering.MORE_EVENTS", 8)
    cache, rows = tiered(tier, events="digests")
    with cache:
        for number in range(40):
            compute(rows, prompt(number))
        told = cache.events()
        assert told["kind"][0] == 3, "CLEARED, then what there is"
        assert len(told) == 1 + cache.stats().published


def test_what_cannot_have_tiers(tier):
    with pytest.raises(ValueError, match="fingerprint"):
        make_cache(tiers=[tier])
    spec = CacheSpec(2, 2, 4, block_size=4, fingerprint=b"x")
    with pytest.raises(ValueError, match="metadata only"):
        KVCache(spec, num_blocks=8, storage="metadata", tiers=[tier])
    groups = [LayerGroup(1), LayerGroup(1, kind="sliding_window", window=8)]
    hybrid = CacheSpec(2, 2, 4, block_size=4, fingerprint=b"x", groups=groups, max_step_tokens=8)
    with pytest.raises(NotImplementedError, match="2 layer groups"):
        KVCache(hybrid, num_blocks=8, tiers=[tier])
    with pytest.raises(ValueError, match="one block takes"):
        KVCache(spec, num_blocks=8, tiers=[HostTier(100)])


def test_tiers_are_closed_where_another_cannot_be_bound(tmp_path):
    """The folder is free again at once, not when somebody collects the tier."""
    with pytest.raises(ValueError, match="one block takes"):
        tiered(DiskTier(tmp_path / "blocks", "1 MiB"), HostTier(100))
    with tiered(DiskTier(tmp_path / "blocks", "1 MiB"))[0]:
        pass
