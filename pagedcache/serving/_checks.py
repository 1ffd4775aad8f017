"""What may be asked: checks that several entrances share."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.cache import KVCache
from pagedcache.serving.models import Tokenizer


def check_numbers(**numbers: int) -> None:
    """Refuse numbers below 1, by name."""
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def check_memory(preemption: str, watermark: float, cache: KVCache) -> None:
    """Refuse ways to deal with short memory that there are not."""
    if preemption not in ("recompute", "swap", "never"):
        raise ValueError(f"preemption is {preemption!r}; it must be 'recompute', 'swap' or 'never'")
    if preemption == "swap" and cache.storage is None:
        raise ValueError("preemption is 'swap', and the cache is metadata only: there is nothing to move")
    if not 0 <= watermark < 1:
        raise ValueError(f"watermark is {watermark}; it is a share of the blocks, from 0 to below 1")


def check_beams(beams: int, n: int, length_penalty: float, most: int) -> None:
    """Refuse a beam search that cannot be; at most `most` tokens do not end a text."""
    if n > beams:
        raise ValueError(f"n is {n}; {beams} beams find at most {beams} texts")
    if not 0 <= length_penalty <= 10:
        raise ValueError(f"length_penalty is {length_penalty}; it must be from 0 to 10")
    if beams > most:
        raise ValueError(f"beams is {beams}; the first token that does not end a text can only be one of {most}")


def check_stop(stop: tuple[str, ...], tokenizer: Tokenizer | None) -> None:
    """Refuse stop strings that cannot be found."""
    if tokenizer is None:
        raise ValueError(f"stop is {stop!r}; an engine without a tokenizer has no text to look for it in")
    if "" in stop:
        raise ValueError("stop holds an empty string, which would end every text before it begins")


def token_ids(prompt: ArrayLike, vocab: int) -> NDArray[np.int32]:
    """Return a prompt's token ids, checked."""
    tokens = np.asarray(prompt)
    if not tokens.size:
        tokens = tokens.astype(np.int64)  # an empty list is float64
    if tokens.ndim != 1:
        raise ValueError(f"a prompt is one row of token ids, not an array of shape {tokens.shape}")
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"a prompt is of {tokens.dtype}; token ids are integers")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab:
        raise ValueError(f"token ids reach from {tokens.min()} to {tokens.max()}; the vocabulary ends at {vocab - 1}")
    return tokens.astype(np.int32)
