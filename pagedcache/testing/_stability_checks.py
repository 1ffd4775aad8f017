"""The result of a sequence is its own: bit for bit, whoever else is there and whatever unused memory holds."""

from dataclasses import replace

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.spec import CacheSpec
from pagedcache.testing._mixtures import scene_or_skip
from pagedcache.testing.scenes import Scene, make_step

__all__ = ["StabilityChecks"]

LENGTHS = [(1, 40), (7, 7), (5, 33), (0, 9), (1, 300), (2, 0), (90, 130), (1, 1), (1, 40), (18, 50)]  # (q_len, kv_len)


def per_sequence(scene: Scene, order: list[int]) -> dict[int, bytes]:
    """Bits of out and lse of every sequence of a step over these sequences."""
    out, lse = scene.attend(order)
    ends = np.cumsum([scene.lengths[i][0] for i in order])
    begins = ends - [scene.lengths[i][0] for i in order]
    return {
        i: out[begin:end].tobytes() + lse[begin:end].tobytes()
        for i, begin, end in zip(order, begins, ends, strict=True)
    }


class StabilityChecks:
    """Equality of bits."""

    @pytest.mark.parametrize(
        ("dtype", "layout", "kv_heads", "group", "head_dim"),
        [
            ("float32", "NHD", 3, 3, 64),
            ("float32", "HND", 1, 8, 24),
            ("float16", "NHD", 2, 2, 129),
            ("bfloat16", "HND", 3, 1, 16),
            ("float32", "NHD", 2, 1, 1),
        ],
    )
    def test_batch_mates_and_order(
        self, backend: Backend, dtype: str, layout: str, kv_heads: int, group: int, head_dim: int
    ) -> None:
        spec = CacheSpec(1, kv_heads, head_dim, dtype=dtype, layout=layout)
        scene = scene_or_skip(backend, spec, LENGTHS, q_heads=kv_heads * group)
        everyone = list(range(len(LENGTHS)))
        together = per_sequence(scene, everyone)
        assert per_sequence(scene, everyone[::-1]) == together, "the order of the batch matters"
        for i in everyone:
            assert per_sequence(scene, [i]) == {i: together[i]}, f"sequence {i} alone differs"
        assert per_sequence(scene, [4, 0, 8]) == {i: together[i] for i in (4, 0, 8)}

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize("byte", [0xFF, 0x7F])  # NaN; a NaN or the largest number
    def test_unused_slots(self, backend: Backend, dtype: str, byte: int) -> None:
        spec = CacheSpec(1, 2, 8, dtype=dtype, block_size=16)
        starts = [0, 3, 20, 0, 100, 0, 50, 0, 39, 0]
        options = {"q_heads": 4, "starts": starts}
        clean = scene_or_skip(backend, spec, LENGTHS, **options).attend()
        dirty = scene_or_skip(backend, spec, LENGTHS, poison=byte, **options).attend()
        assert [array.tobytes() for array in clean] == [array.tobytes() for array in dirty]

    def test_entries_that_nobody_may_read(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 30), (3, 9)], q_heads=4, starts=[13, 0])
        expected, _ = scene.attend()
        tables = [[0, 0, 0, *scene.tables[0][3:]], scene.tables[1] + [-1] * 20]  # released, and a wide tail
        step = make_step(tables, scene.lengths, 4, kv_starts=[13, 0])
        out = backend.attend(scene.storage, 0, scene.q(), step)
        assert np.asarray(out).tobytes() == expected.tobytes()

    def test_keys_that_nobody_sees(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(5, 30)], q_heads=4, starts=[13])
        before, _ = scene.attend()
        nan = np.full((13, 2, 8), np.nan, np.float32)
        backend.write(scene.storage, 0, nan, nan, scene.slots(0)[:13])
        assert scene.attend()[0].tobytes() == before.tobytes()

    def test_blocks_elsewhere(self, backend: Backend) -> None:
        scene = scene_or_skip(backend, CacheSpec(1, 2, 8, block_size=4), [(1, 30), (9, 30)], q_heads=4)
        before, _ = scene.attend()
        free = (set(range(1, scene.storage.num_blocks + 1)) - {b for table in scene.tables for b in table}).pop()
        moved = scene.tables[0][2]
        backend.copy_blocks(scene.storage, [(moved, free)])
        tables = [[free if block == moved else block for block in scene.tables[0]], scene.tables[1]]
        assert replace(scene, tables=tables).attend()[0].tobytes() == before.tobytes()
