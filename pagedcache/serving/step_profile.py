"""Where the time of a decode step goes: to the model's arithmetic, to attention, or to the cache's own books."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks, OutOfSequences
from pagedcache.serving.models import Runner

__all__ = ["DecodeProfile", "StepTimes", "profile_decode"]

PREFILL_TOKENS = 256  # of one step
WARM_UP = 2  # decode steps before those that count


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one decode step."""

    whole: float  # from extend to commit
    attention: float  # in ``cache.attend``, of all layers: K and V are stored and attended to
    bookkeeping: float  # in ``cache.extend`` and ``cache.commit``


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    """Decode steps of a batch, each sequence of which had `context` tokens before the first."""

    batch: int
    context: int
    prefill_seconds: float
    steps: tuple[StepTimes, ...]

    @property
    def seconds(self) -> float:
        """Median time of a step."""
        return median(step.whole for step in self.steps)

    @property
    def attention_share(self) -> float:
        """Median of attention's share of a step, 0 to 1."""
        return median(step.attention / step.whole for step in self.steps)

    @property
    def bookkeeping_share(self) -> float:
        """Median of the bookkeeping's share of a step, 0 to 1."""
        return median(step.bookkeeping / step.whole for step in self.steps)

    @property
    def cache_share(self) -> float:
        """Median of the share of a step that is not the model's arithmetic, 0 to 1."""
        return median((step.attention + step.bookkeeping) / step.whole for step in self.steps)


def profile_decode(
    model: Runner,
    cache: KVCache,
    *,
    batch: int = 1,
    context: int = 2048,
    steps: int = 32,
    on_prefill: Callable[[int, int], None] | None = None,
) -> DecodeProfile:
    """Compute prompts of random tokens, then decode steps, and tell where their time went.

    Parameters
    ----------
    model, cache
        The cache made with ``model.cache_spec()``; nothing is left in it but its prefix cache.
    batch : int
        Sequences of a step; no two share a block.
    context : int
        Tokens of each before the first decode step.
    steps : int
        Decode steps; two more come before them and do not count.
    on_prefill : callable, optional
        Called with the prompt tokens that are done, and all there are.

    Returns
    -------
    DecodeProfile

    Raises
    ------
    ValueError
        An argument is below 1, or the context with the steps is longer than the model's.
    OutOfBlocks, OutOfSequences
        The sequences do not fit into the cache.

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, _ = load_model(find_model())                              # doctest: +SKIP
    >>> with KVCache(model.cache_spec(), memory="1 GiB") as cache:       # doctest: +SKIP
    ...     profile_decode(model, cache, context=2048).cache_share
    0.13
    """
    for name, value in (("batch", batch), ("context", context), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    length = context + WARM_UP + steps
    if length > model.config.context:
        raise ValueError(
            f"context {context} and {WARM_UP + steps} decode steps make {length} tokens; "
            f"the model takes {model.config.context}"
        )
    blocks, rows = batch * cache.spec.blocks_per_sequence(length), cache.sequences
    if batch > rows.max_sequences - rows.num_sequences:
        raise OutOfSequences(f"a batch of {batch}; the cache has room for {rows.max_sequences - rows.num_sequences}")
    if blocks > cache.pool.num_free:
        raise OutOfBlocks(
            f"{batch} x {length} tokens need {blocks} blocks, {cache.pool.num_free} are free: give the cache more "
            "memory, or take a smaller batch or context"
        )
    random = np.random.default_rng(0)
    prompts = random.integers(0, model.config.vocab, (batch, context), np.int32)
    timed, ids = _TimedCache(cache), []
    namespace = secrets.token_hex(8)  # where no prompt is found
    try:
        started = perf_counter()
        for number, prompt in enumerate(prompts):
            ids += cache.admit([prompt], namespace=namespace).ids.tolist()
            for begin in range(0, context, PREFILL_TOKENS):
                timed.step(model, ids[-1:], prompt[None, begin : begin + PREFILL_TOKENS])
                if on_prefill is not None:
                    on_prefill(number * context + min(begin + PREFILL_TOKENS, context), prompts.size)
        prefill_seconds = perf_counter() - started
        tokens = random.integers(0, model.config.vocab, (WARM_UP + steps, batch, 1), np.int32)
        times = [timed.step(model, ids, row) for row in tokens]
    finally:
        cache.release(ids)
    return DecodeProfile(batch, context, prefill_seconds, tuple(times[WARM_UP:]))


class _TimedCache:
    """What a model needs of a cache, with a clock."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._attention = 0.0  # seconds

    def attend(self, layer: int, q: Any, k: Any, v: Any, step: Any) -> Any:
        started = perf_counter()
        seen = self._cache.attend(layer, q, k, v, step)
        self._attention += perf_counter() - started
        return seen

    def step(self, model: Runner, ids: list[int], tokens: NDArray[np.int32]) -> StepTimes:
        """Compute and commit new tokens [len(ids), count] of some sequences."""
        self._attention = 0.0
        begin = perf_counter()
        step = self._cache.extend(ids, tokens.shape[1])
        try:
            opened = perf_counter()
            model.forward(tokens.ravel(), step, self)
            computed = perf_counter()
            self._cache.commit(step, tokens.ravel())
        except BaseException:
            if not step.closed:  # an interrupt may come as late as when commit has done its work
                self._cache.abandon(step)
            raise
        end = perf_counter()
        return StepTimes(end - begin, self._attention, opened - begin + end - computed)
