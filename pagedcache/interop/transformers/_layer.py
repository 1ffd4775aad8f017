"""What a Cache of transformers has for each layer: here only a view, as all layers share their tables."""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

__all__ = ["PagedLayer"]


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a PagedCache."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, owner: Any, index: int, window: int | None) -> None:
        super().__init__()
        self._owner, self._index = owner, index
        self.is_sliding = window is not None
        if window is not None:
            self.sliding_window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: memory is taken when the cache is made."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagedCache.update`."""
        return self._owner.update(key_states, value_states, self._index)  # type: ignore[no-any-return]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """See `PagedCache.get_mask_sizes`."""
        return self._owner.get_mask_sizes(query_length, self._index)  # type: ignore[no-any-return]

    def get_seq_length(self) -> int:
        """See `PagedCache.get_seq_length`."""
        return self._owner.get_seq_length()  # type: ignore[no-any-return]

    def get_max_length(self) -> int:
        """-1: no other limit than memory."""
        return -1
