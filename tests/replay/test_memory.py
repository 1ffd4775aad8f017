"""Replay of memory: figures on real lengths, small cases by hand, and slots that add up."""

import numpy as np
import pytest

from pagedcache.core import SequenceTable
from pagedcache.replay import CONTIGUOUS, Machine, SlotKind, Trace, replay_memory, shipped_trace
from pagedcache.replay.contiguous import simulate_contiguous
from pagedcache.replay.paged import simulate_paged
from pagedcache.replay.usage import Meter

OPT_13B = 2 * 40 * 40 * 128 * 2  # bytes of K and V of a token
SLOTS = 12 * 2**30 // OPT_13B


def lengths(*pairs):
    return Trace("made", *np.array(pairs, np.int64).T)


@pytest.fixture(scope="module")
def sharegpt():
    """Usage by system, of 4000 ShareGPT requests in 12 GiB for OPT-13B; shared, as nothing changes it."""
    trace = shipped_trace("sharegpt").select(4000, max_length=2048, seed=0)
    usages = replay_memory(trace, SLOTS, 2048, block_sizes=(1, 16, 128))
    return {usage.system: usage for usage in usages}


@pytest.mark.parametrize(
    ("system", "low", "high"),
    [
        ("Orca-Max", 17.5, 18.2),
        ("Orca-Pow2", 26.6, 27.2),
        ("Orca-Oracle", 37.3, 38.2),
        ("Oracle, first fit", 50.6, 51.2),
        ("paged-1", 98.2, 98.2),
        ("paged-16", 96.4, 96.5),
        ("paged-128", 84.1, 84.6),
    ],
)
def test_sharegpt(sharegpt, system, low, high):
    assert low - 0.5 <= 100 * sharegpt[system].stored <= high + 0.5


def test_sharegpt_step_by_step(sharegpt):
    """A simulator written apart from the package measured over exactly as many steps."""
    steps = {name: usage.steps for name, usage in sharegpt.items()}
    assert steps["Orca-Max"] == 119_065
    assert steps["Orca-Pow2"] == 79_567
    assert steps["paged-16"] == 22_311
    assert sharegpt["paged-16"].preemptions == 2055


@pytest.mark.parametrize(
    ("name", "memory", "max_length", "expected"),
    [  # of a simulator written apart, on the shipped parts
        (
            "azure-conversation",
            12,
            4096,
            {"Orca-Max": 23.14, "Orca-Pow2": 50.51, "Orca-Oracle": 55.57, "paged-16": 95.34},
        ),
        ("azure-code", 48, 8192, {"Orca-Max": 22.53, "Orca-Pow2": 55.55, "Orca-Oracle": 55.81, "paged-16": 95.88}),
        (
            "mooncake-conversation",
            400,
            131_072,
            {"Orca-Max": 11.83, "Orca-Pow2": 50.82, "Orca-Oracle": 52.08, "paged-16": 95.28},
        ),
    ],
)
def test_other_traces(name, memory, max_length, expected):
    trace = shipped_trace(name).select(10_000, max_length=max_length)
    usages = replay_memory(trace, memory * 2**30 // OPT_13B, max_length, contiguous=list(expected)[:-1])
    assert {u.system: 100 * u.stored for u in usages} == pytest.approx(expected, abs=0.05)


def test_kinds_add_up(sharegpt):
    for usage in sharegpt.values():
        shares = [usage.stored, usage.reserved, usage.internal, usage.rounding, usage.external]
        assert sum(shares) == pytest.approx(1)
        assert all(share >= 0 for share in shares)


def test_maps_agree_with_the_samples(sharegpt):
    """The map counts slots one by one, the samples by sums that are kept: at some step they are the same."""
    for usage in sharegpt.values():
        counts = np.bincount(usage.kinds, minlength=len(SlotKind))
        assert counts.sum() == usage.slots == SLOTS
        assert [counts[SlotKind.STORED], SLOTS - counts[SlotKind.EXTERNAL]] in usage.samples[:, 2:].tolist()
        assert ((usage.owners >= 0) == (usage.kinds != SlotKind.EXTERNAL)).all()


def test_samples_are_the_means(sharegpt):
    for usage in sharegpt.values():
        steps, token_steps, stored, handed = usage.samples.T
        assert (np.diff(steps) > 0).all()
        assert (stored <= handed).all() and (handed <= SLOTS).all()
        late = steps >= steps[-1] - usage.steps
        mean = np.ptp(token_steps[late]) / np.ptp(steps[late]) / SLOTS
        assert mean == pytest.approx(usage.stored)


def test_contiguous_by_hand():
    """8 slots for requests of 2 + 2 tokens that ask for 4 each: two run at a time, for two steps."""
    trace = lengths(*[(2, 2)] * 6)
    (usage,) = replay_memory(trace, 10, 4, contiguous=["Orca-Max"], block_sizes=())
    # stored 6 and 8 of the 10 slots in turn; the other 2 are a tree too small for 4
    assert usage.stored == pytest.approx(0.7)
    assert usage.reserved == pytest.approx(0.1)
    assert usage.external == pytest.approx(0.2)
    assert usage.batch == 2
    assert usage.samples[:5].tolist() == [[0, 0, 0, 0], [1, 6, 6, 8], [2, 14, 8, 8], [3, 20, 6, 8], [4, 28, 8, 8]]
    assert usage.kinds.tolist() == [1, 1, 1, 2, 1, 1, 1, 2, 0, 0]
    assert usage.owners.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, -1, -1]


def test_power_of_two_by_hand():
    """A prompt of 3 and an answer of 5 ask for 3 + 8 slots and get 16, or 11 of first fit."""
    trace = lengths(*[(3, 5)] * 4)
    buddy, first_fit = replay_memory(trace, 16, 64, contiguous=["Orca-Pow2", "Pow2, first fit"], block_sizes=())
    for usage in (buddy, first_fit):
        assert usage.stored == pytest.approx(6 / 16)  # 4, 5, 6, 7 and 8 tokens
        assert usage.reserved == pytest.approx(2 / 16)
        assert usage.internal == pytest.approx(3 / 16)
    assert (buddy.rounding, first_fit.rounding) == (pytest.approx(5 / 16), 0)
    assert buddy.external == 0


def test_paged_by_hand():
    """4 blocks of 2 slots and five requests of 1 + 4 tokens; the last one waits until the others are through."""
    trace = lengths(*[(1, 4)] * 5)
    meter = Meter(8, 5)
    simulate_paged(trace.prompts, trace.outputs, 2, meter, watermark=0)
    # step 1  a b c d have 2 tokens, a block each                              8 stored, 8 handed out
    # step 2  each needs a second block: d, then c go; a b have 3 tokens       6         8
    # step 3  a b have 4                                                       8         8
    # step 4  each needs a third block: b goes; a has 5 and is done            5         6
    # step 5  b and c are back, with all their tokens and one more: 5 and 3    8         10 > 8: c has to wait
    samples = meter.usage("x").samples[1:5]
    assert samples[:, 2].tolist()[:4] == [8, 6, 8, 5]
    assert samples[:, 3].tolist()[:4] == [8, 8, 8, 6]
    assert meter.preemptions >= 3


def test_paged_counts_are_the_tables_own(monkeypatch):
    """Stored tokens, as the simulation sums them, are what the table says it holds; and the pool is intact."""
    checked = []

    class Watched(SequenceTable):
        def commit(self, step, tokens):
            published = super().commit(step, tokens)
            self.check()
            self.pool.check()
            checked.append((self.stats().tokens, self.pool.num_used * self.block_size))
            return published

    monkeypatch.setattr("pagedcache.replay.paged.SequenceTable", Watched)
    trace = shipped_trace("sharegpt").select(60, max_length=500, seed=1)
    meter = Meter(1600, 60)
    simulate_paged(trace.prompts, trace.outputs, 16, meter)
    samples = meter.usage("x").samples[1:]
    assert [tuple(row) for row in samples[:, 2:].tolist()] == checked
    assert len(checked) > 100 and meter.preemptions > 0


def test_watermark_saves_preemptions():
    trace = shipped_trace("sharegpt").select(500, max_length=2048, seed=0)
    eager, careful = (replay_memory(trace, SLOTS, 2048, contiguous=(), watermark=share)[0] for share in (0.0, 0.1))
    assert careful.preemptions < eager.preemptions
    assert careful.stored < eager.stored


def test_throughput_is_bytes_over_bandwidth(sharegpt):
    machine = Machine(weights_nbytes=1000, bytes_per_token=10, bandwidth=100.0)
    assert machine.seconds(3, 20) == 32.0
    usage = sharegpt["paged-16"]
    assert machine.throughput(usage) == pytest.approx(usage.batch / ((1000 + 10 * usage.stored * SLOTS) / 100))


def test_paging_beats_reservation(sharegpt):
    machine = Machine(26 * 10**9, OPT_13B)
    rate = {name: machine.throughput(usage) for name, usage in sharegpt.items()}
    assert rate["paged-16"] / rate["Orca-Max"] == pytest.approx(4.0, abs=0.15)
    assert rate["paged-16"] / rate["Orca-Oracle"] == pytest.approx(2.05, abs=0.1)


def test_same_seed_same_figures():
    def run(seed):
        trace = shipped_trace("sharegpt").select(300, max_length=2048, seed=seed)
        return [usage.figures() for usage in replay_memory(trace, 4000, 2048)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_progress_is_told():
    told = {}
    trace = shipped_trace("sharegpt").select(200, max_length=2048, seed=0)
    replay_memory(trace, 4000, 2048, contiguous=["Orca-Max"], progress=lambda system, done: told.update({system: done}))
    assert told["Orca-Max"] == 200
    assert 100 < told["paged-16"] <= 200


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 2048), {}, "slots is 0; it must be at least 1"),
        ((2**40, 2048), {}, "slots is 1099511627776; it must be at most"),
        ((4000, 0), {}, "max_length is 0"),
        ((4000, 7), {}, "made: requests must have .* at most max_length=7 tokens, and the longest has 8"),
        ((4000, 2048), {}, "Orca-Max: 4000 tokens of memory were never short"),
        ((1000, 2048), {}, "request 0 asks for 2048 slots in a row; the memory has 1000"),
        ((4000, 2048), {"contiguous": ["Slab"]}, "system is 'Slab'; it must be one of 'Orca-Max'"),
        ((4000, 2048), {"block_sizes": [0]}, "block_size is 0"),
        ((4000, 2048), {"block_sizes": [2048]}, "block_size is 2048; it must be at most 1024"),
        ((7, 8), {"contiguous": [], "block_sizes": [1]}, "request 0 has 8 tokens; 7 blocks of 1 tokens"),
        ((40, 8), {"contiguous": [], "watermark": 1.0}, "watermark is 1.0"),
        ((40, 8), {"contiguous": [], "watermark": 0.9, "block_sizes": [4]}, "9 of them kept free, are too few"),
    ],
)
def test_errors_name_what_is_wrong(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        replay_memory(lengths((3, 5)), *arguments, **options)


def test_requests_without_answer_are_refused():
    with pytest.raises(ValueError, match="requests must have a prompt, an answer"):
        replay_memory(lengths((3, 0)), 40, 8)


def test_every_system_has_its_own_memory():
    """Allocators keep nothing between runs: each call makes new ones."""
    trace = shipped_trace("sharegpt").select(100, max_length=1024, seed=0)
    first, again = ([u.figures() for u in replay_memory(trace, 2048, 1024, block_sizes=())] for _ in range(2))
    assert first == again and len(first) == len(CONTIGUOUS)


def test_a_request_larger_than_the_largest_tree():
    """Memory of 12 slots is trees of 8 and 4 to buddies: no range of 9 exists, although the memory is empty."""
    from pagedcache.replay.allocators import Buddy

    trace = lengths((4, 5))
    with pytest.raises(ValueError, match="request 0 asks for 9 slots in a row; the memory has 12"):
        simulate_contiguous(trace.prompts, trace.outputs, np.array([9]), Buddy(12), Meter(12, 1))
