"""Random verbs, a save, a restore into a cache in use: every byte of every sequence is compared."""

import contextlib
import random

import pytest
from kv_drive import Rows
from saved_drive import make_cache, state

from pagedcache import LFUDA, LRU, InvalidSequence, Namespace, OutOfBlocks, PriorityTTL, content, salt

OURS = Namespace("ours", secret=b"at least 16 bytes")


def about(rng):
    """What a prompt's content depends on besides tokens."""
    return {
        "namespace": rng.choice([None, None, "theirs", OURS]),
        "keys": rng.choice([None, None, [[salt("x", 2)]], [[content("cat", 3, 6)]], [[salt("y")]]]),
    }


def prompt_of(rng):
    return [rng.randrange(2) for _ in range(rng.randint(6, 22))]


def verb(rows, rng):
    """One verb; refused ones change nothing."""
    some = rng.sample(list(rows.tokens), min(len(rows.tokens), 2))
    kind = rng.choice(["admit"] * 4 + ["run"] * 3 + ["fork", "fork", "cut", "release", "swap", "compact", "evict"])
    if kind == "admit" or not some:
        rows.admit(prompt_of(rng), **about(rng))
    elif kind == "run":
        rows.run({sid: [rng.randrange(2) for _ in range(rng.randint(1, 5))] for sid in some})
    elif kind == "fork":
        rows.fork(some[0], at=rng.choice([None, rng.randint(6, len(rows.tokens[some[0]]))]))
    elif kind == "cut":
        at = rng.randint(6, len(rows.tokens[some[0]]))
        rows.cache.truncate(some[:1], at)
        rows.tokens[some[0]] = rows.tokens[some[0]][:at]
    elif kind == "release":
        rows.release(some[0])
    elif kind == "swap":
        rows.cache.swap_out(some)
        rows.cache.swap_in(some)
    elif kind == "compact":
        rows.cache.compact()
    else:
        rows.cache.evict(rng.randint(1, 9))


def busy(rng, num_blocks, verbs, **options):
    rows = Rows(make_cache(num_blocks, **options))
    for _ in range(verbs):
        with contextlib.suppress(OutOfBlocks, InvalidSequence):  # the latter where a prompt was not admitted
            verb(rows, rng)
        rows.tokens.pop(-1, None)
    rows.verify()
    return rows


@pytest.mark.parametrize("seed", range(16))
def test_sequences(tmp_path, seed):
    rng = random.Random(seed)
    source = busy(rng, 300, 25, policy=rng.choice([LRU, LFUDA, lambda: PriorityTTL([None, None])])())
    target = busy(
        rng, 300, rng.choice([0, 12]), layout=rng.choice(["NHD", "HND"]), backend=rng.choice(["cpu", "numpy"])
    )
    order = rng.sample(list(source.tokens), len(source.tokens))
    held = len({block for sid in order for block in source.cache.sequence(sid).block_table[: blocks(source, sid)]})
    assert source.cache.save(tmp_path / "saved.kv", order) == held
    used = {Namespace.of(source.cache.sequences.contents(sid).namespace) for sid in order}
    before = state(target.cache)
    ids = target.cache.restore(tmp_path / "saved.kv", namespace=OURS if OURS in used else None)
    target.tokens.update({int(new): list(source.tokens[old]) for new, old in zip(ids, order, strict=True)})
    target.verify()
    for new, old in zip(ids, order, strict=True):
        assert target.cache.sequences.contents(new)[1:] == source.cache.sequences.contents(old)[1:]
    target.overwrite()
    for _ in range(3):
        target.run({sid: [rng.randrange(2) for _ in range(rng.randint(1, 5))] for sid in target.tokens})
    target.verify()
    target.release(*ids.tolist())
    assert state(target.cache)[3] == before[3]
    target.verify()


def blocks(rows, sid):
    return -(-len(rows.tokens[sid]) // 4)


@pytest.mark.parametrize("seed", range(16))
def test_the_prefix_cache(tmp_path, seed):
    """What is found in the copy is what the original finds, and has the bytes of its tokens."""
    rng = random.Random(seed)
    source = busy(rng, 60, 30)
    for sid in list(source.tokens)[::2]:
        source.release(sid)
    written = source.cache.save(tmp_path / "saved.kv")
    told = source.cache.sequences.published()
    assert written == len(told.blocks)
    used = {told.border(told.path(entry)) for entry in range(written)}
    target = busy(rng, 300, rng.choice([0, 8]))
    ids = target.cache.restore(tmp_path / "saved.kv", namespace=OURS if OURS in used else None)
    assert len(ids) == 0
    for entry in range(written):
        path = told.path(entry)
        prompt, keys = told.tokens[path].ravel().tolist(), told.keys(path)
        longer = [*prompt, *[7] * max([1, *((key.stop or 0) - len(prompt) for key in keys)])]
        options = {"namespace": told.border(path), "keys": [keys]}
        assert target.cache.match([longer], **options)[0] >= len(prompt)
        if rng.random() < 0.3:
            target.admit(longer, **options)
    target.verify()


@pytest.mark.parametrize("seed", range(16))
def test_too_small_a_cache_is_as_it_was(tmp_path, seed):
    """It fits as a whole, or nothing of it is there and nothing was evicted."""
    rng = random.Random(seed)
    source = busy(rng, 300, 20)
    source.cache.save(tmp_path / "saved.kv", list(source.tokens))
    used = {source.cache.sequences.contents(sid).namespace for sid in source.tokens}
    target = busy(rng, rng.randint(8, 40), 6)
    before = state(target.cache)
    try:
        ids = target.cache.restore(tmp_path / "saved.kv", namespace=OURS if OURS in used else None)
    except (OutOfBlocks, ValueError):
        assert state(target.cache) == before
    else:
        target.tokens.update({int(new): own for new, own in zip(ids, source.tokens.values(), strict=True)})
    target.verify()
