"""What block sizes cost, against sums that can be done by hand, and the rule of the advice."""

import numpy as np
import pytest

from pagedcache import CacheSpec
from pagedcache.replay import shipped_trace
from pagedcache.sizing import (
    BlockSizeCost,
    DecodeSpeeds,
    advise,
    cost_of_block_sizes,
    decode_speed,
    decode_speeds,
)
from pagedcache.sizing import block_sizes as module

SPEC = CacheSpec(2, 1, 8)
LENGTHS = np.array([[9, 7], [20, 12], [3, 1], [30, 9], [5, 6]])


@pytest.fixture(scope="module")
def sharegpt():
    trace = shipped_trace("sharegpt")
    return np.stack([trace.prompts, trace.outputs], axis=1)


@pytest.mark.parametrize("size", [1, 4, 16, 50])
def test_unused_slots(size):
    (cost,) = cost_of_block_sizes(SPEC, LENGTHS, block_sizes=[size])
    slots = sum(-(-total // size) * size for total in (16, 32, 4, 39, 11))
    assert cost.unused == pytest.approx(1 - 102 / slots)


def test_bookkeeping_falls_with_the_block_size(sharegpt):
    costs = cost_of_block_sizes(SPEC, sharegpt, block_sizes=[1, 8, 64])
    shares = [cost.bookkeeping for cost in costs]
    assert shares == sorted(shares, reverse=True)
    fuller = CacheSpec(4, 1, 8)  # twice the bytes for the same books
    assert cost_of_block_sizes(fuller, sharegpt, block_sizes=[8])[0].bookkeeping == pytest.approx(shares[1] / 2)
    assert costs[0].overhead == costs[0].unused + costs[0].bookkeeping


@pytest.mark.parametrize(("size", "system"), [(1, 6), (4, 6), (16, 0), (7, 64)])
def test_reuse_lost(size, system):
    """Every turn finds the full blocks of what came before it; the first of a talk all of the system prompt."""
    reusable = found = 0
    for number, talk in enumerate([LENGTHS[:4], LENGTHS[4:]]):
        before = system
        for turn, (prompt, answer) in enumerate(talk):
            if number or turn:  # there is something before it
                reusable += before
                found += before // size * size if turn else before
            before += prompt + answer
    (cost,) = cost_of_block_sizes(SPEC, LENGTHS, block_sizes=[size], system_tokens=system)
    assert cost.reuse_lost == pytest.approx(1 - found / reusable)


def test_nothing_to_reuse():
    (cost,) = cost_of_block_sizes(SPEC, LENGTHS[:1], block_sizes=[4])
    assert cost.reuse_lost == 0


def test_reuse_lost_on_sharegpt(sharegpt):
    """Research on whole ShareGPT conversations found 0.7 % at 16 and 3.1 % at 64."""
    costs = cost_of_block_sizes(SPEC, sharegpt, block_sizes=[1, 16, 64])
    assert [cost.reuse_lost for cost in costs] == pytest.approx([0, 0.007, 0.031], abs=0.002)


def test_large_workloads_are_thinned_out():
    many = np.full((10_000, 2), 50)
    assert len(module._chosen(many)) == module.MAX_SEQUENCES
    numbered = module._chosen(np.arange(1, 2001).reshape(1000, 2))
    assert (np.diff(numbered[:, 0]) > 0).all()  # none twice, and in order
    long = np.full((200, 2), 1 << 17)
    assert len(module._chosen(long)) == 1
    assert len(module._chosen(long[:1])) == 1


def test_speeds_are_shares_of_the_fastest():
    speeds = DecodeSpeeds({4: 1e9, 8: 4e9}, noise=0)
    costs = cost_of_block_sizes(SPEC, LENGTHS, block_sizes=[4, 8], speeds=speeds)
    assert [cost.speed for cost in costs] == [0.25, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_measured_speeds(monkeypatch, dtype):
    monkeypatch.setattr(decode_speed, "NBYTES", 1 << 20)
    spec = CacheSpec(2, 2, 16, v_head_dim=32, dtype=dtype)
    speeds = decode_speeds(spec, [1, 3, 256], q_heads=4, seconds=0, threads=1)
    assert list(speeds.bytes_per_second) == [1, 3, 256]
    assert max(map(speeds.share, (1, 3, 256))) == 1
    assert 0 <= speeds.noise < 1


def test_what_is_read_is_there_and_the_same(monkeypatch):
    """The pools of all block sizes show the same tokens to attention: none reads memory that was never written."""
    monkeypatch.setattr(decode_speed, "NBYTES", 1 << 18)
    memory = decode_speed._Memory(CacheSpec(1, 1, 8), 64)
    pools = [decode_speed._pool(memory, size, 1, 1) for size in (1, 64)]
    seen = []
    for pool in pools:
        pool.fill()
        assert sum(int(step.kv_lens.sum()) for step in pool.steps) * 64 == decode_speed.PARTS * pool.nbytes
        pool.read(decode_speed.PARTS - 1)
        seen.append(pool.out.copy())
    np.testing.assert_array_equal(*seen)
    assert np.abs(seen[0]).max() > 0
    for pool in pools:
        pool.close()


def cost(size, *, unused=0.0, lost=0.0, speed=None):
    return BlockSizeCost(size, unused, 0.0, lost, speed)


def test_advice_is_the_smallest_fast_one():
    costs = [cost(8, speed=0.96), cost(16, speed=0.98), cost(32, speed=1.0), cost(64, speed=0.5)]
    advice = advise(costs)
    assert (advice.block_size, advice.good) == (16, (16, 32))
    assert "Block size 16 is the smallest that is at most 3.0 % slower" in advice.text
    assert advice.text.endswith("lost reuse: 16, 32; of the tutorial's 16 to 64: 16, 32.")
    assert advise(costs, slower=0.6).block_size == 8


def test_advice_tells_what_the_fast_one_costs():
    advice = advise([cost(1, speed=0.1), cost(256, unused=0.2, lost=0.1, speed=1.0)])
    assert (advice.block_size, advice.good) == (256, ())
    assert "20.0 % is unused" in advice.text and "10.0 % of the reusable tokens" in advice.text
    assert advice.text.endswith("none; of the tutorial's 16 to 64: none.")


def test_advice_without_speed():
    costs = [cost(1), cost(16, unused=0.04), cost(32, unused=0.02, lost=0.06), cost(64, unused=0.06)]
    assert advise(costs).block_size == 16
    assert advise(costs, lost=0.06).block_size == 64
    assert advise(costs[2:], lost=0.001).block_size == 32
