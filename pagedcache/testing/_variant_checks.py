"""Windows, sinks, caps, slopes, trees: each alone and all together, against the oracle."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.errors import UnsupportedByBackend
from pagedcache.spec import CacheSpec
from pagedcache.testing._attention_checks import MIXED
from pagedcache.testing._mixtures import need, random_scene, random_tree, scene_or_skip
from pagedcache.testing.scenes import EXACT, Scene, tolerance

__all__ = ["VariantChecks"]


def one_hot(backend: Backend, q_len: int, kv_len: int, block_size: int = 2, **arrays: Any) -> Scene:
    """A sequence whose key i has the i-th unit vector for K and V, asked with zeros: out > 0 where it is seen."""
    scene = scene_or_skip(backend, CacheSpec(1, 1, kv_len, block_size=block_size), [(q_len, kv_len)], 1, **arrays)
    unit = np.eye(kv_len, dtype=np.float32)[:, None]
    backend.write(scene.storage, 0, unit, unit, scene.slots(0))
    return replace(scene, keys=[unit], values=[unit], queries=[np.zeros((q_len, 1, kv_len), np.float32)])


def seen(scene: Scene, **options: Any) -> list[list[int]]:
    """Which keys each query of such a sequence sees, all with the same weight."""
    out = scene.attend(**options)[0][:, 0]
    for row in out:
        np.testing.assert_allclose(row[row > 0], 1 / max(1, (row > 0).sum()), rtol=1e-2)
    return [np.flatnonzero(row > 0).tolist() for row in out]


class VariantChecks:
    """One variant at a time, then random mixtures."""

    @pytest.mark.parametrize("window", [1, 4, 10, 11, 2**40])
    @pytest.mark.parametrize("q_len", [1, 3, 10])
    def test_window_includes_the_query(self, backend: Backend, q_len: int, window: int) -> None:  # W16
        need(backend, "window")
        expected = [list(range(max(0, p - window + 1), p + 1)) for p in range(10 - q_len, 10)]
        assert seen(one_hot(backend, q_len, 10), window=window) == expected

    @pytest.mark.parametrize("window", [1, 5, 16, 33, 500])
    def test_window_of_a_mixed_batch(self, backend: Backend, window: int) -> None:
        need(backend, "window")
        scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [*MIXED, (90, 130), (1, 300)], 4).check(window=window)

    def test_window_at_every_length(self, backend: Backend) -> None:  # W17, W31
        need(backend, "window")
        whole = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(40, 40)], q_heads=4)
        end = 0
        for count in (6, 1, 1, 1, 1, 3, 8, 9, 1):
            end += count
            part = replace(whole, lengths=[(count, end)], queries=[whole.queries[0][end - count : end]])
            part = replace(part, keys=[whole.keys[0][:end]], values=[whole.values[0][:end]])
            part.check(window=8)

    def test_window_over_released_blocks(self, backend: Backend) -> None:  # W31, R10
        need(backend, "window", "sink_tokens")
        scene = one_hot(backend, 1, 20, starts=[12])
        assert seen(scene, window=8) == [list(range(12, 20))]
        assert seen(scene, window=8, sink_tokens=4) == [[0, 1, 2, 3, *range(12, 20)]]
        assert seen(scene, window=3, sink_tokens=4) == [[0, 1, 2, 3, 17, 18, 19]]
        scene.tables[0][2:6] = [0] * 4  # positions 4 to 11
        assert seen(scene, window=8, sink_tokens=4) == [[0, 1, 2, 3, *range(12, 20)]]

    @pytest.mark.parametrize(("window", "sinks"), [(None, 3), (4, 1), (4, 7), (30, 5), (1, 100), (9, 16)])
    def test_sink_tokens(self, backend: Backend, window: int | None, sinks: int) -> None:
        need(backend, "window", "sink_tokens")
        lengths = [(1, 30), (9, 30), (30, 30), (1, 8), (4, 4), (0, 5), (6, 20), (70, 90)]
        starts, pads = [17, 9, 3, 8, 4, 2, 0, 12], [3, 0, 11, 0, 0, 1, 17, 2]
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), lengths, 4, starts=starts, pads=pads)
        scene.check(window=window, sink_tokens=sinks)

    @pytest.mark.parametrize("shift", [0.0, 20.0, -20.0])
    def test_sink_logits(self, backend: Backend, shift: float) -> None:
        need(backend, "sink_logits")
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [*MIXED, (90, 130), (1, 900)], q_heads=4)
        scene.check(sink_logits=np.array([0.5, -3, -np.inf, 2], np.float32) + np.float32(shift))

    def test_sink_logits_without_effect_and_without_keys(self, backend: Backend) -> None:
        need(backend, "sink_logits")
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(3, 20), (2, 0)], q_heads=4)
        plain, plain_lse = scene.attend()
        out, lse = scene.attend(sink_logits=np.full(4, -np.inf, np.float32))
        np.testing.assert_array_equal(out, plain)
        np.testing.assert_array_equal(lse, plain_lse)
        logits = np.array([1, -2, 0, 5], np.float32)
        out, lse = scene.attend(sink_logits=logits)
        assert (out[3:] == 0).all(), "only the sink has weight where no key is seen"
        np.testing.assert_allclose(lse[3:], [logits, logits], rtol=1e-6)
        assert (lse[:3] > plain_lse[:3]).all(), "lse counts the sink logit"

    def test_sink_logits_count_once_in_a_merge(self, backend: Backend) -> None:
        need(backend, "sink_logits")
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 30), (1, 9)], q_heads=4)
        logits = np.array([1, -2, 0, 5], np.float32)
        first = replace(scene, lengths=[(1, 8), (1, 8)]).attend(sink_logits=logits)
        second = replace(scene, starts=[8, 8]).attend()
        merged = backend.merge(*(np.stack(pair) for pair in zip(first, second, strict=True)))
        backend.synchronize()
        for found, expected in zip(merged, scene.expected(sink_logits=logits), strict=True):
            np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=20 * tolerance(backend, "float32"))

    @pytest.mark.parametrize("cap", [0.5, 5.0, 50.0])
    def test_softcap_comes_before_the_mask(self, backend: Backend, cap: float) -> None:
        need(backend, "softcap")
        scene = scene_or_skip(backend, CacheSpec(1, 2, 16, block_size=4), [*MIXED, (90, 130)], 4, q_scale=8.0)
        scene.check(softcap=cap)
        scene.check(softcap=cap, scale=-1.0)

    def test_alibi_counts_positions(self, backend: Backend) -> None:
        need(backend, "alibi")
        lengths, pads = [*MIXED, (90, 130), (1, 200)], [3, 0, 7, 0, 0, 0, 1, 0, 20, 11, 5]
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), lengths, 4, pads=pads)
        scene.check(alibi_slopes=np.array([0.5, 0.0625, -0.01, 0], np.float32))

    def test_alibi_comes_after_the_cap(self, backend: Backend) -> None:
        need(backend, "alibi", "softcap")
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 90), (20, 30)], q_heads=4, q_scale=4.0)
        scene.check(alibi_slopes=np.array([0.5, 0.25, 1, 2], np.float32), softcap=2.0)

    @pytest.mark.parametrize("seed", range(3))
    def test_masks(self, backend: Backend, seed: int) -> None:
        need(backend, "mask")
        rng, lengths = (
            np.random.default_rng(seed),
            [(1, 30), (3, 3), (9, 20), (0, 4), (8, 8), (16, 30), (40, 70), (5, 12)],
        )
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), lengths, q_heads=4, seed=seed)
        masks: list[Any] = [random_tree(rng, q_len, 0)[0] for q_len, _ in lengths]
        masks[7] = rng.random((5, 5)) < 0.5  # any bits are taken as they are
        replace(scene, masks=masks).check()
        masks[1] = np.zeros((3, 3), np.bool_)  # nothing at all to see
        masks[2] = masks[5] = None  # causal
        replace(scene, masks=masks).check()

    def test_bits_of_a_mask(self, backend: Backend) -> None:
        need(backend, "mask")
        scene = one_hot(backend, 3, 5)
        mask = np.array([0b010_001, 0b1], np.uint8)  # rows 100, 010, 001, lowest bit first
        found = seen(scene, mask=np.array([0b00010001, 0b1], np.uint8), mask_indptr=np.array([0, 2]))
        assert found == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
        assert seen(scene, mask=mask[:0], mask_indptr=np.array([0, 0])) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
        unused = np.array([0b00010001, 0b11111111], np.uint8)  # bits that fill up the last byte
        assert seen(scene, mask=unused, mask_indptr=np.array([0, 2])) == found

    def test_positions_of_a_tree(self, backend: Backend) -> None:
        need(backend, "mask", "window", "sink_tokens", "alibi")
        # Two older tokens, then a root at position 2 with two children at 3, one of which has a child at 4.
        scene = one_hot(backend, 4, 6)
        mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
        scene = replace(scene, masks=[mask], positions=[np.array([2, 3, 3, 4])])
        assert seen(scene) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4, 5]]
        assert seen(scene, window=2) == [[1, 2], [2, 3], [2, 4], [4, 5]]
        assert seen(scene, window=2, sink_tokens=1) == [[0, 1, 2], [0, 2, 3], [0, 2, 4], [0, 4, 5]]
        assert seen(scene, window=1, sink_tokens=3)[3] == [0, 1, 2, 5], "the root is among the first three positions"
        assert seen(scene, window=1, sink_tokens=4)[3] == [0, 1, 2, 4, 5], "so is its child, the fifth key in the row"
        scene.check(alibi_slopes=np.array([0.5], np.float32))

    def test_positions_are_taken_as_they_are(self, backend: Backend) -> None:
        need(backend, "mask", "window")
        scene = one_hot(backend, 4, 6)
        scene = replace(scene, masks=[np.ones((4, 4), np.bool_)], positions=[np.array([9, 8, 7, 9])])
        assert seen(scene, window=2) == [[2, 3, 5], [2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 5]]

    def test_deep_tree_in_a_window(self, backend: Backend) -> None:
        need(backend, "mask", "window")
        mask, positions = np.eye(80, dtype=np.bool_), np.zeros(80, np.int64)
        for token in range(1, 80):  # two chains, side by side
            parent = max(0, token - 2)
            mask[token] |= mask[parent]
            positions[token] = positions[parent] + 1
        scene = scene_or_skip(backend, CacheSpec(1, 8, 8), [(80, 90)], q_heads=64)
        replace(scene, masks=[mask], positions=[positions + 10]).check(window=3)
        replace(scene, masks=[np.random.default_rng(0).random((80, 80)) < 0.3]).check()  # later tokens, too

    @pytest.mark.parametrize("seed", range(40))
    def test_random_mixture(self, backend: Backend, seed: int) -> None:
        scene, options = random_scene(backend, seed)
        scene.check(**options)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3"])
    def test_precisions(self, backend: Backend, dtype: str) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 64, dtype=dtype), [(1, 300), (40, 60)], q_heads=4)
        assert backend.capabilities.precisions[dtype] in ("exact", "native")
        expected, _ = scene.expected()
        largest = max(np.abs(v).max() for v in scene.values)
        default, _ = scene.attend()
        for precision in ("exact", "native"):
            try:
                out, _ = scene.attend(precision=precision)
            except UnsupportedByBackend:
                assert precision != backend.capabilities.precisions[dtype], "the default was refused"
                continue
            if precision == backend.capabilities.precisions[dtype]:
                np.testing.assert_array_equal(out, default)
            if precision == "exact":
                assert np.abs(out - expected).max() <= EXACT * largest
