"""Attention is right: every shape, layout and dtype, in every mix of prefill and decode."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.spec import CacheSpec
from pagedcache.testing._mixtures import scene_or_skip
from pagedcache.testing.scenes import UNITS, tolerance

__all__ = ["AttentionChecks"]

MIXED = [(1, 40), (7, 7), (5, 33), (0, 9), (0, 0), (2, 0), (3, 2), (1, 1), (18, 50)]  # (q_len, kv_len)


class AttentionChecks:
    """Comparison with the float64 oracle."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("override the fixture `backend`")

    @pytest.mark.parametrize("block_size", [1, 2, 3, 7, 16, 17, 64, 256, 1024])
    def test_block_sizes(self, backend: Backend, block_size: int) -> None:  # W37
        spec = CacheSpec(1, 2, 8, block_size=block_size)
        kv_lens = {1, block_size - 1, block_size, block_size + 1, 3 * block_size}
        lengths = [(q_len, kv_len) for kv_len in sorted(kv_lens) for q_len in {1, min(3, kv_len), min(70, kv_len)}]
        scene_or_skip(backend, spec, lengths, q_heads=4).check()

    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2"])
    def test_mixed_batch(self, backend: Backend, dtype: str, layout: str) -> None:  # W12, W33
        spec = CacheSpec(1, 3, 5, v_head_dim=4, dtype=dtype, layout=layout, block_size=4)
        scene_or_skip(backend, spec, MIXED, q_heads=6).check()

    @pytest.mark.parametrize(
        ("q_heads", "kv_heads"), [(7, 1), (12, 2), (28, 4), (5, 5), (1, 1), (6, 3), (9, 3), (40, 1)]
    )
    def test_grouped_heads(self, backend: Backend, q_heads: int, kv_heads: int) -> None:  # W28
        spec = CacheSpec(1, kv_heads, 16, block_size=3)
        scene_or_skip(backend, spec, [(1, 20), (11, 11), (4, 9)], q_heads).check()

    @pytest.mark.parametrize(
        ("head_dim", "v_head_dim"),
        [
            *((size, size) for size in (1, 3, 59, 64, 80, 96, 128, 129, 256)),
            *((192, 128), (80, 64), (5, 1), (1, 7)),
        ],
    )
    def test_head_sizes(self, backend: Backend, head_dim: int, v_head_dim: int) -> None:  # N08
        spec = CacheSpec(1, 2, head_dim, v_head_dim=v_head_dim, block_size=7)
        scene_or_skip(backend, spec, [(1, 300), (40, 45), (1, 3)], q_heads=4).check()

    def test_long_prompt_in_one_piece_and_in_chunks(self, backend: Backend) -> None:  # W15, W36
        spec = CacheSpec(1, 2, 16)
        scene = scene_or_skip(backend, spec, [(700, 700)], q_heads=4)
        scene.check()
        whole, whole_lse = scene.attend()
        allowed = 2 * tolerance(backend, "float32") * np.abs(scene.values[0]).max()
        for size, begin in itertools.product((1, 13, 256), (0, 300, 444)):
            chunk = slice(begin, begin + size)
            part = replace(scene, lengths=[(size, begin + size)], queries=[scene.queries[0][chunk]])
            out, lse = part.attend()
            np.testing.assert_allclose(out, whole[chunk], rtol=0, atol=allowed)
            np.testing.assert_allclose(lse, whole_lse[chunk], rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("q_len", "visible"), [(1, [5]), (2, [4, 5])])
    def test_causal_order_is_aligned_at_the_end(self, backend: Backend, q_len: int, visible: list[int]) -> None:  # W14
        scene = scene_or_skip(backend, CacheSpec(1, 1, 5, block_size=2), [(q_len, 5)], q_heads=1)
        one_hot = np.eye(5, dtype=np.float32)[:, None]
        backend.write(scene.storage, 0, one_hot, one_hot, scene.slots(0))
        assert (scene.attend()[0][:, 0] > 0).sum(axis=1).tolist() == visible

    def test_starts_and_pads(self, backend: Backend) -> None:
        spec = CacheSpec(1, 2, 8, block_size=4)
        lengths = [(1, 30), (9, 30), (30, 30), (1, 8), (4, 4), (0, 5), (6, 20)]
        starts, pads = [7, 25, 3, 8, 4, 2, 0], [3, 0, 11, 0, 0, 1, 17]
        scene_or_skip(backend, spec, lengths, q_heads=4, starts=starts, pads=pads).check()

    @pytest.mark.parametrize("scale", [0.0, 1.0, -0.3, 2.5])
    def test_scale(self, backend: Backend, scale: float) -> None:
        scene_or_skip(backend, CacheSpec(1, 2, 8), MIXED, q_heads=4).check(scale=scale)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2"])
    @pytest.mark.parametrize("largest", [30.0, 300.0, 3000.0])
    def test_large_scores(self, backend: Backend, dtype: str, largest: float) -> None:
        spec = CacheSpec(1, 2, 64, dtype=dtype)
        scene = scene_or_skip(backend, spec, [(1, 400), (60, 200)], q_heads=4, q_scale=largest / 4)
        scores = [
            np.abs(np.einsum("qhd,khd->hqk", q, np.repeat(k, 2, axis=1))).max() / 8
            for q, k in zip(scene.queries, scene.keys, strict=True)
        ]
        bound = 4 * 2.0**-24 if backend.capabilities.precisions[dtype] == "exact" else UNITS[dtype]
        error = np.abs(scene.attend()[0] - scene.expected()[0]).max() / max(np.abs(v).max() for v in scene.values)
        assert error <= bound * (1 + max(scores))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_low_precision_does_not_overflow_in_products(self, backend: Backend, dtype: str) -> None:
        spec = CacheSpec(1, 1, 64, dtype=dtype, block_size=4)
        scene = scene_or_skip(backend, spec, [(1, 8)], q_heads=1)
        large = np.full((8, 1, 64), 200, np.float32)  # q . k = 64 * 200 * 200 is beyond float16
        backend.write(scene.storage, 0, large, large, scene.slots(0))
        out, _ = replace(scene, queries=[large[:1]]).attend()
        np.testing.assert_allclose(out, 200, rtol=1e-2)

    def test_merge(self, backend: Backend) -> None:
        spec = CacheSpec(1, 2, 16, block_size=4)
        scene = scene_or_skip(backend, spec, [(1, 60), (1, 9), (1, 33)], q_heads=6)
        whole, whole_lse = scene.expected()
        outs, lses = [], []
        for begin, end in ((0, 8), (8, 20), (20, 60)):  # keys of every sequence, cut at the same places
            lengths = [(1, min(kv_len, end)) for _, kv_len in scene.lengths]
            out, lse = replace(scene, lengths=lengths, starts=[begin] * 3).attend()
            outs.append(out)
            lses.append(lse)
        outs[2][1] = np.nan  # sequence 1 has no key there
        assert np.isneginf(lses[2][1]).all()
        out, lse = backend.merge(np.stack(outs), np.stack(lses))
        backend.synchronize()
        np.testing.assert_allclose(np.asarray(out), whole, rtol=0, atol=20 * tolerance(backend, "float32"))
        np.testing.assert_allclose(np.asarray(lse), whole_lse, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("parts", [1, 2, 3, 40])
    def test_merge_of_nothing_visible(self, backend: Backend, parts: int) -> None:
        lses = np.full((parts, 2, 4), -np.inf, np.float32)
        out, lse = backend.merge(np.full((parts, 2, 4, 5), np.nan, np.float32), lses)
        backend.synchronize()
        assert (np.asarray(out) == 0).all()
        assert np.isneginf(np.asarray(lse)).all()

    @pytest.mark.parametrize("parts", [1, 2, 7, 64])
    def test_merge_of_any_number_of_parts(self, backend: Backend, parts: int) -> None:
        rng = np.random.default_rng(parts)
        outs = rng.standard_normal((parts, 6, 4, 5), np.float32)
        lses = 30 * rng.standard_normal((parts, 6, 4), np.float32)
        lses[rng.random(lses.shape) < 0.4] = -np.inf
        outs[np.isneginf(lses)] = np.nan  # nobody has written there
        top = np.where(np.isneginf(lses.max(0)), 0, lses.max(0)).astype(np.float64)
        weights = np.exp(lses - top)
        total = weights.sum(0)
        expected = (weights[..., None] * np.nan_to_num(outs)).sum(0) / np.where(total == 0, 1, total)[..., None]
        out, lse = backend.merge(outs, lses)
        backend.synchronize()
        np.testing.assert_allclose(np.asarray(out), expected, rtol=0, atol=1e-5)
        finite = total > 0
        np.testing.assert_allclose(np.asarray(lse)[finite], top[finite] + np.log(total[finite]), rtol=1e-6)
        assert np.isneginf(np.asarray(lse)[~finite]).all()

    def test_given_out(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8), MIXED, q_heads=4)
        expected, _ = scene.attend()
        room = np.full((expected.shape[0], 8, 8), np.nan, np.float32)
        out = backend.attend(scene.storage, 0, scene.q(), scene.step(), out=room[:, ::2])
        backend.synchronize()
        np.testing.assert_array_equal(room[:, ::2], expected)
        assert np.shares_memory(out, room)
        assert np.isnan(room[:, 1::2]).all()

    def test_empty_batch(self, backend: Backend) -> None:  # W12
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8), [(1, 4)], q_heads=4)
        out, lse = scene.attend(order=[])
        assert out.shape == (0, 4, 8)
        assert lse.shape == (0, 4)

    def test_layers_are_apart(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(3, 2, 8), [(1, 20)], q_heads=4)
        before, _ = scene.attend()
        ones = np.ones((20, 2, 8), np.float32)
        backend.write(scene.storage, 2, ones, ones, scene.slots(0))
        np.testing.assert_array_equal(scene.attend()[0], before)
        np.testing.assert_allclose(replace(scene, layer=2).attend()[0], 1, rtol=1e-6)
