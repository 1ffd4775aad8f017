"""KVCache with layer groups of all kinds: what every verb leaves is what a dense float64 oracle computes."""

import random

import numpy as np
import pytest
from hybrid_drive import CHUNKED, FULL, MIXED, SINKS, SLIDING, Rows, make_cache, published

from pagedcache.core import EventKind
from pagedcache.errors import OutOfBlocks, PositionReleased
from pagedcache.spec import LayerGroup

PROMPT = [7 * k % 200 for k in range(45)]
UNCHUNKED = (FULL, SINKS, SLIDING)  # trees cannot be cut into chunks


@pytest.fixture
def rows_of():
    """Make caches; at the end everything comes back."""
    made = []

    def make(num_blocks=150, **options):
        made.append(Rows(make_cache(num_blocks, **options)))
        return made[-1]

    yield make
    for rows in made:
        rows.cache.release(list(rows.tokens))
        rows.cache.synchronize()
        rows.cache.check()
        assert rows.cache.pool.num_free == rows.cache.num_blocks
        rows.cache.close()


def sequence_of_verbs(rows, rng, *, steps, trees):
    """Random verbs; every output is compared, and the audit passes after each."""
    cache, known = rows.cache, [PROMPT]
    for _ in range(steps):
        verb = rng.choice(
            ["run"] * 6 + ["guess"] * 3 + ["admit", "admit", "fork", "cut", "reorder", "swap", "compact", "release"]
        )
        ids = rng.sample(list(rows.tokens), min(len(rows.tokens), rng.randint(1, 3)))
        try:
            if verb == "admit" or not ids:
                base = rng.choice(known)
                rows.admit(base[: rng.randint(0, len(base))] + [rng.randrange(3) for _ in range(rng.randint(0, 9))])
            elif verb == "run":
                new = {sid: [rng.randrange(3) for _ in range(rng.choice([0, 1, 1, 1, 2, 8]))] for sid in ids}
                rows.run(new, abandon=rng.random() < 0.15, cascade=rng.random() < 0.3)
            elif verb == "guess":
                new = {sid: [rng.randrange(3) for _ in range(rng.randint(1, 8))] for sid in ids}
                parents = {
                    sid: [rng.randint(-1, k - 1) if trees else k - 1 for k in range(len(new[sid]))] for sid in ids
                }
                accepted = {}
                for sid, of_row in parents.items():
                    path, at = [], rng.randrange(-1, len(of_row))
                    while at >= 0:
                        path, at = [at, *path], of_row[at]
                    accepted[sid] = path
                rows.run(new, parents=parents if trees else None, accepted=accepted)
            elif verb in ("fork", "cut"):
                at = rng.randint(0, len(rows.tokens[ids[0]]))
                (rows.fork if verb == "fork" else rows.truncate)(ids[0], at)
            elif verb == "reorder":
                rows.reorder(ids, [rng.randrange(len(ids)) for _ in ids])
            elif verb == "swap":
                cache.swap_out(ids)
                rows.overwrite()
                cache.swap_in(ids)
            elif verb == "compact":
                cache.compact()
            else:
                known.append(rows.tokens[ids[0]])
                rows.release(ids[0])
        except PositionReleased:
            pass
        except OutOfBlocks:
            rows.release(*ids)
        for sid in [sid for sid, tokens in rows.tokens.items() if len(tokens) > 90]:
            rows.release(sid)
        cache.check()
    return known


@pytest.mark.parametrize("trees", [False, True], ids=["rows", "trees"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("cpu", dtype) for dtype in ("float32", "float16", "bfloat16", "int8", "float8_e4m3")),
        ("numpy", "float16"),
        ("numpy", "int8"),
    ],
)
def test_any_verbs(rows_of, backend, dtype, block_size, trees):
    rng = random.Random(f"{backend} {dtype} {block_size} {trees}")
    groups = UNCHUNKED if trees else MIXED
    rows = rows_of(600 // block_size + 30, dtype=dtype, block_size=block_size, backend=backend, groups=groups)
    known = sequence_of_verbs(rows, rng, steps=20, trees=trees)
    rows.release(*rows.tokens)
    for prompt in known:
        with make_cache(300, dtype=dtype, block_size=block_size, backend=backend, groups=groups) as cache:
            clean = Rows(cache)
            clean.admit(prompt)
            whole, found = published(rows, prompt)
            expected = {(group, at): record for group, at, record in published(clean, prompt)[1]}
        for group, at, record in found:
            assert expected.get((group, at), record) == record, "published bytes are not those of a clean run"
        assert whole <= len(prompt) // block_size


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_reading_again(rows_of, backend):
    """Without K and V, each layer gives what it gave when they were stored."""
    rows = rows_of(backend=backend)
    a, b = rows.admit(PROMPT[:19]), rows.admit(PROMPT[5:9])
    step = rows.cache.extend([a, b], [5, 1])
    for layer in range(rows.spec.layers):
        out = rows.compute(layer, step, [1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(rows.compute(layer, step, None), out)
    rows.cache.abandon(step)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_emulated_cuda(rows_of, cxx, dtype):
    rows = rows_of(dtype=dtype, backend="cuda-emulated")
    a = rows.admit(PROMPT[:15])
    rows.release(a)
    a = rows.admit(PROMPT[:18])
    b = rows.fork(a)
    rows.run({a: [1, 2, 3], b: [4]}, accepted={a: [0], b: []})
    rows.reorder([a, b], [1, 1])
    rows.run({b: [5], a: [6]})


@pytest.mark.parametrize(("backend", "dtype"), [("cpu", "float32"), ("cpu", "int8"), ("numpy", "bfloat16")])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_hits_change_no_bit(rows_of, backend, dtype, block_size):
    """Whole and partial hits of every length: the next steps' outputs are those without a prefix cache."""
    options = {"dtype": dtype, "block_size": block_size, "backend": backend}
    first = rows_of(300, **options)
    first.release(first.admit(PROMPT))
    for length in (2, 9, 16, 31):
        sid = first.admit(PROMPT[:length])
        assert first.cache.stats().hit_tokens > 0
        fresh = rows_of(**options)
        other = fresh.admit(PROMPT[: length - 1])
        fresh.run({other: PROMPT[length - 1 : length]})
        for new in ([1], [2, 3, 4, 5, 6, 7, 8], [9]):
            np.testing.assert_array_equal(first.run({sid: new}), fresh.run({other: new}))
        first.release(sid)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rejected_tokens_leave_no_trace(rows_of, dtype, block_size):
    """Guesses across windows' edges: digests and bytes of what is published are those of a run without guesses."""
    options = {"dtype": dtype, "block_size": block_size, "groups": UNCHUNKED, "events": "digests"}
    plain, guessing = rows_of(**options), rows_of(**options)
    a, b = plain.admit(PROMPT[:5]), guessing.admit(PROMPT[:5])
    at, rng = 5, random.Random(block_size)
    while at < 40:
        kept = rng.randint(0, 3)
        parents, tokens, path = [], [], []
        for k in range(kept):
            while rng.random() < 0.5 and len(tokens) < 4:  # a wrong guess beside the right one
                parents.append(path[-1] if path else -1)
                tokens.append(250)
            parents.append(path[-1] if path else -1)
            path.append(len(tokens))
            tokens.append(PROMPT[at + k])
        parents.append(path[-1] if path else -1)
        tokens.append(251)
        guessing.run({b: tokens}, parents={b: parents}, accepted={b: path})
        if kept:
            plain.run({a: PROMPT[at : at + kept]})
        at += kept
        assert guessing.tokens[b] == plain.tokens[a]
        stored = [
            {event["digest"].tobytes() for event in rows.cache.events(anew=True) if event["kind"] == EventKind.STORED}
            for rows in (plain, guessing)
        ]
        assert stored[0] == stored[1]
        assert len(stored[0]) == at // block_size
    plain.release(a)
    guessing.release(b)
    assert published(plain, PROMPT[:at]) == published(guessing, PROMPT[:at])


@pytest.mark.parametrize("group", [SLIDING, SINKS, CHUNKED, LayerGroup(1, kind="sliding_window", window=1)], ids=str)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_lowest_position_works_and_one_lower_does_not(rows_of, group, block_size):
    rows = rows_of(block_size=block_size, groups=(FULL, group))
    for length in range(1, 40, 3):
        sid, at = rows.admit(PROMPT[:length]), length
        while at > 0:
            try:
                rows.release(rows.fork(sid, at=at - 1))
            except PositionReleased:
                break
            at -= 1
        for lower in range(at):
            for verb in (rows.fork, rows.truncate):
                with pytest.raises(PositionReleased, match=f"the lowest position left is {at}$"):
                    verb(sid, lower)
        kid = rows.fork(sid, at=at)
        rows.truncate(sid, at)
        rows.run({kid: [1, 2], sid: [3]})
        rows.run({sid: [4] * 8, kid: [5]})
        rows.release(sid, kid)
        rows.cache.reset()
