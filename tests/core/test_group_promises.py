"""What admit promises where windows slide, and what the planner says of it, against what a table really takes."""

import itertools

import pytest

from pagedcache import CacheSpec
from pagedcache.core import BlockPool, SequenceTable
from pagedcache.spec import LayerGroup

RULES = {
    "window of 1": [(1, 0, False)],
    "window of 5": [(5, 0, False)],
    "sinks": [(8, 3, False)],
    "chunks": [(7, 0, True)],
    "wider than the sequence": [(500, 2, False)],
    "all": [
        (1, 0, False),
        (5, 0, False),
        (8, 3, False),
        (7, 0, True),
        (None, 0, False),
        (64, 0, False),
        (16, 16, False),
    ],
}
LENGTH = 41


def spec_of(sides, block_size, most):
    groups = [LayerGroup(1)]
    for window, sinks, chunked in sides:
        kind = "full" if window is None else "chunked_local" if chunked else "sliding_window"
        groups.append(LayerGroup(1, kind=kind, window=window, sink_tokens=sinks))
    return CacheSpec(len(groups), 1, 8, block_size=block_size, groups=groups, max_step_tokens=most)


def table_of(sides, block_size, most, num_blocks, **options):
    return SequenceTable(
        BlockPool(num_blocks), block_size, side_groups=sides, max_step_tokens=most, max_sequences=16, **options
    )


@pytest.mark.parametrize("sides", RULES.values(), ids=RULES)
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("flight", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 5, 12])
def test_planner_and_promise(sides, block_size, flight, most):
    """A prompt takes what the planner says; so many as it says fit, and each of them gets to its end."""
    each = spec_of(sides, block_size, most).blocks_per_sequence(LENGTH, steps_in_flight=flight)
    for count in (1, 3):
        table = table_of(sides, block_size, most, count * each, steps_in_flight=flight)
        prompts = [[100 * k + i for i in range(LENGTH)] for k in range(count)]
        admission = table.admit([*prompts, [7] * LENGTH])
        assert admission.status.tolist() == [0] * count + [1]
        assert table.stats().used == count * each
        ids, steps, at = admission.ids[:count].tolist(), [], [0] * count
        sizes = itertools.cycle([most, 1, most, max(1, most - 1)])
        for turn in range(200):
            if all(k == LENGTH for k in at) or len(steps) == flight:
                step, tokens = steps.pop(0)
                table.commit(step, tokens)
                table.check()
                if not steps and all(k == LENGTH for k in at):
                    break
                continue
            chosen = [k for k in range(count) if (at[k] < LENGTH and (turn + k) % 3) or count == 1]
            news = [prompts[k][at[k] : at[k] + next(sizes)] for k in chosen]
            step = table.extend([ids[k] for k in chosen], [len(new) for new in news])
            for k, new in zip(chosen, news, strict=True):
                at[k] += len(new)
            steps.append((step, [token for new in news for token in new]))
        assert [table.position(sid) for sid in ids] == [LENGTH] * count
        assert table.stats().peak_used <= count * each


@pytest.mark.parametrize("sides", RULES.values(), ids=RULES)
@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("cached", [5, 17, 33])
def test_promise_after_a_hit(sides, block_size, cached):
    """What was found is replaced as windows slide, though the pool has no block more than the planner says."""
    most = 5
    blocks = spec_of(sides, block_size, most).blocks_per_sequence(LENGTH)
    table, prompt = table_of(sides, block_size, most, blocks), list(range(LENGTH))
    for length in (cached, LENGTH):
        admission = table.admit([prompt[:length]])
        [sid] = admission.ids.tolist()
        assert admission.status[0] == 0
        at = int(admission.cached[0])
        while at < length:
            new = prompt[at : min(at + most, length)]
            table.commit(table.extend([sid], [len(new)]), new)
            table.check()
            at += len(new)
        table.release([sid])
    assert table.stats().used == 0


@pytest.mark.parametrize("sides", RULES.values(), ids=RULES)
def test_sequences_that_fit(sides):
    for block_size, length in itertools.product((1, 4, 16), (1, 13, 40)):
        spec = spec_of(sides, block_size, 6)
        fit = spec.sequences_that_fit(length, num_blocks=100)
        table = table_of(sides, block_size, 6, 100)
        admission = table.admit([[100 * k + i for i in range(length)] for k in range(16)])
        assert (admission.status == 0).sum() == min(fit, 16)


def test_evicting_a_block_of_the_first_group_takes_no_more_than_was_asked_for():
    table = table_of([(None, 0, False), (None, 0, False)], 4, None, 60)
    prompt = list(range(16))
    [sid] = table.admit([prompt]).ids.tolist()
    table.commit(table.extend([sid], [16]), prompt)
    table.pin([prompt], "kept")
    table.release([sid])
    table.unpin("kept")
    table.check()
    for _ in range(12):
        before = table.stats().cached
        evicted = table.evict(1)
        assert before - table.stats().cached == evicted
