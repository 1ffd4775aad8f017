"""Four workloads on a real cache, and on a contiguous one by its rule: what each takes of memory.

They are those of a tutorial's table, which names them and states no lengths. The lengths here are chosen so that the
contiguous side is the tutorial's; what the cache holds is then measured: sequences are admitted, extended, forked
and reordered, and the pool counts the blocks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pagedcache.cache import KVCache
from pagedcache.spec import CacheSpec

if TYPE_CHECKING:
    from pagedcache.serving.models import Model, Tokenizer

__all__ = ["SCENARIOS", "Holding", "Scenario", "measure", "measure_beams"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload: sequences that grow together, a token a step, and stay until the last is done."""

    name: str
    lengths: tuple[tuple[int, int], ...]  # tokens of each prompt, and new ones
    reserve: int | None  # tokens that a contiguous cache sets aside for each; None: as many as it gets
    beams: int  # that each prompt is continued by
    base: str  # which tokens are 100 %
    base_tokens: int
    claimed: tuple[int, int, int]  # percent, by the tutorial: contiguous, paged, saved

    @property
    def contiguous_tokens(self) -> int:
        """Tokens that a contiguous cache sets aside."""
        return sum(self.beams * (self.reserve or prompt + new) for prompt, new in self.lengths)

    @property
    def workload(self) -> str:
        """The sequences, and what a contiguous cache reserves, in words."""
        if self.beams > 1:
            ((prompt, new),) = self.lengths
            return f"{self.beams} beams, prompt {prompt} + {new} new tokens; each beam has a copy"
        totals = sorted(prompt + new for prompt, new in self.lengths)
        if len(totals) > 6:
            what = f"{len(totals)} sequences of {totals[0]} to {totals[-1]} tokens"
        else:
            what = f"{len(totals)} sequence{'s' * (len(totals) > 1)} of {', '.join(map(str, totals))} tokens"
        return f"{what}; {self.reserve} reserved for each"


def _sequences(name: str, lengths: list[tuple[int, int]], reserve: int, claimed: tuple[int, int, int]) -> Scenario:
    tokens = sum(prompt + new for prompt, new in lengths)
    if len(lengths) == 1:
        return Scenario(name, tuple(lengths), reserve, 1, "reserved", reserve, claimed)
    return Scenario(name, tuple(lengths), reserve, 1, "stored", tokens, claimed)


SCENARIOS = (
    _sequences("one sequence", [(1500, 505)], 2048, (100, 98, 2)),
    _sequences("ten short", [(30 + 10 * i, 40 + 10 * i) for i in range(10)], 512, (320, 105, 67)),
    Scenario("beam search", ((224, 231),), None, 4, "of one beam", 455, (400, 120, 70)),
    _sequences(
        "long and short",
        [(1500, 490), (1815, 200), (340, 300), (480, 200), (530, 200), (370, 400)],
        2048,
        (180, 102, 43),
    ),
)
"""The tutorial's four, as `Scenario` objects."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a scenario took."""

    scenario: Scenario
    block_size: int  # tokens
    blocks: int  # most that were held at a time
    copies: int  # of blocks, because a shared one was to be written
    parents: str = ""  # of beams: where they came from

    @property
    def paged_tokens(self) -> int:
        """Tokens for which the blocks have room."""
        return self.blocks * self.block_size

    @property
    def contiguous_percent(self) -> float:
        """What the contiguous cache takes, in percent of the scenario's base."""
        return 100 * self.scenario.contiguous_tokens / self.scenario.base_tokens

    @property
    def paged_percent(self) -> float:
        """What the blocks take, in percent of the scenario's base."""
        return 100 * self.paged_tokens / self.scenario.base_tokens

    @property
    def saved_percent(self) -> float:
        """How much less the blocks take, in percent of the contiguous cache."""
        return 100 * (1 - self.paged_tokens / self.scenario.contiguous_tokens)


def measure(scenario: Scenario, *, block_size: int = 16, seed: int = 0) -> Holding:
    """Run a scenario on a `KVCache` and count its blocks.

    Parameters
    ----------
    scenario : Scenario
    block_size : int
        Tokens per block.
    seed : int
        Of the tokens, all different, and of the beams' parents: at each step every beam goes on from one of the
        beams before it, any as likely as another.

    Examples
    --------
    >>> held = measure(SCENARIOS[1])
    >>> held.blocks, f"{held.contiguous_percent:.0f} % -> {held.paged_percent:.0f} %"
    (105, '320 % -> 105 %')
    """
    random = np.random.default_rng(seed)
    new = np.array([new for _, new in scenario.lengths])

    def tokens(count: int) -> np.ndarray:
        return random.integers(0, 2**31 - 1, count, np.int32)

    prompts = [tokens(prompt) for prompt, _ in scenario.lengths]
    with _cache(scenario, block_size) as cache:
        ids = cache.admit(prompts).ids
        step = cache.extend(ids, [len(prompt) for prompt in prompts])
        cache.commit(step, np.concatenate(prompts))
        if scenario.beams > 1:
            ids = np.concatenate([ids, cache.fork(ids, scenario.beams - 1)[0]])
        for number in range(new.max()):
            growing = ids if scenario.beams > 1 else ids[new > number]
            if scenario.beams > 1 and number:
                cache.reorder(ids, random.integers(0, scenario.beams, scenario.beams))
            step = cache.extend(growing, 1)
            cache.commit(step, tokens(len(growing)))
        stats = cache.stats()
        cache.release(ids)
    parents = f"random parents, seed {seed}" if scenario.beams > 1 else ""
    return Holding(scenario, block_size, stats.peak_used, stats.copies, parents)


def measure_beams(
    scenario: Scenario, model: "Model", tokenizer: "Tokenizer", *, name: str = "a model", block_size: int = 16
) -> Holding:
    """Run a scenario of beams with a real model: its beam search continues the beginning of `KVCache`'s docstring.

    Parameters
    ----------
    scenario : Scenario
        One with beams.
    model, tokenizer
        From :func:`pagedcache.serving.models.load_model`.
    name : str
        Of the model, for :attr:`Holding.parents`.
    block_size : int
        Tokens per block.
    """
    from pagedcache.serving import beam_search

    ((prompt, new),) = scenario.lengths
    text = tokenizer.encode(KVCache.__doc__ or "")[:prompt]
    if len(text) < prompt or prompt + new + 1 > model.config.context:
        raise ValueError(
            f"the scenario has {prompt} + {new} tokens; the model takes {model.config.context}, and its tokenizer "
            f"makes {len(text)} of the text"
        )
    spec = model.cache_spec(block_size=block_size)
    blocks = scenario.beams * (spec.blocks_per_sequence(prompt + new + 1) + 1)
    with KVCache(spec, num_blocks=blocks, max_sequences=scenario.beams) as cache:
        # The last token of a text is chosen and not stored; no token ends one, so that all beams last as long.
        beam_search(model, tokenizer, [text], cache, beams=scenario.beams, max_tokens=new + 1, ends=frozenset(), n=1)
        stats = cache.stats()
    return Holding(scenario, block_size, stats.peak_used, stats.copies, f"beams of {name} after KVCache's docstring")


def _cache(scenario: Scenario, block_size: int) -> KVCache:
    """Return a small cache with room for all sequences even if they shared nothing."""
    spec = CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=block_size)
    alone = sum(spec.blocks_per_sequence(prompt + new) + 1 for prompt, new in scenario.lengths)
    return KVCache(spec, num_blocks=scenario.beams * alone, max_sequences=scenario.beams * len(scenario.lengths))
