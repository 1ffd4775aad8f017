"""The result of a sequence is its own: bit for bit, whoever else is there and whatever unused memory holds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.spec import CacheSpec
from pagedcache.testing._bits import bits_of
from pagedcache.testing._mixtures import need, random_tree, scene_or_skip
from pagedcache.testing.scenes import Scene, make_step

__all__ = ["StabilityChecks"]

LENGTHS = [(1, 40), (7, 7), (5, 33), (0, 9), (1, 300), (2, 0), (90, 130), (1, 1), (1, 40), (18, 50)]  # (q_len, kv_len)


def per_sequence(scene: Scene, order: list[int], **options: Any) -> dict[int, str]:
    """Bits of out and lse of every sequence of a step over these sequences."""
    out, lse = scene.attend(order, **options)
    ends = np.cumsum([scene.lengths[i][0] for i in order])
    begins = ends - [scene.lengths[i][0] for i in order]
    return {i: bits_of(out[begin:end], lse[begin:end]) for i, begin, end in zip(order, begins, ends, strict=True)}


def varied(backend: Backend, scene: Scene) -> tuple[Scene, dict[str, Any]]:
    """The scene with trees, and options, of all variants that the backend has."""
    has, heads = backend.capabilities.variants, scene.queries[0].shape[1]
    every = {"window": 25, "sink_tokens": 5, "softcap": 3.0, "alibi": np.linspace(0.5, 0, heads, dtype=np.float32)}
    every["sink_logits"] = np.linspace(-1, 1, heads, dtype=np.float32)
    options = {name.replace("alibi", "alibi_slopes"): value for name, value in every.items() if name in has}
    if "mask" in has:
        rng = np.random.default_rng(0)
        trees = [random_tree(rng, q_len, kv_len - q_len) for q_len, kv_len in scene.lengths]
        masks = [mask if i % 2 else None for i, (mask, _) in enumerate(trees)]
        places = [np.arange(kv_len - q_len, kv_len) for q_len, kv_len in scene.lengths]
        positions = [trees[i][1] if i % 2 else places[i] for i in range(len(trees))]
        scene = replace(scene, masks=masks, positions=positions)
    return scene, options


class StabilityChecks:
    """Equality of bits."""

    @pytest.mark.parametrize("with_variants", [False, True])
    @pytest.mark.parametrize(
        ("dtype", "layout", "kv_heads", "group", "head_dim"),
        [
            ("float32", "NHD", 3, 3, 64),
            ("float32", "HND", 1, 8, 24),
            ("float16", "NHD", 2, 2, 129),
            ("bfloat16", "HND", 3, 1, 16),
            ("float32", "NHD", 2, 1, 1),
            ("int8", "NHD", 2, 4, 64),
            ("float8_e4m3", "HND", 2, 2, 32),
        ],
    )
    def test_batch_mates_and_order(
        self,
        backend: Backend,
        dtype: str,
        layout: str,
        kv_heads: int,
        group: int,
        head_dim: int,
        with_variants: bool,
    ) -> None:
        spec = CacheSpec(1, kv_heads, head_dim, dtype=dtype, layout=layout)
        scene = scene_or_skip(backend, spec, LENGTHS, q_heads=kv_heads * group)
        scene, options = varied(backend, scene) if with_variants else (scene, {})
        everyone = list(range(len(LENGTHS)))
        together = per_sequence(scene, everyone, **options)
        assert per_sequence(scene, everyone[::-1], **options) == together, "the order of the batch matters"
        for i in everyone:
            assert per_sequence(scene, [i], **options) == {i: together[i]}, f"sequence {i} alone differs"
        assert per_sequence(scene, [4, 0, 8], **options) == {i: together[i] for i in (4, 0, 8)}

    @pytest.mark.parametrize("with_variants", [False, True])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3"])
    @pytest.mark.parametrize("byte", [0xFF, 0x7F])  # NaN; a NaN or the largest number; so are the scales
    def test_unused_slots(self, backend: Backend, dtype: str, byte: int, with_variants: bool) -> None:
        spec = CacheSpec(1, 2, 8, dtype=dtype, block_size=16)
        starts = [0, 3, 20, 0, 100, 0, 50, 0, 39, 0]
        found = []
        for poison in (None, byte):
            scene = scene_or_skip(backend, spec, LENGTHS, q_heads=4, starts=starts, poison=poison)
            scene, options = varied(backend, scene) if with_variants else (scene, {})
            found.append(bits_of(*scene.attend(**options)))
        assert found[0] == found[1]

    def test_released_entries_between_sinks_and_window(self, backend: Backend) -> None:
        need(backend, "window", "sink_tokens")
        lengths = [(1, 40), (3, 33), (1, 9)]
        options: dict[str, Any] = {"window": 8, "sink_tokens": 5}
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), lengths, q_heads=4)
        expected = bits_of(*scene.attend(**options))
        blocks = scene.tables[0][2:8] + scene.tables[1][2:5]
        nan = np.full((len(blocks) * 4, 2, 8), np.nan, np.float32)
        slots = (np.array(blocks)[:, None] * 4 + np.arange(4)).ravel()
        backend.write(scene.storage, 0, nan, nan, slots)
        assert bits_of(*scene.attend(**options)) == expected, "what no window shows was read"
        tables = [[*scene.tables[0][:2], *[0] * 6, *scene.tables[0][8:]]]
        tables += [[*scene.tables[1][:2], *[0] * 3, *scene.tables[1][5:]], scene.tables[2]]
        released = replace(scene, tables=tables, starts=[32, 20, 0])
        assert bits_of(*released.attend(**options)) == expected

    def test_entries_that_nobody_may_read(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 30), (3, 9)], q_heads=4, starts=[13, 0])
        expected, _ = scene.attend()
        tables = [[0, 0, 0, *scene.tables[0][3:]], scene.tables[1] + [-1] * 20]  # released, and a wide tail
        step = make_step(tables, scene.lengths, 4, kv_starts=[13, 0])
        out = backend.attend(scene.storage, 0, scene.q(), step)
        backend.synchronize()
        assert bits_of(out) == bits_of(expected)

    def test_keys_that_nobody_sees(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(5, 30)], q_heads=4, starts=[13])
        before, _ = scene.attend()
        nan = np.full((13, 2, 8), np.nan, np.float32)
        backend.write(scene.storage, 0, nan, nan, scene.slots(0)[:13])
        assert bits_of(scene.attend()[0]) == bits_of(before)

    def test_blocks_elsewhere(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 30), (9, 30)], q_heads=4)
        before, _ = scene.attend()
        free = (set(range(1, scene.storage.num_blocks + 1)) - {b for table in scene.tables for b in table}).pop()
        moved = scene.tables[0][2]
        backend.copy_blocks(scene.storage, [(moved, free)])
        tables = [[free if block == moved else block for block in scene.tables[0]], scene.tables[1]]
        assert bits_of(replace(scene, tables=tables).attend()[0]) == bits_of(before)
