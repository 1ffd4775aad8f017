"""How fast attention reads blocks of different sizes: one decode step of a batch that does not fit into caches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from pagedcache.cache import KVCache
from pagedcache.core import Step
from pagedcache.spec import CacheSpec

__all__ = ["DecodeSpeeds", "decode_speeds"]

NBYTES = 128 << 20  # of K and V; more than a processor caches
PARTS = 8  # of the batch, each a step of its own: short measurements find quiet moments
CONTEXT = 2048  # tokens of a sequence, or some more
MAX_SEQUENCES = 32  # of a part
LEAST_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class DecodeSpeeds:
    """How fast decode attention reads, by block size."""

    bytes_per_second: dict[int, float]  # K and V, in the fastest step
    noise: float  # share by which two halves of the run disagree about a block size, at most

    def share(self, block_size: int) -> float:
        """Speed of a block size, 0 to 1, as a share of the fastest."""
        return self.bytes_per_second[block_size] / max(self.bytes_per_second.values())


def decode_speeds(
    spec: CacheSpec,
    block_sizes: Sequence[int],
    *,
    q_heads: int | None = None,
    seconds: float = 3.0,
    threads: int | None = None,
) -> DecodeSpeeds:
    """Measure decode attention of the backend ``cpu`` over block sizes, interleaved in one run.

    Half of each sequence came as a prompt, and half token by token beside the others, so that blocks lie in memory as
    a server would have them.

    Parameters
    ----------
    spec : CacheSpec
        Its heads and dtype count; one layer is measured.
    block_sizes : sequence of int
    q_heads : int, optional
        Query heads; as many as K/V heads if not given.
    seconds : float
        Time to spend on measuring; every block size is measured at least nine times.
    threads : int, optional
        Of the backend; its own choice if not given.

    Returns
    -------
    DecodeSpeeds

    Examples
    --------
    >>> speeds = decode_speeds(CacheSpec(layers=1, kv_heads=1, head_dim=64), [1, 16], seconds=0)
    >>> list(speeds.bytes_per_second), max(map(speeds.share, (1, 16)))
    ([1, 16], 1.0)
    """
    memory = _Memory(spec, max(block_sizes))
    pools: list[_Pool] = []
    try:
        for size in block_sizes:
            pools.append(_pool(memory, size, q_heads or spec.kv_heads, threads))
        pools[0].fill()
        times: list[list[float]] = [[] for _ in pools]
        random = np.random.default_rng(0)
        rounds, reads, end = 0, 0, perf_counter() + seconds
        while rounds < LEAST_ROUNDS or perf_counter() < end:
            for index in random.permutation(len(pools)):
                reads += 1  # so that no part is read again before all others were
                started = perf_counter()
                pools[index].read(reads % PARTS)
                times[index].append(perf_counter() - started)
            rounds += 1
        halves = [(min(taken[::2]), min(taken[1::2])) for taken in times]
        best = {pool.cache.spec.block_size: pool.nbytes / min(half) for pool, half in zip(pools, halves, strict=True)}
        return DecodeSpeeds(best, max(1 - min(half) / max(half) for half in halves))
    finally:
        for pool in pools:
            pool.close()


class _Memory:
    """Arrays that the pools of all block sizes lie in, one at a time: none has better pages than another."""

    def __init__(self, spec: CacheSpec, largest: int) -> None:
        self.one = CacheSpec(1, spec.kv_heads, spec.head_dim, v_head_dim=spec.v_head_dim, dtype=spec.dtype)
        tokens = NBYTES // PARTS // self.one.bytes_per_token  # of a part
        self.batch = PARTS * max(1, min(tokens // CONTEXT, MAX_SEQUENCES))
        self.context = min(max(2, PARTS * tokens // self.batch), 2 * CONTEXT)
        room = self.batch * (self.context + largest) + largest  # tokens, the zero block's and unfinished blocks' too
        heads, item = self.one.kv_heads, self.one.storage_dtype
        self._arrays = [np.zeros((room, heads, width), item) for width in (self.one.head_dim, self.one.v_head_dim)]
        if self.one.has_scales:
            self._arrays += [np.ones((room, heads), self.one.scale_dtype) for _ in range(2)]

    def buffers(self, block_size: int, num_blocks: int) -> list[tuple[Any, ...]]:
        rows = num_blocks + 1
        shape = (rows, block_size)
        return [tuple(array[: rows * block_size].reshape(shape + array.shape[1:]) for array in self._arrays)]


@dataclass(frozen=True, slots=True)
class _Pool:
    """A cache of one block size, with decode steps open."""

    cache: KVCache
    steps: list[Step]
    query: Any
    out: Any
    nbytes: int  # that a step reads

    def read(self, part: int) -> None:
        self.cache.attend(0, self.query, None, None, self.steps[part], out=self.out)

    def fill(self) -> None:
        """Store random numbers; whatever memory was never written is not there to be read."""
        spec, random = self.cache.spec, np.random.default_rng(0)
        size, tokens = spec.block_size, int(self.steps[0].kv_lens[0])
        k = random.standard_normal((tokens, spec.kv_heads, spec.head_dim), np.float32)
        v = random.standard_normal((tokens, spec.kv_heads, spec.v_head_dim), np.float32)
        every = np.arange(tokens)
        assert self.cache.storage is not None
        for table in (row for step in self.steps for row in step.block_tables):
            slots = table[every // size].astype(np.int64) * size + every % size
            self.cache.backend.write(self.cache.storage, 0, k, v, slots)

    def close(self) -> None:
        for step in reversed(self.steps):
            self.cache.abandon(step)
        self.cache.close()


def _pool(memory: _Memory, block_size: int, q_heads: int, threads: int | None) -> _Pool:
    spec = replace(memory.one, block_size=block_size)
    batch, context = memory.batch, memory.context
    blocks = batch * spec.blocks_per_sequence(context)
    buffers = memory.buffers(block_size, blocks)
    cache = KVCache(
        spec, num_blocks=blocks, storage=buffers, max_sequences=batch, steps_in_flight=PARTS, threads=threads
    )
    half = context // 2
    ids = cache.admit([np.zeros(half, np.int32)] * batch).ids
    cache.commit(cache.extend(ids, half), None)
    for _ in range(half, context - 1):
        cache.commit(cache.extend(ids, 1), None)
    steps = [cache.extend(part, 1) for part in np.split(ids, PARTS)]
    each = batch // PARTS
    query = np.random.default_rng(0).standard_normal((each, q_heads, spec.head_dim), np.float32)
    out = np.empty((each, q_heads, spec.v_head_dim), np.float32)
    return _Pool(cache, steps, query, out, each * context * spec.bytes_per_token)
