"""A KVCache whose K is the token's own id: what a sequence really holds can be read back from the pool."""

from typing import Any

import numpy as np

from pagedcache import CacheSpec, KVCache


class TokenCache:
    """One layer, one head of one element; K is the token id, V its negative. Ids up to 127 survive every dtype."""

    def __init__(self, num_blocks: int = 16, block_size: int = 4, dtype: str = "float32", **options: Any) -> None:
        spec = CacheSpec(layers=1, kv_heads=1, head_dim=1, block_size=block_size, dtype=dtype)
        self.cache = KVCache(spec, num_blocks=num_blocks, **options)

    def prompt(self, tokens: Any, **options: Any) -> int:
        """Admit a prompt and compute what is not cached; its handle."""
        admission = self.cache.admit([tokens], **options)
        assert admission.status[0] == 0, "the test's prompt was not admitted"
        sid = int(admission.ids[0])
        self.append({sid: list(tokens)[int(admission.cached[0]) :]})
        return sid

    def write(self, new: dict[int, Any]) -> Any:
        """Open a step with these new tokens, and store their K and V."""
        step = self.cache.extend(list(new), [len(tokens) for tokens in new.values()])
        k = np.array([t for tokens in new.values() for t in tokens], np.float32).reshape(-1, 1, 1)
        self.out = self.cache.attend(0, np.zeros_like(k), k, -k, step)
        return step

    def append(self, new: dict[int, Any]) -> None:
        """Append tokens to each sequence, and commit."""
        self.cache.commit(self.write(new), [t for tokens in new.values() for t in tokens])

    def held(self, sid: int) -> list[int]:
        """The tokens whose K lies where the sequence's block table points; V must agree."""
        sequence, storage = self.cache.sequence(sid), self.cache.storage
        records = np.array([np.asarray(array).astype(np.float64).reshape(-1) for array in storage.view(0)])
        if (scales := storage.scales(0)) is not None:
            records *= np.array([np.asarray(array).reshape(-1) for array in scales])
        size = self.cache.spec.block_size
        slots = (np.asarray(sequence.block_table, np.int64)[:, None] * size + np.arange(size)).reshape(-1)
        k, v = np.rint(records[:, slots[: sequence.position]]).astype(int)
        assert (k == -v).all()
        return k.tolist()
