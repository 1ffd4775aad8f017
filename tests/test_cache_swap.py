"""KVCache.swap_out and swap_in: the bytes go to host memory and come back, or nothing happens."""

import gc

import numpy as np
import pytest
from kv_drive import Replaced, Rows, make_cache

from pagedcache import CacheClosed, InvalidSequence, OutOfBlocks, SwappedOut
from pagedcache.backends import get


@pytest.fixture(params=[("float32", "NHD"), ("float16", "NHD"), ("float32", "HND")], ids="/".join)
def rows(request):
    dtype, layout = request.param
    with make_cache(dtype=dtype, layout=layout) as cache:
        yield Rows(cache)
        cache.check()


def fail(*_, **__):
    raise MemoryError("no scratch memory")


def test_what_went_out_comes_back_wherever_it_lands(rows):
    a, b = rows.admit(list(range(11))), rows.admit([50, 51, 52])
    assert rows.cache.swap_out([a]) == 3
    rows.overwrite()
    other = rows.admit([90, 91, 92, 93, 94])
    assert rows.cache.swap_in([a]) == 3
    rows.verify(a, b, other)
    rows.run({a: [11, 12], b: [53]})
    rows.verify()


def test_several_at_once_in_any_order(rows):
    ids = [rows.admit([10 * k + i for i in range(n)]) for k, n in enumerate((9, 3, 6, 1))]
    assert rows.cache.swap_out(ids) == 7
    rows.overwrite()
    assert rows.cache.swap_in(ids[2:]) == 3 and rows.cache.swap_in(np.array(ids[1::-1])) == 4
    rows.verify()


def test_shared_blocks_stay_and_the_rest_comes_back(rows):
    a = rows.admit(list(range(11)))
    kid = rows.fork(a, at=8)
    rows.cache.swap_out([a])
    rows.run({kid: [70, 71]})
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


def test_a_sharer_that_goes_meanwhile_leaves_the_shared_blocks(rows):
    a = rows.admit(list(range(11)))
    kid = rows.fork(a, at=8)
    rows.cache.swap_out([a])
    rows.release(kid)
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


def test_swapped_twice_is_as_good_as_once(rows):
    a = rows.admit(list(range(11)))
    for turn in range(3):
        rows.cache.swap_out([a])
        rows.overwrite()
        rows.cache.swap_in([a])
        rows.run({a: [60 + turn]})
    rows.verify()


def test_the_prefix_cache_serves_right_bytes_afterwards(rows):
    a = rows.admit(list(range(9)))
    rows.cache.swap_out([a])
    rows.overwrite()
    assert rows.cache.match([list(range(9))])[0] == 0
    rows.cache.swap_in([a])
    rows.run({a: [9, 10, 11]})
    assert rows.cache.match([[*range(12), 0]])[0] == 12
    rows.admit([*range(12), 80])
    rows.verify()


def test_release_while_swapped_drops_the_bytes(rows):
    a = rows.admit(list(range(11)))
    rows.cache.swap_out([a])
    saved = rows.cache._swapped
    assert list(saved) == [a]
    rows.release(a)
    assert not saved and rows.cache.stats().swapped == 0 and rows.cache.stats().used == 0


def test_a_refused_swap_in_keeps_the_bytes(rows):
    a = rows.admit(list(range(11)))
    rows.cache.swap_out([a])
    other = rows.admit([5] * 88)
    with pytest.raises(OutOfBlocks):
        rows.cache.swap_in([a])
    rows.release(other)
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


@pytest.mark.parametrize("shared", [0, 4, 8])
def test_a_backend_that_fails_in_everything_leaves_the_sequence_swapped_out(rows, shared):
    """Also where blocks that were shared, and stayed, are its own by now: nobody has saved those."""
    a = rows.admit(list(range(11)), reserve=5)
    kid = rows.fork(a, at=shared)
    rows.cache.swap_out([a])
    rows.release(kid)
    rows.overwrite()
    working, before = rows.cache.backend, rows.cache.stats()
    rows.cache.backend = Replaced(write_blocks=fail, read_blocks=fail)
    with pytest.raises(MemoryError, match="scratch"):
        rows.cache.swap_in([a])
    rows.cache.backend = working
    after = rows.cache.stats()
    assert (after.used, after.swapped) == (before.used, before.swapped) and list(rows.cache._swapped) == [a]
    with pytest.raises(SwappedOut):
        rows.cache.extend([a], 1)
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


def test_a_finalizer_that_releases_a_sequence_while_its_bytes_come_in(rows):
    """The others stay swapped out, and the blocks that were taken come back."""
    a, b = rows.admit(list(range(11))), rows.admit([50, 51, 52])
    rows.cache.swap_out([a, b])

    def write_blocks(*_, **__):
        if a in rows.tokens:
            rows.release(a)

    working, rows.cache.backend = rows.cache.backend, Replaced(write_blocks=write_blocks)
    with pytest.raises(InvalidSequence, match=str(a)):
        rows.cache.swap_in([b, a])
    rows.cache.backend = working
    assert rows.cache.stats().used == 0 and list(rows.cache._swapped) == [b]
    rows.cache.swap_in([b])
    rows.verify()


@pytest.mark.parametrize("call", ["read_blocks", "write_blocks"])
def test_a_backend_that_fails_changes_nothing(rows, call):
    a, b = rows.admit(list(range(11))), rows.admit([50, 51, 52])
    working, failing = rows.cache.backend, Replaced(**{call: fail})
    if call == "read_blocks":
        before = rows.cache.stats()
        rows.cache.backend = failing
        with pytest.raises(MemoryError, match="scratch"):
            rows.cache.swap_out([a, b])
        rows.cache.backend = working
        assert rows.cache.stats() == before and not rows.cache._swapped
        rows.verify()
    rows.cache.swap_out([a, b])
    rows.overwrite()
    if call == "write_blocks":
        before = rows.cache.stats()
        rows.cache.backend = failing
        with pytest.raises(MemoryError, match="scratch"):
            rows.cache.swap_in([b, a])
        rows.cache.backend = working
        after = rows.cache.stats()
        assert (after.used, after.swapped) == (before.used, before.swapped)
        with pytest.raises(SwappedOut):
            rows.cache.extend([a], 1)
        rows.overwrite()
    rows.cache.swap_in([a, b])
    rows.verify()


def test_a_failed_swap_in_loses_no_block_that_was_shared_at_the_swap_out(rows):
    a = rows.admit(list(range(11)))
    kid = rows.fork(a, at=4)
    rows.cache.swap_out([a])
    rows.release(kid)
    working, rows.cache.backend = rows.cache.backend, Replaced(write_blocks=fail)
    with pytest.raises(MemoryError, match="scratch"):
        rows.cache.swap_in([a])
    rows.cache.backend = working
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


def test_a_sharer_that_a_finalizer_releases_during_the_swap_out(rows):
    """The collector may run any finalizer where the backend makes arrays."""
    a = rows.admit(list(range(11)))
    kid = rows.fork(a, at=8)

    class Owner:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            rows.release(kid)

    owners = [Owner()]

    def read_blocks(*args, **options):
        owners.clear()
        gc.collect()
        return get("numpy").read_blocks(*args, **options)

    working, rows.cache.backend = rows.cache.backend, Replaced(read_blocks=read_blocks)
    rows.cache.swap_out([a])
    rows.cache.backend = working
    assert list(rows.tokens) == [a]
    rows.overwrite()
    rows.cache.swap_in([a])
    rows.verify()


def test_metadata_only_says_who_moves_the_bytes():
    with make_cache(storage="metadata") as cache:
        [sid] = cache.admit([[1, 2, 3]]).ids
        for verb in (cache.swap_out, cache.swap_in):
            with pytest.raises(ValueError, match=rf"sequences\.{verb.__name__}"):
                verb([sid])
        assert cache.sequences.swap_out([sid]) == 1


def test_a_closed_cache_forgets_what_was_swapped_out():
    cache = make_cache()
    rows = Rows(cache)
    a = rows.admit([1, 2, 3])
    cache.swap_out([a])
    cache.close()
    assert not cache._swapped
    for call in (lambda: cache.swap_in([a]), lambda: cache.swap_out([a]), lambda: cache.compact()):
        with pytest.raises(CacheClosed):
            call()
