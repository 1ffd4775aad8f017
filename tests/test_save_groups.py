"""Saving caches with layer groups: windows have what they show, and nothing else can be found."""

import contextlib
import dataclasses
import random

import numpy as np
import pytest
from hybrid_drive import CHUNKED, FULL, MIXED, SINKS, SLIDING, Rows, make_cache, published

from pagedcache import KVCache
from pagedcache.errors import CorruptFile, ForeignFormat, OutOfBlocks, PositionReleased
from pagedcache.saved._manifest import Group
from pagedcache.spec import LayerGroup

PROMPT = [7 * k % 200 for k in range(45)]


def cache_of(num_blocks=150, **options):
    """As `make_cache` has it, with a fingerprint."""
    with make_cache(1, **options) as plain:
        spec = dataclasses.replace(plain.spec, fingerprint=b"hybrid")
    return KVCache(spec, num_blocks=num_blocks)


def resumed(cache, tokens, pads):
    rows = Rows(cache)
    rows.tokens.update({int(sid): list(own) for sid, own in tokens.items()})
    rows.pads.update({int(sid): pad for sid, pad in pads.items()})
    return rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.kv"


@pytest.mark.parametrize("groups", [MIXED, (FULL, SINKS), (FULL, CHUNKED, CHUNKED), (LayerGroup(2), SLIDING)], ids=len)
@pytest.mark.parametrize("length", [1, 4, 11, 12, 13, 29, 45])
def test_a_conversation_goes_on(path, groups, length):
    rows = Rows(cache_of(groups=groups))
    sid = rows.admit(PROMPT[:length])
    rows.cache.save(path, [sid])
    cache, [other] = KVCache.load(path, num_blocks=150)
    assert cache.spec == rows.cache.spec
    again = resumed(cache, {other: PROMPT[:length]}, {other: 0})
    for tokens in ([3], [1, 4, 1, 5, 9, 2, 6, 5], [3, 5], [8, 9, 7, 9]):
        np.testing.assert_array_equal(again.run({int(other): tokens}), rows.run({sid: tokens}))
    cache.check()


@pytest.mark.parametrize("seed", range(6))
def test_many_of_all_kinds_after_random_verbs(path, seed):
    """Each output is compared with an oracle, before and after."""
    rng = random.Random(seed)
    rows = Rows(cache_of(400))
    for k in range(4):
        rows.admit(PROMPT[: rng.randint(1, 45)], pad=rng.choice([0, 0, 5]))
        rows.run({sid: [rng.randrange(9) for _ in range(rng.randint(1, 8))] for sid in rows.tokens})
        rows.fork(rng.choice(list(rows.tokens)))
        if k == 2:
            sid = rng.choice(list(rows.tokens))
            with contextlib.suppress(PositionReleased):
                rows.truncate(sid, int(rows.cache.sequence(sid).position) - 1)
    rows.run({sid: [rng.randrange(9)] for sid in list(rows.tokens)[::2]})
    order = rng.sample(list(rows.tokens), len(rows.tokens))
    rows.cache.save(path, order)
    cache, ids = KVCache.load(path, num_blocks=400)
    again = resumed(
        cache,
        {new: rows.tokens[old] for new, old in zip(ids, order, strict=True)},
        {new: rows.pads[old] for new, old in zip(ids, order, strict=True)},
    )
    cache.check()
    for _ in range(5):
        new = {sid: [rng.randrange(9) for _ in range(rng.randint(1, 8))] for sid in again.tokens}
        again.run(new)
    again.overwrite()
    again.run({sid: [1] for sid in again.tokens})
    cache.check()


def test_only_blocks_that_are_there_can_be_found(path):
    """A block that a window had let go of, and was not saved, must never be served for its tokens."""
    rows = Rows(cache_of(groups=(FULL, SLIDING)))
    sid = rows.admit(PROMPT)
    rows.cache.save(path, [sid])
    cache, [other] = KVCache.load(path, num_blocks=60)
    table = cache.sequences
    found = table.published_blocks(PROMPT)
    held = table.block_table(other, 1)[: len(found)]
    assert found[:, 1].tolist() == held.tolist() and (held == 0).sum() == 10
    assert cache.match([[*PROMPT[:20], 1]])[0] == 0 and cache.match([[*PROMPT[:44], 1]])[0] == 44
    again = resumed(cache, {}, {})
    again.admit([*PROMPT[:44], 1, 2, 3])
    cache.check()


def test_the_prefix_cache_comes_back_in_all_groups(path):
    rows = Rows(cache_of())
    rows.admit(PROMPT)
    rows.admit([*PROMPT[:22], *range(20)])
    rows.release(*rows.tokens)
    rows.cache.evict(9)
    saved = rows.cache.save(path)
    told = rows.cache.sequences.published()
    assert saved == (told.blocks > 0).sum() > len(told.blocks)
    cache, ids = KVCache.load(path, num_blocks=150)
    again = resumed(cache, {}, {})
    assert len(ids) == 0 and cache.stats().cached == saved
    for prompt in (PROMPT, [*PROMPT[:22], *range(20)]):
        np.testing.assert_array_equal(cache.match([prompt], by_group=True), rows.cache.match([prompt], by_group=True))
        assert published(again, prompt) == published(rows, prompt)
        again.admit(prompt)
    cache.check()


def test_missing_companions_are_added(path):
    """A node that the cache has for its full group alone gets what the file has for the windows."""
    rows = Rows(cache_of(groups=(FULL, SLIDING)))
    rows.admit(PROMPT[:40])
    rows.cache.save(path)
    assert rows.cache.evict(99) == 9  # what the window has let go of
    assert rows.cache.match([[*PROMPT[:20], 1]])[0] == 0
    rows.cache.restore(path)
    assert rows.cache.match([[*PROMPT[:20], 1]])[0] == 20
    rows.admit([*PROMPT[:20], 1, 2])
    rows.cache.check()


def test_no_room_changes_nothing(path):
    rows = Rows(cache_of())
    rows.cache.save(path, [rows.admit(PROMPT), rows.admit(PROMPT[3:])])
    small = cache_of(30)
    Rows(small).admit([9] * 20)
    before, told = small.stats(), small.sequences.published()
    with pytest.raises(OutOfBlocks):
        small.restore(path)
    assert small.stats() == before
    np.testing.assert_array_equal(small.sequences.published().blocks, told.blocks)
    small.check()


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ((FULL, LayerGroup(2, kind="sliding_window", window=7, sink_tokens=3)), "window 6"),
        ((FULL, LayerGroup(2, kind="sliding_window", window=6)), "sink_tokens 3"),
        ((FULL, LayerGroup(2, kind="chunked_local", window=6)), "kind 'sliding_window'"),
        ((LayerGroup(2), SLIDING), "layers 1"),
        ((LayerGroup(2), LayerGroup(2), SINKS), "2 layer groups"),
        ((LayerGroup(3), SINKS), "layers 2"),
    ],
)
def test_other_groups_are_refused(path, groups, field):  # T08
    rows = Rows(cache_of(groups=(FULL, SINKS)))
    rows.cache.save(path, [rows.admit(PROMPT)])
    with pytest.raises(ForeignFormat, match=field):
        cache_of(groups=groups).restore(path)


def test_padding_of_a_smaller_group_is_not_saved(path):
    """Planes that a group leaves idle may hold another group's old bytes."""
    rows = Rows(cache_of(groups=(FULL, SINKS)))
    for array in rows.cache.storage.export(writable=True)[1]:
        array[...] = 12345
    rows.cache.save(path, [rows.admit(PROMPT)])
    assert np.float32(12345).tobytes() not in path.read_bytes()


def test_mixed_shapes_are_not_saved(path, monkeypatch):
    spec = dataclasses.replace(cache_of().spec, fingerprint=b"x", groups=[LayerGroup(1), LayerGroup(5, head_dim=16)])
    cache = cache_of()
    monkeypatch.setattr(cache, "spec", spec)
    with pytest.raises(NotImplementedError, match="2 K/V shapes"):
        cache.save(path)


@pytest.mark.parametrize("pad", [0, 3])
def test_what_is_kept_is_what_the_core_keeps(pad):
    """The file's own rule of windows, which hostile tables are held to."""
    kinds = (SINKS, SLIDING, CHUNKED)
    cache = cache_of(groups=(FULL, *kinds))
    rows = Rows(cache)
    sid = rows.admit(PROMPT[:1], pad=pad)
    for _ in range(30):
        rows.run({sid: [1]})
        position = int(cache.sequence(sid).position)
        for number, group in enumerate(kinds, 1):
            rule = Group(group.layers, group.kind, group.window, group.sink_tokens)
            held = cache.sequences.block_table(sid, number)[: -(-position // 4)] > 0
            kept = rule.kept(len(held), 4, position, pad)
            assert (held >= kept).all() and (held.sum() - kept.sum()) <= 1


def test_a_table_without_a_block_that_a_window_shows(path, monkeypatch):
    rows = Rows(cache_of(groups=(FULL, SINKS)))
    sid = rows.admit(PROMPT)
    table = rows.cache.sequences
    honest = table.block_table

    class Lying:
        def __getattr__(self, name):
            return getattr(table, name)

        def block_table(self, handle, group=0):
            entries = honest(handle, group).copy()
            if group:
                entries[-1] = 0
            return entries

    monkeypatch.setattr(rows.cache, "sequences", Lying())
    rows.cache.save(path, [sid])
    with pytest.raises(CorruptFile, match="without a block that its 'sliding_window' group shows"):
        KVCache.load(path)
