"""Small worlds for tests: a pool with sequences in it, a step over them, and what must come out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.protocol import Backend, Storage
from pagedcache.core import Step
from pagedcache.spec import CacheSpec
from pagedcache.testing._rounding import rounded
from pagedcache.testing.oracle import reference_attention

__all__ = ["EXACT", "UNITS", "Scene", "make_scene", "make_step", "packed_masks", "tolerance"]

Float32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

GARBAGE = np.array([-1, 2**31 - 1, 0, -(2**31), 7], np.int32)  # stands in table entries that nobody may read
EXACT = 1e-6  # of the largest |v|
# Error by rounding q, k or p to the storage type, per unit of the largest score
UNITS = {"float32": 4 * 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 2.0**-7, "float8_e4m3": 2.0**-4}
UNITS["float8_e5m2"] = UNITS["float16"]  # as which it is multiplied
NATIVE = {"float32": 1e-6, "float16": 5e-4, "bfloat16": 1e-2, "int8": 1e-2, "float8_e4m3": 2e-2, "float8_e5m2": 5e-4}


def make_step(
    tables: Sequence[Sequence[int]], lengths: Sequence[tuple[int, int]], block_size: int, **arrays: Any
) -> Any:
    """Return a Step over block tables; lengths are (q_len, kv_len) pairs.

    >>> make_step([[2, 1], [3]], [(1, 5), (3, 3)], block_size=4).slots.tolist()
    [4, 12, 13, 14]
    """
    width = max((len(table) for table in tables), default=0) + 2
    padded = np.resize(GARBAGE, (len(tables), width))
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    kv_lens = [kv_len for _, kv_len in lengths]
    qo_indptr = np.cumsum([0] + [q_len for q_len, _ in lengths])
    return Step.from_arrays(padded, kv_lens, qo_indptr, block_size=block_size, **arrays)


def packed_masks(masks: Sequence[Bools | None]) -> dict[str, npt.NDArray[Any]]:
    """Return bool [q_len, q_len] masks as `mask` and `mask_indptr` of attend; None means causal.

    >>> packed_masks([np.tri(3, dtype=bool), None])
    {'mask': array([217,   1], dtype=uint8), 'mask_indptr': array([0, 2, 2])}
    """
    pieces = [np.empty(0, np.uint8) if m is None else np.packbits(m.ravel(), bitorder="little") for m in masks]
    indptr = np.cumsum([0, *(piece.size for piece in pieces)], dtype=np.int64)
    return {"mask": np.concatenate([np.empty(0, np.uint8), *pieces]), "mask_indptr": indptr}


def tolerance(backend: Backend, dtype: str) -> float:
    """Error that attention may have, as a fraction of the largest V."""
    return EXACT if backend.capabilities.precisions[dtype] == "exact" else NATIVE[dtype]


@dataclass
class Scene:
    """Sequences in a pool and a step over them; layer 0 holds K and V, and q asks."""

    backend: Backend
    spec: CacheSpec
    storage: Storage
    lengths: list[tuple[int, int]]  # (q_len, kv_len) of each sequence
    tables: list[list[int]]  # blocks of each sequence
    keys: list[Float32]  # of each sequence [kv_len, kv_heads, head_dim], as stored
    values: list[Float32]  # of each sequence [kv_len, kv_heads, v_head_dim], as stored
    queries: list[Float32]  # of each sequence [q_len, q_heads, head_dim]
    starts: list[int] | None = None
    pads: list[int] | None = None
    positions: list[Any] | None = None  # of each sequence's new tokens [q_len]
    masks: list[Bools | None] | None = None  # of each sequence [q_len, q_len], or None: causal
    shared: list[tuple[int, int, int]] | None = None  # first sequence, sequences, leading blocks; for whole steps
    layer: int = 0

    def step(self, order: Sequence[int] | None = None) -> Any:
        """Return a step over some of the sequences, in this order."""
        chosen = range(len(self.lengths)) if order is None else order
        arrays: dict[str, Any] = {"kv_starts": self.starts, "kv_pads": self.pads}
        given: dict[str, Any] = {
            name: [array[i] for i in chosen] for name, array in arrays.items() if array is not None
        }
        if self.positions is not None:
            given["positions"] = np.concatenate([np.empty(0, np.int64), *(self.positions[i] for i in chosen)])
        if self.shared is not None and order is None:
            given["shared_prefixes"] = self.shared
        return make_step(
            [self.tables[i] for i in chosen], [self.lengths[i] for i in chosen], self.spec.block_size, **given
        )

    def slots(self, i: int) -> npt.NDArray[np.int64]:
        """Return the slots of all tokens of a sequence, the older ones too."""
        kv_len = self.lengths[i][1]
        return np.array(make_step([self.tables[i]], [(kv_len, kv_len)], self.spec.block_size).slots)

    def q(self, order: Sequence[int] | None = None) -> Float32:
        """Return the queries of such a step, [tokens, q_heads, head_dim]."""
        chosen = range(len(self.lengths)) if order is None else order
        heads = self.queries[0].shape[1]
        return np.concatenate(
            [np.empty((0, heads, self.spec.head_dim), np.float32), *(self.queries[i] for i in chosen)]
        )

    def attend(self, order: Sequence[int] | None = None, **options: Any) -> tuple[Float32, Float32]:
        """Return the backend's out and lse for such a step; options are those of its attend."""
        q = self.q(order)
        lse = np.full(q.shape[:2], np.nan, np.float32)
        if self.masks is not None:
            chosen = range(len(self.lengths)) if order is None else order
            options |= packed_masks([self.masks[i] for i in chosen])
        out = self.backend.attend(self.storage, self.layer, q, self.step(order), lse=lse, **options)
        self.backend.synchronize()
        return np.asarray(out), lse

    def rule(self, i: int) -> dict[str, Any]:
        """Return what says which keys the queries of a sequence see, for the oracle."""
        return {
            "start": self.starts[i] if self.starts else 0,
            "pad": self.pads[i] if self.pads else 0,
            "positions": self.positions[i] if self.positions else None,
            "tree": self.masks[i] if self.masks else None,
        }

    def expected(self, **options: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the oracle's out and lse for a step over all sequences."""
        pairs = [
            reference_attention(q, k, v, **self.rule(i), **options)
            for i, (q, k, v) in enumerate(zip(self.queries, self.keys, self.values, strict=True))
        ]
        return np.concatenate([out for out, _ in pairs]), np.concatenate([lse for _, lse in pairs])

    def largest_score(self, scale: float | None = None, alibi_slopes: Any = None) -> float:
        """Return the largest absolute score of any query and key, before a cap."""
        factor = self.spec.head_dim**-0.5 if scale is None else abs(scale)
        found = [0.0]
        for q, k in zip(self.queries, self.keys, strict=True):
            each = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
            found.append(float(np.abs(np.einsum("qhd,khd->hqk", q, each)).max(initial=0)) * factor)
        slope = 0.0 if alibi_slopes is None else float(np.abs(alibi_slopes).max())
        return max(found) + slope * max([kv_len for _, kv_len in self.lengths], default=0)

    def check(self, **options: Any) -> None:
        """Compare the backend with the oracle, within the tolerance of its default precision.

        With options scores may be large, and the last bits of a large score are worth more.
        """
        out, lse = self.attend(**options)
        expected_out, expected_lse = self.expected(**options)
        largest = max([float(np.abs(v).max()) for v in self.values if v.size], default=1.0)
        error = float(np.abs(out - expected_out).max(initial=0)) / largest
        exact = self.backend.capabilities.precisions[self.spec.dtype] == "exact"
        unit = 4 * 2.0**-24 if exact else UNITS[self.spec.dtype]
        score = self.largest_score(options.get("scale"), options.get("alibi_slopes")) if options else -1.0
        allowed = max(tolerance(self.backend, self.spec.dtype), unit * (1 + score))
        assert error <= allowed, f"error {error:.2e} of max |v|, {allowed:.0e} allowed"
        np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
        seen = np.isfinite(expected_lse)
        assert (out[~seen] == 0).all(), "a query that sees no key must give 0"
        bound = 4 * allowed * (1 + np.abs(expected_lse[seen]).max(initial=0))
        np.testing.assert_allclose(lse[seen], expected_lse[seen], rtol=0, atol=bound)


def make_scene(
    backend: Backend,
    spec: CacheSpec,
    lengths: Sequence[tuple[int, int]],
    q_heads: int,
    *,
    seed: int = 0,
    poison: int | None = None,
    starts: list[int] | None = None,
    pads: list[int] | None = None,
    shared: list[tuple[int, int, int]] | None = None,
    q_scale: float = 1.0,
) -> Scene:
    """Allocate a pool, write sequences with normal K and V into random blocks, and return the Scene.

    Parameters
    ----------
    lengths : sequence of (q_len, kv_len)
        New and all tokens of each sequence.
    poison : int, optional
        Byte that fills the whole pool beforehand: 0xFF makes every unused value a NaN. Without it
        unused slots are 0.
    shared : list of (first, sequences, blocks), optional
        Neighbours that begin with the same blocks: the step says so, and the tables and K/V are so.
    """
    rng = np.random.default_rng(seed)
    counts = [-(-kv_len // spec.block_size) for _, kv_len in lengths]
    storage = backend.allocate(spec, num_blocks=sum(counts) + 1)
    ids = rng.permutation(storage.num_blocks) + 1
    if poison is not None:
        records = np.full((storage.num_blocks, len(spec.kv_layers), spec.record_nbytes(0)), poison, np.uint8)
        backend.write_blocks(storage, ids, records)
    scene = Scene(backend, spec, storage, list(lengths), [], [], [], [], starts, pads, shared=shared)
    source = {i: (first, blocks) for first, count, blocks in shared or () for i in range(first + 1, first + count)}
    for i, (q_len, kv_len) in enumerate(lengths):
        scene.tables.append(ids[sum(counts[:i]) : sum(counts[: i + 1])].tolist())
        k = rng.standard_normal((kv_len, spec.kv_heads, spec.head_dim), np.float32)
        v = rng.standard_normal((kv_len, spec.kv_heads, spec.v_head_dim), np.float32)
        if i in source:
            first, blocks = source[i]
            scene.tables[i][:blocks] = scene.tables[first][:blocks]
            begin = blocks * spec.block_size
            k[:begin], v[:begin] = scene.keys[first][:begin], scene.values[first][:begin]
        backend.write(storage, scene.layer, k, v, scene.slots(i))
        scene.keys.append(k)
        scene.values.append(v)
        scene.queries.append(rng.standard_normal((q_len, q_heads, spec.head_dim), np.float32) * np.float32(q_scale))
    backend.synchronize()
    return replace(
        scene,
        keys=[rounded(k, spec.dtype) for k in scene.keys],
        values=[rounded(v, spec.dtype) for v in scene.values],
    )
