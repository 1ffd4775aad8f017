"""Attention and mask "pagedcache" of transformers: the blocks of a PagedCache, read by the kernels of its backend."""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from pagedcache.errors import UnsupportedModel

__all__ = ["attention", "mask", "register"]

NAME = "pagedcache"
USELESS = ("position_bias", "head_mask", "cu_seq_lens_q", "block_table")  # that would change results


def register() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the blocks of the cache that was given `key`; called by the layers of a model."""
    owner, layer = getattr(key, "pagedcache", (None, None))
    if owner is None:
        raise ValueError(
            "attention 'pagedcache' reads a PagedCache, and these K and V went into none: give the model "
            "cache=PagedCache(model.config, ...) (past_key_values= before transformers 5.24)"
        )
    owner._asked = None
    if dropout or kwargs.get("output_attentions") or kwargs.get("is_causal") is False:
        _refuse(dropout, kwargs)
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            "attention 'pagedcache' is causal, and this layer looks ahead: use another implementation"
        )
    for name in USELESS:
        if kwargs.get(name) is not None:
            raise UnsupportedModel(
                f"attention 'pagedcache' has no {name}: use level='gather' and another implementation"
            )
    if attention_mask is not None and attention_mask.ndim != 1:
        raise ValueError(
            f"attention 'pagedcache' takes a mask [batch, tokens] that hides the first tokens of rows, not one of "
            f"{tuple(attention_mask.shape)}: use level='gather' and another implementation"
        )
    options: dict[str, Any] = {"scale": scaling}
    if softcap is not None:
        options["softcap"] = float(softcap)
    if s_aux is not None:
        options["sink_logits"] = s_aux.detach().float().numpy()
    return owner._attend(layer, query, key, value, attention_mask, **options), None


def _refuse(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise ValueError(f"dropout is {dropout}: attention 'pagedcache' has none, call model.eval()")
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions=True: attention 'pagedcache' keeps no weights, use 'eager' for that")
    raise ValueError("is_causal=False: attention 'pagedcache' is causal, use another implementation")


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> torch.Tensor | None:
    """What attention 'pagedcache' takes for a mask: how many pads each row begins with, or None where there are none.

    Raises
    ------
    UnsupportedModel
        The model wants another mask than a causal one, with a window or without.
    ValueError
        The mask hides tokens behind the first one that it shows.
    """
    if not allow_is_causal_skip or kwargs.get("use_vmap"):
        raise UnsupportedModel(
            "the model (or a packed batch) wants a mask of its own, and attention 'pagedcache' only has causal ones: "
            "use level='gather' and another implementation"
        )
    if attention_mask is None or bool(attention_mask.all()):
        return None
    shown = attention_mask[:, :kv_length].bool()
    pads = (shown.cumsum(-1) == 0).sum(-1)
    if int(pads.sum()) != int((~shown).sum()):
        row = int(torch.nonzero(pads != (~shown).sum(-1))[0])
        raise ValueError(
            f"the attention mask hides tokens of row {row} behind the first that it shows: attention 'pagedcache' "
            "takes pads on the left only (tokenizer.padding_side = 'left')"
        )
    return pads
