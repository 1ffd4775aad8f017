"""What a router does with events: keeps a tree of blocks, by parent and tokens, and finds prefixes in it.

It decodes with the schema's structs as a consumer declares them, and trusts nothing of the library but the bytes.
"""

from typing import Any

import msgspec
import numpy as np

from pagedcache import CacheSpec, KVCache

Hash = int | bytes


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[Hash]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def decoded(payload: bytes) -> Batch:
    return msgspec.msgpack.decode(payload, type=Batch, strict=True)


class Follower:
    """A tree of one cache's blocks."""

    def __init__(self) -> None:
        self.children: dict[tuple[Hash | None, tuple[int, ...]], Hash] = {}
        self.place: dict[Hash, tuple[Hash | None, tuple[int, ...]]] = {}  # hash -> parent and tokens

    def take(self, payload: bytes) -> None:
        for event in decoded(payload).events:
            if isinstance(event, AllBlocksCleared):
                self.children.clear()
                self.place.clear()
            elif isinstance(event, BlockStored):
                self._store(event)
            else:
                for block in event.block_hashes:
                    assert all(parent != block for parent, _ in self.children), "removed before what continues it"
                    del self.children[self.place.pop(block)]

    def _store(self, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        for k, block in enumerate(event.block_hashes):
            assert block not in self.place, "stored twice"
            assert parent is None or parent in self.place, "stored before its parent"
            self.place[block] = parent, tuple(event.token_ids[k * size : (k + 1) * size])
            self.children[self.place[block]] = block
            parent = block

    def match(self, prompt: list[int], size: int) -> int:
        """Leading tokens of a prompt that are cached in whole blocks."""
        parent: Hash | None = None
        for start in range(0, (len(prompt) - 1) // size * size, size):
            block = self.children.get((parent, tuple(prompt[start : start + size])))
            if block is None:
                return start
            parent = block
        return (len(prompt) - 1) // size * size


class Workload:
    """Random prompts that share prefixes, on a cache that is too small for them."""

    def __init__(self, seed: int, num_blocks: int = 40, block_size: int = 4, **options: Any) -> None:
        spec = CacheSpec(layers=1, kv_heads=1, head_dim=4, block_size=block_size)
        self.cache = KVCache(spec, num_blocks=num_blocks, **{"events": "tokens"} | options)
        self.rng, self.size = np.random.default_rng(seed), block_size
        self.prompts = [self.rng.integers(0, 2, self.rng.integers(1, 30)).tolist() for _ in range(40)]
        self.live: list[int] = []

    def store(self, prompt: list[int], **options: Any) -> int:
        """Compute a prompt; its handle, or -1 where it does not fit now."""
        admission = self.cache.admit([prompt], **options)
        if admission.status[0] != 0:
            return -1
        new = prompt[int(admission.cached[0]) :]
        self.cache.commit(self.cache.extend(admission.ids, len(new)), new)
        return int(admission.ids[0])

    def act(self) -> None:
        """Do something: mostly serve a prompt; sometimes let go, evict, forget or tidy."""
        kind = self.rng.random()
        if kind < 0.5:
            handle = self.store(self.prompts[self.rng.integers(len(self.prompts))])
            self.live += [handle] * (handle >= 0)
        elif kind < 0.8 and self.live:
            self.cache.release([self.live.pop(self.rng.integers(len(self.live)))])
        elif kind < 0.83:
            self.cache.evict(int(self.rng.integers(30)))
        elif kind < 0.84:
            self.cache.reset()
        else:
            self.cache.compact()

    def agrees(self, follower: Follower) -> bool:
        """Whether the follower finds what the cache would, and knows of nothing else."""
        found = [follower.match(prompt, self.size) for prompt in self.prompts]
        whole_blocks = self.cache.match(self.prompts) // self.size * self.size
        return found == whole_blocks.tolist() and (len(follower.place) == self.cache.stats().published)
