"""Beam search on a paged cache: beams are sequences that share every block up to where they part."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import AdmitStatus
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._beams import Beams
from pagedcache.serving._compute import compute
from pagedcache.serving._needs import Need, needs_of
from pagedcache.serving._run import PrefillCallback
from pagedcache.serving.models import LlamaModel, Tokenizer
from pagedcache.serving.results import Completion, Generation, Report


def beam_search(
    model: LlamaModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    *,
    beams: int = 4,
    n: int = 1,
    max_tokens: int = 64,
    length_penalty: float = 1.0,
    ends: frozenset[int] | None = None,
    step_tokens: int = 256,
    on_prefill: PrefillCallback | None = None,
    on_step: PrefillCallback | None = None,
) -> Generation:
    """Find the likeliest continuations of each prompt, one prompt after the other.

    At each step the `beams` best continuations live on. Those that go on from the same one share its blocks; a block
    is copied only when two of them come to write into it.

    Parameters
    ----------
    model, tokenizer
        From :func:`pagedcache.serving.models.load_model`.
    prompts : sequence of sequences of int
        Token ids.
    cache : KVCache
        Made with ``model.cache_spec()``. Nothing of this call is left in it but its prefix cache.
    beams : int
        Continuations that are followed at a time.
    n : int
        Texts per prompt, the best ones; at most `beams`.
    max_tokens : int
        Most new tokens per text; the model's context may end it sooner.
    length_penalty : float
        A text's score is the sum of the log-probabilities of its new tokens, the one that ended it included, divided
        by the number of them to this power, from 0 to 10: 0 ranks by the sum, 1 by the mean.
    ends : frozenset of int, optional
        Tokens that end a text; the tokenizer's own if not given.
    step_tokens : int
        Most prompt tokens in one step; longer prompts take several.
    on_prefill, on_step : callable, optional
        Called with the prompt tokens that are done and all there are, and with the steps after the prompts that are
        done and the most there may be.

    Returns
    -------
    Generation
        For each prompt its `n` best texts, best first; `Completion.score` is set.

    Raises
    ------
    ValueError
        A prompt is empty or longer than the model's context, or an argument is out of range.
    OutOfBlocks, OutOfSequences
        A prompt with its beams would not fit into the cache even if alone. Nothing was computed.

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, tokenizer = load_model(find_model())                         # doctest: +SKIP
    >>> prompt = tokenizer.encode("The capital of France is")               # doctest: +SKIP
    >>> with KVCache(model.cache_spec(), memory="64 MiB") as cache:         # doctest: +SKIP
    ...     beam_search(model, tokenizer, [prompt], cache, max_tokens=3).completions[0].text
    ' Paris. The'
    """
    for name, value in (("beams", beams), ("n", n), ("max_tokens", max_tokens), ("step_tokens", step_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if n > beams:
        raise ValueError(f"n is {n}; {beams} beams find at most {beams} texts")
    if not 0 <= length_penalty <= 10:
        raise ValueError(f"length_penalty is {length_penalty}; it must be from 0 to 10")
    if ends is None:
        ends = tokenizer.ends
    if beams > (most := model.config.vocab - len(ends)):
        raise ValueError(f"beams is {beams}; the first token that does not end a text can only be one of {most}")
    needs = needs_of(prompts, beams, max_tokens, model.config.context, cache)
    search = _Search(model, cache, step_tokens, needs, on_prefill, on_step)
    completions = []
    for index, need in enumerate(needs):
        found = Beams(width=beams, keep=n, limit=need.limit, length_penalty=length_penalty, ends=ends)
        search.run(index, need, found, beams)
        completions += [
            Completion(index, rank, list(each.tokens), tokenizer.decode(each.tokens), each.ended, each.score)
            for rank, each in enumerate(found.best())
        ]
    return Generation(completions, search.report)


class _Search:
    """What the searches of one call have in common."""

    def __init__(
        self,
        model: LlamaModel,
        cache: KVCache,
        step_tokens: int,
        needs: list[Need],
        on_prefill: PrefillCallback | None,
        on_step: PrefillCallback | None,
    ) -> None:
        self.report = Report(cache.spec, model.config.context)
        self.report.prompt_tokens = sum(len(need.tokens) for need in needs)
        self._model, self._cache, self._step_tokens = model, cache, step_tokens
        self._on_prefill, self._on_step = on_prefill, on_step
        self._prefilled = 0  # prompt tokens done
        self._steps = 0  # after the prompts, done
        self._most_steps = sum(need.limit - 1 for need in needs)

    def run(self, index: int, need: Need, beams: Beams, width: int) -> None:
        """Follow the beams of one prompt until they are done."""
        cache, report = self._cache, self.report
        admission = cache.admit([need.tokens])
        if admission.status[0] != AdmitStatus.ADMITTED:
            raise OutOfBlocks(f"prompt {index} needs {need.blocks} blocks, and others hold them")
        ids = [int(admission.ids[0])]
        try:
            logits = self._prefill(need, ids, int(admission.cached[0]))
            beams.advance(logits)
            report.new_tokens += len(beams.live)
            if not beams.done:
                ids += cache.fork(ids, width - 1)[0].tolist()
            for length in range(len(need.tokens) + 1, len(need.tokens) + need.limit):
                if beams.done:
                    break
                started = perf_counter()
                logits, copied = compute(self._model, cache, ids, beams.last_tokens)
                report.decode_seconds += perf_counter() - started
                report.decode_tokens += width
                report.copied += copied
                self._observe(need, width, length)
                parents = beams.advance(logits)
                report.new_tokens += len(beams.live)
                if not beams.done:
                    cache.reorder(ids, parents)
                self._count_step()
        finally:
            cache.release(ids)

    def _prefill(self, need: Need, ids: list[int], cached: int) -> NDArray[np.float32]:
        """Compute the prompt beyond what is cached; logits after its last token, [1, vocab]."""
        self.report.reused_tokens += cached
        self._count_prefilled(cached)
        for first in range(cached, len(need.tokens), self._step_tokens):
            row = need.tokens[first : first + self._step_tokens]
            started = perf_counter()
            logits, copied = compute(self._model, self._cache, ids, [row])
            self.report.prefill_seconds += perf_counter() - started
            self.report.copied += copied
            self._observe(need, 1, first + len(row))
            self._count_prefilled(len(row))
        return logits

    def _observe(self, need: Need, sequences: int, length: int) -> None:
        lengths = [length] * sequences
        self.report.observe(self._cache.stats(), lengths, sequences * (len(need.tokens) + need.limit))

    def _count_prefilled(self, tokens: int) -> None:
        self._prefilled += tokens
        if self._on_prefill is not None and tokens:
            self._on_prefill(self._prefilled, self.report.prompt_tokens)

    def _count_step(self) -> None:
        self._steps += 1
        if self._on_step is not None:
            self._on_step(self._steps, self._most_steps)
