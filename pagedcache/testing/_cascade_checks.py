"""Prefixes that neighbours share, whether a backend attends to them once or not: the result is the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.spec import CacheSpec
from pagedcache.testing._bits import bits_of
from pagedcache.testing._mixtures import need, random_scene, random_tree, scene_or_skip
from pagedcache.testing._stability_checks import per_sequence
from pagedcache.testing.scenes import Scene

__all__ = ["CascadeChecks"]

LENGTHS = [(1, 7), (1, 40), (3, 50), (1, 33), (0, 40), (9, 41), (1, 64), (2, 100), (1, 5)]
SHARED = [(1, 4, 8), (5, 3, 5)]  # first sequence, sequences, blocks of 4


def shared_scene(backend: Backend, dtype: str = "float32", **options: Any) -> Scene:
    """Two groups of neighbours that share a prefix, and sequences on their own around them."""
    spec = CacheSpec(1, 2, 16, block_size=4, dtype=dtype)
    return scene_or_skip(backend, spec, LENGTHS, q_heads=6, shared=SHARED, **options)


class CascadeChecks:
    """Steps with `shared_prefixes`."""

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2"])
    def test_shared_prefixes(self, backend: Backend, dtype: str) -> None:
        shared_scene(backend, dtype).check()

    def test_pads_and_starts_of_sharers(self, backend: Backend) -> None:
        shared_scene(backend, pads=[0, 5, 5, 5, 5, 2, 2, 3, 0]).check()  # the last group differs
        shared_scene(backend, starts=[0, 9, 9, 9, 9, 2, 4, 3, 0]).check()
        shared_scene(backend, starts=[0, 32, 32, 32, 32, 20, 20, 20, 0]).check()  # nothing of it is held

    @pytest.mark.parametrize("window", [1, 5, 16, 30, 1000])
    @pytest.mark.parametrize("sinks", [0, 6])
    def test_windows_that_show_some_of_a_prefix(self, backend: Backend, window: int, sinks: int) -> None:
        need(backend, "window", "sink_tokens")
        shared_scene(backend).check(window=window, sink_tokens=sinks)

    def test_sink_logits_count_once(self, backend: Backend) -> None:
        need(backend, "sink_logits")
        shared_scene(backend).check(sink_logits=np.array([0.5, -3, -np.inf, 2, 9, -9], np.float32))

    def test_caps_and_slopes(self, backend: Backend) -> None:
        need(backend, "alibi", "softcap")
        shared_scene(backend).check(alibi_slopes=np.array([0.5, 0, 0.1, 0.02, 1, -0.1], np.float32), softcap=2.0)

    def test_trees_behind_a_prefix(self, backend: Backend) -> None:
        need(backend, "mask")
        rng, scene = np.random.default_rng(0), shared_scene(backend)
        trees = [random_tree(rng, q_len, kv_len - q_len) for q_len, kv_len in LENGTHS]
        scene = replace(scene, masks=[mask for mask, _ in trees], positions=[position for _, position in trees])
        scene.check()
        if "window" in backend.capabilities.variants:
            scene.check(window=12)

    @pytest.mark.parametrize("plan", [[], [(1, 2, 1)], [(2, 3, 8)], [(1, 4, 3), (5, 2, 5)], [(6, 2, 2)]])
    def test_plans_that_share_less(self, backend: Backend, plan: Any) -> None:
        replace(shared_scene(backend), shared=plan).check()

    def test_others_in_the_batch_keep_their_bits(self, backend: Backend) -> None:
        scene = shared_scene(backend)
        alone = replace(scene, shared=None)
        out, lse = scene.attend()
        begin = 0
        for i, (q_len, _) in enumerate(LENGTHS):
            bits = bits_of(out[begin : begin + q_len], lse[begin : begin + q_len])
            begin += q_len
            if i in (0, 8):
                assert per_sequence(alone, [i]) == {i: bits}

    @pytest.mark.parametrize("seed", range(100, 120))
    def test_random_mixture_with_sharing(self, backend: Backend, seed: int) -> None:
        scene, options = random_scene(backend, seed, shared=[(0, 2, 1), (2, 3, 2)])
        scene.check(**options)
