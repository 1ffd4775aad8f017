"""PagedCache: the Cache of transformers over a KVCache."""

import weakref
from typing import Any, Literal

import numpy as np
import torch
from transformers.cache_utils import Cache

from pagedcache.cache import KVCache
from pagedcache.interop.transformers._checks import check_shapes, check_window, new_pads
from pagedcache.interop.transformers._dense import Dense
from pagedcache.interop.transformers._forward import Forward
from pagedcache.interop.transformers._layer import PagedLayer
from pagedcache.interop.transformers._layout import layout_of
from pagedcache.interop.transformers._rows import Rows
from pagedcache.interop.transformers._tensors import DTYPES, flat, from_rows, refuse_foreign

__all__ = ["PagedCache"]

LONGEST = 1 << 20  # tokens of a row: beyond any pool, so that one that is too small raises OutOfBlocks


class PagedCache(Cache):  # type: ignore[misc]
    """K and V of a model of transformers in blocks: what rows have in common is stored once.

    Give it to ``model.generate(..., cache=PagedCache(model.config, memory="1 GiB"))``, or, before transformers 5.24,
    as ``past_key_values=``. It holds one batch; ``reset()`` makes it ready for another one.

    Parameters
    ----------
    config : PreTrainedConfig
        ``model.config``.
    level : {"kernel", "gather"}, optional
        "kernel": attention reads the blocks where they are, by the kernels of the backend; the model needs
        ``model.set_attn_implementation("pagedcache")``. "gather": K and V are collected into tensors, for any
        implementation of attention. By default what the configuration says.
    memory, num_blocks, max_sequences, threads
        As in `KVCache`; ``memory`` or ``num_blocks`` is required, ``max_sequences`` is the largest batch.
    dtype : str, optional
        What K and V are stored as; by default the ``dtype`` of the configuration. int8 and float8_e4m3 are for
        "kernel" only.
    block_size : int
        Tokens per block; with few of them beams copy less before they write.

    Attributes
    ----------
    kv : KVCache
        Where it all is: ``kv.stats()`` tells how many blocks are used and shared.
    level : str

    Raises
    ------
    UnsupportedModel
        An encoder and a decoder, layers of other kinds than full and sliding attention, or layers that share K and V.

    Notes
    -----
    A forward that raises has changed nothing: the next one begins where it began. With blocks short it raises
    `OutOfBlocks`.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    >>> model = LlamaForCausalLM(config).eval()
    >>> model.set_attn_implementation("pagedcache")
    >>> cache = PagedCache(model.config, memory="1 MiB")
    >>> cache
    PagedCache(0 rows of 0 tokens, kernel, KVCache(... blocks of 8 tokens, 0 used, 0 cached, backend 'cpu'))
    >>> tokens = model.generate(ids, cache=cache, num_beams=4)  # doctest: +SKIP
    """

    def __init__(
        self,
        config: Any,
        *,
        level: Literal["kernel", "gather"] | None = None,
        memory: int | str | None = None,
        num_blocks: int | None = None,
        dtype: str | None = None,
        block_size: int = 8,
        max_sequences: int = 256,
        threads: int | None = None,
    ) -> None:
        self._layout = layout = layout_of(config)
        if level is None:
            level = "kernel" if config._attn_implementation == "pagedcache" else "gather"
        if level not in ("kernel", "gather"):
            raise ValueError(f"level is {level!r}; it is 'kernel' or 'gather'")
        self.level = level
        self._dtype_given = dtype is not None
        if dtype is None:
            dtype = str(getattr(config.get_text_config(decoder=True), "dtype", None) or "float32").split(".")[-1]
        if level == "gather" and dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}, which level 'gather' cannot hand to torch: {', '.join(DTYPES)}")
        spec = layout.spec(dtype, block_size, LONGEST)
        self.kv = KVCache(
            spec,
            memory=memory,
            num_blocks=num_blocks,
            max_sequences=max_sequences,
            max_length=LONGEST,
            threads=threads,
        )
        self._rows = Rows(self.kv)
        self._forward: Forward | None = None
        self._asked: int | None = None  # the layer whose K and V wait for attention to be called
        self._records = False
        self._dense = Dense(self.kv, layout) if level == "gather" else None
        me = weakref.proxy(self)  # or the memory would wait for the collector of cycles
        super().__init__(layers=[PagedLayer(me, i, window) for i, window in enumerate(layout.windows)])

    # -- a forward ------------------------------------------------------------------------------------

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take K and V of a layer's new tokens; called by the model.

        Returns all K and V of the batch, or, where attention will read blocks, what was given.
        """
        refuse_foreign(key_states)
        if self._dense is None:
            if self._asked is not None:
                self._refuse_unasked()
            self._asked = layer_idx
            key_states.pagedcache = self, layer_idx  # type: ignore[attr-defined]  # so attention knows, in any version
            return key_states, value_states
        forward = self._enter(layer_idx, (key_states, value_states), None)
        past = self._rows.length
        try:
            keys_and_values = self._dense.update(layer_idx, key_states, value_states, forward, past)
        except BaseException:
            self._undo()
            raise
        self._leave(forward)
        return keys_and_values

    def _attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
    ) -> torch.Tensor:
        """Attention of one layer: [batch, tokens, heads, size]."""
        self._asked = None
        forward = self._enter(layer, (query, key, value), mask)
        stored, taken = self.kv.spec.dtype, forward.taken
        try:
            out = self.kv.attend(
                self._layout.places[layer],
                flat(query, taken, stored),
                flat(key, taken, stored),
                flat(value, taken, stored),
                forward.step,
                **options,
            )
        except BaseException:
            self._undo()
            raise
        self._leave(forward)
        return from_rows(out, query, forward.given)

    def _enter(self, layer: int, states: tuple[torch.Tensor, ...], mask: torch.Tensor | None) -> Forward:
        if layer == 0:
            self._settle()
            key, value = states[-2:]
            check_shapes(self.kv.spec, key, value, may_round=self._dtype_given)
            if self._layout.bounded and self._dense is None:
                check_window(self._layout, self._rows.length + value.shape[2])
            self._forward = Forward(self._rows, states, new_pads(self._rows, value, mask))
        forward = self._forward
        if forward is None or forward.complete:
            raise RuntimeError(f"layer {layer} of the model came first; a forward begins with layer 0")
        try:
            forward.enter(layer, states)
        except BaseException:
            self._undo()
            raise
        return forward

    def _leave(self, forward: Forward) -> None:
        if forward.leave(len(self._layout.places)) and not self._records:
            self._settle()

    def _settle(self, dropped: int = 0) -> None:
        """End the forward under way: committed where it came through, else undone."""
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.close(dropped)

    def _undo(self) -> None:
        forward, self._forward = self._forward, None
        if forward is not None and not forward.step.closed:
            self.kv.abandon(forward.step)

    def _refuse_unasked(self) -> None:
        layer, self._asked = self._asked, None
        self._undo()
        raise RuntimeError(
            f"attention of layer {layer} did not ask this cache: call model.set_attn_implementation('pagedcache'), or "
            "make the cache with level='gather'"
        )

    # -- what generate asks -----------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of each row, pads counted."""
        forward = self._forward
        return self._rows.length + (forward.count if forward is not None and forward.complete else 0)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no other limit than memory."""
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys a layer's mask has, and the position of the first one."""
        length, window = self.get_seq_length(), self._layout.windows[layer_idx]
        begin = 0 if window is None or self._dense is None else max(length - window + 1, 0)
        return length + query_length - begin, begin

    def activate_past_recording(self) -> None:
        """Let each forward wait for `crop`, which needs that where layers slide. Prompt lookup calls this."""
        self._records = self.kv.spec.num_groups > 1

    # -- what changes rows ------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens of each row: ``crop(-3)`` three of them.

        Raises
        ------
        PositionReleased
            Sliding layers no longer have what the next token would see.
        """
        tokens_to_remove = int(tokens_to_remove)  # generate gives a tensor
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): give minus the number of tokens to remove")
        dropped = -tokens_to_remove
        if dropped > self.get_seq_length():
            raise ValueError(f"crop of {dropped} tokens; the cache holds {self.get_seq_length()}")
        forward = self._forward
        at_once = min(dropped, forward.count) if forward is not None and forward.complete else 0
        self._settle(at_once)
        if dropped > at_once:
            self._rows.drop(dropped - at_once)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Beam search: row i goes on from row ``beam_idx[i]``. No byte is moved."""
        self._settle()
        parents = beam_idx.numpy()
        if len(parents) == len(self._rows.ids):
            self._rows.reorder(parents)
        elif len(self._rows.ids):
            self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Any) -> None:
        """Keep these rows, in this order; those named twice share their blocks."""
        self._settle()
        if rows := len(self._rows.ids):
            self._rows.select(np.arange(rows)[np.asarray(indices)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have each row so many times, one after the other; they share their blocks."""
        self.batch_select_indices(np.repeat(np.arange(len(self._rows.ids)), repeats))

    def reset(self) -> None:
        """Give all blocks back: the cache is empty."""
        self._undo()
        self._asked, self._records = None, False
        self._rows.release()

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before the first forward."""
        return len(self._rows.ids) or -1

    @property
    def is_initialized(self) -> bool:
        """Whether there are rows."""
        return len(self._rows.ids) > 0

    def __repr__(self) -> str:
        return f"PagedCache({len(self._rows.ids)} rows of {self.get_seq_length()} tokens, {self.level}, {self.kv!r})"
