"""Replay of prefixes: the core's own cache against known figures, a plain cache and a simulator of others."""

import json
from itertools import pairwise

import numpy as np
import pytest

from pagedcache.replay import POLICIES, Trace, capacities, prefix_hits, replay_prefix, shipped_trace
from pagedcache.replay.belady import next_uses
from pagedcache.replay.prefix import TTLS

# Token hit rates of the shipped parts, of simulators written apart from the package. Capacities are in blocks. They
# evict after they have taken in a prompt, not before. In that of S3-FIFO a block steps aside for those that continue
# it; the others take each block for itself.
KNOWN = {
    ("mooncake-conversation", "lru"): {20: 0.0366, 1000: 0.0401, 3000: 0.0624, 10000: 0.2029, 19531: 0.2546},
    ("mooncake-conversation", "lfu-da"): {20: 0.0366, 1000: 0.0401, 3000: 0.0645, 10000: 0.1972, 19531: 0.2576},
    ("mooncake-conversation", "arc"): {20: 0.0366, 1000: 0.0422, 3000: 0.0760, 10000: 0.2026, 19531: 0.2576},
    ("mooncake-conversation", "s3-fifo"): {1000: 0.0491, 3000: 0.0810, 10000: 0.2016, 19531: 0.2554},
    ("mooncake-conversation", "belady"): {20: 0.0432, 1000: 0.1783, 3000: 0.2627, 10000: 0.2699},
    ("mooncake-synthetic", "lru"): {20: 0.0007, 1000: 0.0097, 3000: 0.0408, 10000: 0.1130, 19531: 0.1480},
    ("mooncake-synthetic", "lfu-da"): {20: 0.0007, 1000: 0.0097, 3000: 0.0408, 10000: 0.1161, 19531: 0.1480},
    ("mooncake-synthetic", "arc"): {20: 0.0007, 1000: 0.0134, 3000: 0.0453, 10000: 0.1161, 19531: 0.1480},
    ("mooncake-synthetic", "s3-fifo"): {1000: 0.0088, 3000: 0.0429, 10000: 0.1090, 19531: 0.1480},
    ("mooncake-synthetic", "belady"): {20: 0.0093, 1000: 0.1119, 3000: 0.1480},
}
NEAR = {"lru": 5e-5, "belady": 5e-5, "lfu-da": 1e-3, "arc": 1e-3, "s3-fifo": 1e-3}


def made(*prompts, block_size=1, arrivals=None):
    """A trace whose prompts are these lists of blocks."""
    lengths = np.array([len(p) * block_size for p in prompts])
    blocks = tuple(np.array(p, np.int32) for p in prompts)
    return Trace("made", lengths, np.ones_like(lengths), arrivals, blocks, block_size)


@pytest.fixture(scope="module")
def random_trace():
    """Prompts that continue earlier ones, as numbers of a trie's nodes."""
    rng = np.random.default_rng(5)
    paths, nodes = [[]], 0
    prompts = []
    for _ in range(400):
        path = paths[rng.integers(max(0, len(paths) - 12), len(paths))]
        path = path[: rng.integers(0, len(path) + 1)] if rng.random() < 0.3 else path
        new = int(rng.integers(0, 5))
        prompts.append([*path, *range(nodes, nodes + new)])
        nodes += new
        paths.append(prompts[-1])
    return made(*prompts, arrivals=np.cumsum(rng.exponential(1, 400)))


def plain_lru(trace, capacity):
    """A dict in the order of use, the end of a prompt older than its beginning."""
    kept, hits = {}, []
    for ids in trace.blocks:
        prompt = ids.tolist()
        hits.append(next((i for i, block in enumerate(prompt) if block not in kept), len(prompt)))
        for block in reversed(prompt):
            kept.pop(block, None)
            kept[block] = True
        while len(kept) > capacity:
            del kept[next(iter(kept))]
    return hits


@pytest.mark.parametrize(("name", "policy"), KNOWN)
def test_known_hit_rates(name, policy):
    known = KNOWN[name, policy]
    rates = replay_prefix(shipped_trace(name), known, [policy])
    assert [rate.token_rate for rate in rates] == pytest.approx(list(known.values()), abs=NEAR[policy])


@pytest.mark.parametrize("capacity", [1, 2, 5, 17, 60, 1000])
def test_the_cores_lru_is_a_plain_one(random_trace, capacity):
    assert prefix_hits(random_trace, capacity).tolist() == plain_lru(random_trace, capacity)


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic"])
@pytest.mark.parametrize(("policy", "theirs"), [("lru", "lru"), ("belady", "optimal")])
def test_kvcache_simulator_finds_the_same(name, policy, theirs):
    """Over the second half, as it counts; it tells nothing where the first half does not fill the cache."""
    plan = pytest.importorskip("kvcache_sim.plan")
    policies = pytest.importorskip("kvcache_sim.policies")
    reader = pytest.importorskip("kvcache_sim.trace")
    trace = shipped_trace(name)
    records = (
        json.dumps({"input_length": int(length), "hash_ids": ids.tolist(), "block_size": trace.block_size})
        for length, ids in zip(trace.prompts, trace.blocks, strict=True)
    )
    workload = plan.build_execution_plan(reader.parse_trace_lines(records), 0.5)
    compared = 0
    for ours in replay_prefix(trace, [195, 1000, 3000, 6000], [policy], skip=0.5):
        other = policies.simulate_policy(workload, theirs, ours.capacity_blocks)
        if other.hitTokens is not None and other.totalTokens:
            compared += 1
            assert ours.tokens == other.totalTokens
            assert ours.token_rate == pytest.approx(other.hitTokens / other.totalTokens, abs=5e-5)
    assert compared >= 3


@pytest.mark.parametrize("capacity", [3, 20, 100])
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_beats_belady_over_all(random_trace, capacity, policy):
    best = prefix_hits(random_trace, capacity, "belady").sum()
    assert prefix_hits(random_trace, capacity, policy).sum() <= best


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cache_for_everything_finds_all_that_came_before(random_trace, policy):
    seen, expected = set(), []
    for ids in random_trace.blocks:
        prompt = ids.tolist()
        expected.append(next((i for i, block in enumerate(prompt) if block not in seen), len(prompt)))
        seen.update(prompt)
    assert prefix_hits(random_trace, random_trace.num_blocks, policy).tolist() == expected


def test_priorities_keep_what_was_used_again():
    """0 is used twice, so that 1, 2 and 3 push each other out and not it; under LRU it goes."""
    trace = made([0], [0], [1], [2], [3], [0], arrivals=np.arange(6.0))
    assert prefix_hits(trace, 2, "lru").tolist() == [0, 1, 0, 0, 0, 0]
    assert prefix_hits(trace, 2, "priority-ttl").tolist() == [0, 1, 0, 0, 0, 1]


def test_priorities_expire():
    late = TTLS[1] + 1
    trace = made([0], [0], [1], [2], [0], arrivals=np.array([0, 0, late, late, late]))
    assert prefix_hits(trace, 2, "priority-ttl").tolist() == [0, 1, 0, 0, 0]
    assert prefix_hits(trace, 2, "priority-ttl", ttls=(60, 2 * late)).tolist() == [0, 1, 0, 0, 1]


def test_the_last_block_counts_with_its_real_length():
    trace = Trace("made", np.array([20, 20]), np.array([1, 1]), None, (np.array([0, 1], np.int32),) * 2, 16)
    (rate,) = replay_prefix(trace, [9], ["lru"])
    assert (rate.hit_tokens, rate.tokens, rate.hit_blocks, rate.blocks) == (20, 40, 2, 4)
    assert (rate.capacity_blocks, rate.capacity_tokens) == (9, 144)
    assert (rate.token_rate, rate.block_rate) == (0.5, 0.5)


def test_of_a_prompt_longer_than_the_cache_the_beginning_is_kept():
    assert prefix_hits(made(range(10), range(10)), 4).tolist() == [0, 4]


def test_skipped_requests_fill_the_cache():
    trace = made([0, 1], [0, 1], [2, 3], [0, 1])
    (rate,) = replay_prefix(trace, [9], ["lru"], skip=0.5)
    assert (rate.hit_tokens, rate.tokens) == (2, 4)


def test_next_uses_are_those_of_a_plain_search(random_trace):
    expected = []
    for number, ids in enumerate(random_trace.blocks):
        for block in ids.tolist():
            later = (n for n in range(number + 1, 400) if block in random_trace.blocks[n])
            expected.append(next(later, 400))
    assert next_uses(random_trace.blocks).tolist() == expected


def test_capacities_grow_up_to_the_whole_trace():
    trace = shipped_trace("mooncake-synthetic")
    found = capacities(trace)
    assert found[0] == 10_000 // 512
    assert found[-1] == trace.num_blocks
    assert all(a < b for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: replay_prefix(shipped_trace("sharegpt"), [1]), "sharegpt: the trace does not tell which blocks"),
        (lambda t: replay_prefix(t, [0]), "capacity is 0; it must be at least 1"),
        (lambda t: replay_prefix(t, [2**40]), "capacity is 1099511627776; it must be at most"),
        (lambda t: replay_prefix(t, [1], ["fifo"]), "policy is 'fifo'; it must be one of 'lru', 'lfu-da', 'arc', 's3"),
        (lambda t: replay_prefix(t, [1], skip=1.0), "skip is 1.0"),
        (lambda t: replay_prefix(t, [1], ["priority-ttl"]), "made: priority-ttl needs the times of arrival"),
        (lambda t: replay_prefix(made([], []), [1]), "made: the 2 requests to count have no blocks"),
        (lambda t: prefix_hits(shipped_trace("mooncake-synthetic"), 1, "priority-ttl", ttls=[1]), r"ttls is \[1\]"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(made([0, 1], [0, 2]))
