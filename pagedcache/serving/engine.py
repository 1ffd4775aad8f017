"""Continuous batching: many requests share a model and a cache, and each step computes what there is to compute."""

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from pagedcache.cache import KVCache
from pagedcache.serving._checks import check_beams, check_memory, check_numbers, check_stop, token_ids
from pagedcache.serving._needs import need_of
from pagedcache.serving._scheduler import Scheduler
from pagedcache.serving._stream import Stream
from pagedcache.serving._texts import Texts
from pagedcache.serving._turn import Turn
from pagedcache.serving.drafting import Drafter, checked
from pagedcache.serving.models import Runner, Tokenizer
from pagedcache.serving.requests import Piece, PieceCallback, Request
from pagedcache.serving.results import Completion, Finish, Report
from pagedcache.serving.sampler import Sampling

__all__ = ["Engine"]


class Engine:
    """Runs many requests at once.

    Each step admits who fits, computes one ragged batch (a token of every text that is being written, and as much of
    the prompts as the token budget leaves) and chooses the next tokens. When blocks run out, the last one in line gives
    way and goes on later. Texts do not depend on who else runs, but for the rounding of sums.

    Parameters
    ----------
    model : Runner
        Such as `LlamaModel`.
    cache : KVCache
        Made with ``model.cache_spec()``. At the end nothing of the engine is left in it but its prefix cache.
    tokenizer : Tokenizer, optional
        For texts and stop strings; without it there are only tokens.
    ends : collection of int, optional
        Tokens that end a text; the tokenizer's own if not given.
    step_tokens : int
        Most prompt tokens in one step; longer prompts take several.
    preemption : {"recompute", "swap", "never"}
        What happens when blocks run out: the last sequence's blocks are dropped, and computed again later as far as the
        prefix cache has lost them; or moved to the host and back; or it never happens, since a request is admitted only
        when its worst case fits.
    watermark : float
        Share of the cache's blocks that an admission leaves free, so that those who run do not preempt the newcomer; at
        least a block for each of them.
    static : bool
        Admit only when nothing runs, as servers without continuous batching do: for comparison.
    share_prefixes : bool
        Find what earlier requests have left in the prefix cache. False: each finds only its own, after a preemption.
    draft : Drafter, optional
        Such as `PromptLookup`: guesses that are verified several at a time. The texts are the same.
    observe : bool
        Keep the fullest moment in ``report.peak``, which takes a look at all blocks when a new one comes.
    on_prefill : callable, optional
        Called with the prompt tokens that are done, more than once where they had to be computed again, and all there
        are.
    clock : callable
        Seconds, for the times in requests and report.

    Attributes
    ----------
    report : Report
        What the engine did so far.

    Notes
    -----
    Not for use by several threads at once. Callbacks may submit and cancel. Beams are never preempted: their worst case
    is promised to them, as if by "never".

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, tokenizer = load_model(find_model())                                  # doctest: +SKIP
    >>> with KVCache(model.cache_spec(), memory="64 MiB") as cache:                  # doctest: +SKIP
    ...     engine = Engine(model, cache, tokenizer)
    ...     requests = [engine.submit(tokenizer.encode(text), max_tokens=8) for text in ("One, two,", "A, B,")]
    ...     engine.run()
    ...     print([request.completions[0].text for request in requests])
    [' three, four, five, six,', ' C, D, E, F,']
    """

    def __init__(
        self,
        model: Runner,
        cache: KVCache,
        tokenizer: Tokenizer | None = None,
        *,
        ends: frozenset[int] | Sequence[int] | None = None,
        step_tokens: int = 256,
        preemption: Literal["recompute", "swap", "never"] = "recompute",
        watermark: float = 0.01,
        static: bool = False,
        share_prefixes: bool = True,
        draft: Drafter | None = None,
        observe: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        check_numbers(step_tokens=step_tokens)
        check_memory(preemption, watermark, cache)
        if ends is None:
            ends = tokenizer.ends if tokenizer is not None else ()
        self.report = Report(cache.spec, model.config.context)
        self._model, self._cache, self._tokenizer = model, cache, tokenizer
        self._scheduler = Scheduler(
            cache, step_tokens, preemption, watermark, static, share_prefixes, self.report, clock
        )
        self._texts = Texts(self._scheduler, tokenizer, frozenset(ends), self.report, clock)
        self._turn = Turn(self._scheduler, self._texts, model, cache, self.report, clock)
        self._draft = None if draft is None else checked(draft, model.config.vocab, cache.spec)
        self._observe, self._on_prefill, self._clock = observe, on_prefill, clock
        self._submitted = 0

    def submit(
        self,
        prompt: Sequence[int] | np.ndarray[Any, Any],
        *,
        max_tokens: int = 64,
        n: int = 1,
        sampling: Sampling | None = None,
        priority: int = 0,
        stop: str | Sequence[str] = (),
        ignore_ends: bool = False,
        beams: int | None = None,
        length_penalty: float = 1.0,
        on_piece: PieceCallback | None = None,
    ) -> Request:
        """Put a request in line.

        Parameters
        ----------
        prompt : sequence of int
            Token ids.
        max_tokens : int
            Most new tokens of each text; the model's context may end it sooner.
        n : int
            Texts: samples that share the prompt's blocks, or the best of the beams.
        sampling : Sampling, optional
            Greedy if not given. With a seed, what is drawn depends on it, the request's number and the sample alone.
        priority : int
            Requests of a higher one are admitted first and preempted last.
        stop : str or sequence of str
            Strings that end a text and are no part of it.
        ignore_ends : bool
            Go on past end tokens, for measurements.
        beams : int, optional
            Search for the likeliest text with so many beams, instead of drawing; see `beam_search`.
        length_penalty : float
            Of a beam search.
        on_piece : callable, optional
            Called with a `Piece` for each text that a step added to, after the step.

        Returns
        -------
        Request
            Its `completions` are complete when it is `done`.

        Raises
        ------
        ValueError
            An argument is out of range, a token outside of the vocabulary, the prompt empty or beyond the context.
        OutOfBlocks, OutOfSequences
            It would not fit into the cache even if alone.
        """
        sampling = Sampling() if sampling is None else sampling
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        width = n if beams is None else beams
        check_numbers(max_tokens=max_tokens, n=n, beams=1 if beams is None else beams)
        if stop:
            check_stop(stop, self._tokenizer)
        if beams is not None:
            check_beams(beams, n, length_penalty, self._model.config.vocab - len(self._texts.ends))
            if stop or sampling != Sampling():
                raise ValueError("a beam search draws nothing and has no stop strings: leave out sampling and stop")
        tokens = token_ids(prompt, self._model.config.vocab)
        scheduler = self._scheduler
        scheduler.measure()
        together = width if beams is not None or scheduler.never_preempts else 1
        name, context, room = f"request {self._submitted}", self._model.config.context, scheduler.room
        need = need_of(name, len(tokens), width, together, max_tokens, context, self._cache, room)
        request = Request(
            number=self._submitted,
            prompt=tokens,
            limit=need.limit,
            width=width,
            blocks=need.blocks,
            priority=priority,
            sampling=sampling,
            stop=stop,
            ends=not ignore_ends,
            beams=beams is not None,
            length_penalty=length_penalty,
            completions=[Completion(self._submitted, sample) for sample in range(n)],
            on_piece=on_piece,
            submitted=self._clock(),
        )
        self._submitted += 1
        self.report.prompt_tokens += len(tokens)
        self._texts.queue(request)
        return request

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, and nothing finished that `step` has not returned."""
        return not (self._scheduler.waiting or self._scheduler.running or self._texts.news or self._texts.finished)

    @property
    def num_running(self) -> int:
        """Sequences that are in the batch."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def num_tokens(self) -> int:
        """Tokens that the running sequences have stored; one that is shared counts for each."""
        return int(self._scheduler.rows.lengths[[sequence.row for sequence in self._scheduler.running]].sum())

    def step(self) -> list[Request]:
        """Do one turn; return the requests that it finished.

        Raises
        ------
        OutOfBlocks
            Others took blocks that were promised to a request that cannot be preempted.
        OutOfSequences
            Others took sequences that were promised to a request's samples or beams.
        ValueError
            A logit that is not finite; the message names the request.

        Notes
        -----
        Where the model, the cache, a drafter or a callback raises, nothing is lost: the next call goes on with whoever
        was not given a token, and tells what was not told.
        """
        before = self.report.reused_tokens
        if (stuck := self._scheduler.admit()) is not None:
            self._texts.end(stuck.request, Finish.REFUSED)
        self._tell_prefill(self.report.reused_tokens - before)
        if self._scheduler.running:
            self._tell_prefill(self._turn.take(self._draft, observe=self._observe))
        while self._texts.news:
            tell, news = self._texts.news.popleft()
            tell(news)
        finished, self._texts.finished = self._texts.finished, []
        return finished

    def run(self) -> None:
        """Do turns until all requests are done."""
        while not self.idle:
            self.step()

    def stream(self, prompt: Sequence[int], **options: Any) -> Stream:
        """Submit a request and yield its pieces as they come; others that are in line run along.

        Parameters
        ----------
        prompt, **options
            As in `submit`, without `on_piece`.

        Returns
        -------
        iterator of Piece
            Which cancels the request when it is closed or given up.
        """
        pieces: deque[Piece] = deque()
        request = self.submit(prompt, on_piece=pieces.append, **options)
        return Stream(request, pieces, self.step, self.cancel, self._texts.news.append)

    def cancel(self, request: Request) -> None:
        """End a request; its texts keep the tokens that are there. One that is done stays as it is."""
        self._texts.end(request, Finish.CANCELLED)

    def close(self) -> None:
        """Cancel all requests."""
        for sequence in reversed([*self._scheduler.running, *self._scheduler.waiting]):
            self.cancel(sequence.request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell_prefill(self, tokens: int) -> None:
        if self._on_prefill is not None and tokens:
            self._on_prefill(self.report.reused_tokens + self.report.prefilled_tokens, self.report.prompt_tokens)
