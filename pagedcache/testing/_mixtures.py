"""Scenes that fit what a backend has: or the test is skipped; and random ones with all of it at once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pagedcache.backends.protocol import Backend
from pagedcache.errors import UnsupportedByBackend
from pagedcache.spec import CacheSpec
from pagedcache.testing.scenes import Scene, make_scene

__all__ = ["need", "random_scene", "random_tree", "scene_or_skip"]


def scene_or_skip(backend: Backend, spec: CacheSpec, *args: Any, **options: Any) -> Scene:
    """Return a scene, or skip the test where the backend says that it lacks something."""
    try:
        backend.capabilities.require(spec)
    except UnsupportedByBackend as error:
        pytest.skip(str(error))
    return make_scene(backend, spec, *args, **options)


def need(backend: Backend, *variants: str) -> None:
    """Skip the test where the backend says that it lacks a variant."""
    if lacking := sorted(set(variants) - backend.capabilities.variants):
        pytest.skip(f"the backend lacks {', '.join(lacking)}")


def random_tree(rng: np.random.Generator, size: int, first: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return the mask of a speculation tree (who is whose ancestor) and the positions of its tokens.

    Each token hangs below an earlier one, or is a root.
    """
    mask, depth = np.eye(size, dtype=np.bool_), np.zeros(size, np.int64)
    for token in range(size):
        parent = int(rng.integers(-1, token)) if token else -1
        if parent >= 0:
            mask[token] |= mask[parent]
            depth[token] = depth[parent] + 1
    return mask, first + depth


def random_scene(backend: Backend, seed: int, **more: Any) -> tuple[Scene, dict[str, Any]]:
    """Return sequences of random lengths, and random options among those that the backend has."""
    rng, has = np.random.default_rng(seed), backend.capabilities.variants
    block_size, kv_heads, group = int(rng.choice([1, 3, 4, 16])), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    dtype = str(rng.choice(sorted(backend.capabilities.dtypes)))
    layout = str(rng.choice(sorted(backend.capabilities.layouts)))
    spec = CacheSpec(1, kv_heads, 16, v_head_dim=8, dtype=dtype, layout=layout, block_size=block_size)
    lengths = [(int(q_len), int(q_len + older)) for q_len, older in rng.integers(0, 50, (5, 2))] + [(1, 300)]
    starts = [int(rng.integers(0, max(1, kv_len - q_len + 1))) for q_len, kv_len in lengths]
    pads = [int(rng.integers(0, 6)) for _ in lengths]
    if "shared" in more:  # two blocks of older tokens at least, and the same pads and starts for all
        lengths = [(q_len, kv_len + 32) for q_len, kv_len in lengths]
        starts, pads = starts[:1] * len(lengths), pads[:1] * len(lengths)
    heads = kv_heads * group
    some: dict[str, Any] = {"sink_logits": rng.standard_normal(heads, np.float32)}
    some |= {"alibi_slopes": rng.standard_normal(heads, np.float32), "softcap": float(rng.uniform(1, 20))}
    some |= {"window": int(rng.integers(1, 60)), "sink_tokens": int(rng.integers(1, 12))}
    options = {
        name: value for name, value in some.items() if name.removesuffix("_slopes") in has and rng.random() < 0.5
    }
    scene = scene_or_skip(backend, spec, lengths, heads, seed=seed, starts=starts, pads=pads, **more)
    if "mask" in has and rng.random() < 0.7:
        trees = [random_tree(rng, q, kv - q - pad) for (q, kv), pad in zip(lengths, pads, strict=True)]
        scene.masks = [tree if rng.random() < 0.7 else None for tree, _ in trees]
        if rng.random() < 0.7:
            scene.positions = [
                position if mask is not None else np.arange(kv - q - pad, kv - pad)
                for mask, (_, position), (q, kv), pad in zip(scene.masks, trees, lengths, pads, strict=True)
            ]
    return scene, options
