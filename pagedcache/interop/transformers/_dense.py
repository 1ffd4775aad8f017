"""Level "gather": K and V of a batch as tensors [rows, heads, tokens, size], for attention of any kind."""

from typing import Any

import torch

from pagedcache.cache import KVCache
from pagedcache.interop.transformers._forward import Forward
from pagedcache.interop.transformers._layout import Layout
from pagedcache.interop.transformers._tensors import flat, pool_tensor

__all__ = ["Dense"]


class Dense:
    """Stores a layer's new tokens and hands out all that it holds: a view where blocks lie in a row, else a copy."""

    def __init__(self, kv: KVCache, layout: Layout) -> None:
        self._kv = kv
        self._layout = layout

    def update(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, forward: Forward, past: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V from the first token on that the layer's window shows."""
        kv, place, window = self._kv, self._layout.places[layer], self._layout.windows[layer]
        storage: Any = kv.storage
        group = forward.step.groups[kv.spec.locate(place)[0]]
        stored, taken = kv.spec.dtype, forward.taken
        backend: Any = kv.backend
        backend.write(storage, place, flat(key, taken, stored), flat(value, taken, stored), group.slots)
        begin = 0 if window is None else max(past - window + 1, 0)
        end, size = past + forward.count, kv.spec.block_size
        tables = group.block_tables[:, begin // size : -(-end // size)]
        cut = slice(begin % size, begin % size + end - begin)
        outs = []
        for pool, new in zip(storage.view(place), (key, value), strict=True):
            dense = _collected(pool_tensor(pool, stored), tables)[:, cut].transpose(1, 2)
            if forward.leaders is not None:
                dense = dense[torch.from_numpy(forward.lead_places)]
            outs.append(dense.to(new.dtype))
        return outs[0], outs[1]


def _collected(pool: torch.Tensor, tables: Any) -> torch.Tensor:
    """Blocks of the pool [blocks, block_size, heads, size] in the tables' order, as [rows, tokens, heads, size]."""
    rows, width = tables.shape
    first = int(tables[0, 0])
    if rows == 1 and int(tables[0, -1]) == first + width - 1 and (tables[0, 1:] - tables[0, :-1] == 1).all():
        blocks = pool[first : first + width].unsqueeze(0)
    else:
        blocks = pool[torch.from_numpy(tables.astype("int64"))]
    return blocks.reshape(rows, width * pool.shape[1], *pool.shape[2:])
