"""Texts: how they begin, what they are given, how they end; and what is told of it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.serving._beams import Beams
from pagedcache.serving._rows import Search, Sequence
from pagedcache.serving._scheduler import Scheduler
from pagedcache.serving._text import Text
from pagedcache.serving.models import Tokenizer
from pagedcache.serving.requests import Piece, Request
from pagedcache.serving.results import Completion, Finish, Report
from pagedcache.serving.sampler import Sampler


class Texts:
    """The completions of an engine's requests.

    Attributes
    ----------
    ends : frozenset of int
        Tokens that end a text.
    news : deque of (callable, what to call it with)
        Not told yet.
    finished : list of Request
        Not reported yet.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None,
        ends: frozenset[int],
        report: Report,
        clock: Callable[[], float],
    ) -> None:
        self.ends = ends
        self.news: deque[tuple[Callable[[Any], object], Any]] = deque()
        self.finished: list[Request] = []
        self._scheduler, self._rows, self._tokenizer = scheduler, scheduler.rows, tokenizer
        self._report, self._clock = report, clock

    def queue(self, request: Request) -> None:
        """Put the first sequence of a request in line."""
        search = None
        if request.beams:
            found = len(request.completions)
            search = Search(
                Beams(
                    width=request.width,
                    keep=found,
                    limit=request.limit,
                    length_penalty=request.length_penalty,
                    ends=self.ends if request.ends else frozenset(),
                )
            )
        self._scheduler.queue(self.sequence(request, 0, request.prompt, search))

    def begin_again(self, sequence: Sequence) -> None:
        """Compute all that a sequence has anew; a search has to begin anew as a whole."""
        if sequence.search is None:
            self._scheduler.remove(sequence)
            self._scheduler.queue(sequence)
            return
        for each in self._scheduler.of(sequence.request):
            self._scheduler.remove(each)
        self.queue(sequence.request)

    def sequence(
        self, request: Request, sample: int, tokens: NDArray[np.int32] | None, search: Search | None = None
    ) -> Sequence:
        """Make a sequence of a request; one that waits has tokens, a fork has not."""
        completion = request.completions[sample if search is None else 0]
        text = Text(self._tokenizer, request.stop) if self._tokenizer is not None and search is None else None
        return Sequence(
            request, sample, completion, Sampler(request.sampling, request.number, sample), text, tokens, search
        )

    def give(self, sequence: Sequence, tokens: list[int]) -> None:
        """Add tokens to one sequence, as far as it goes."""
        r, request, row, completion = self._rows, sequence.request, sequence.row, sequence.completion
        self._catch_up(sequence)
        finish = None
        for token in tokens:
            self._report.new_tokens += 1
            if request.ends and token in self.ends:
                finish = Finish.END
                break
            r.tokens[row, r.totals[row]] = token
            r.totals[row] += 1
            completion.tokens.append(token)
            if sequence.text is not None:
                completion.text += sequence.text.push(token)
                if sequence.text.stopped:
                    finish = Finish.STOP
                    break
            if r.totals[row] == r.limits[row]:
                finish = Finish.LENGTH
                break
        self.mark(request)
        if finish is not None:
            self.finish(sequence, finish)
        else:
            r.settle(sequence)
            self._tell(sequence, last=False)

    def mark(self, request: Request) -> None:
        """Note when the first token of a request came."""
        if request.first_token is None:
            request.first_token = self._clock()

    def end(self, request: Request, finish: Finish) -> None:
        """End whatever of a request has not ended."""
        for sequence in self._scheduler.of(request):
            if sequence.completion.finish is None:  # beams end all at once
                self.finish(sequence, finish)
        self._drop(request, finish)

    def finish(self, sequence: Sequence, finish: Finish) -> None:
        """End one text, or all of a search."""
        request, completion = sequence.request, sequence.completion
        if sequence.search is not None:
            self._finish_search(request, sequence.search, finish)
            return
        self._catch_up(sequence)
        if sequence.text is not None:
            completion.text += sequence.text.finish()
        self._scheduler.remove(sequence)
        self._tell(sequence, last=True)
        self._conclude(request, completion, finish)

    def _finish_search(self, request: Request, search: Search, finish: Finish) -> None:
        for each in self._scheduler.of(request):
            self._scheduler.remove(each)
        for completion, best in zip(request.completions, search.beams.best(), strict=False):
            completion.tokens, completion.score = list(best.tokens), best.score
            if self._tokenizer is not None:
                completion.text = self._tokenizer.decode(best.tokens)
            if request.on_piece is not None:
                self.news.append((request.on_piece, Piece(completion, completion.tokens, completion.text, True)))
            self._conclude(request, completion, Finish.END if best.ended else finish)
        self._drop(request, finish)

    def _drop(self, request: Request, finish: Finish) -> None:
        """End the texts of a request that have no sequence: samples that have not parted yet."""
        for completion in request.completions:
            if completion.finish is None:
                self._conclude(request, completion, finish)

    def _conclude(self, request: Request, completion: Completion, finish: Finish) -> None:
        completion.finish = finish
        if all(each.finish is not None for each in request.completions):
            request.finished = self._clock()
            self._scheduler.finish(request)
            self.finished.append(request)

    def _catch_up(self, sequence: Sequence) -> None:
        """Bring the completion up to the tokens that the sequence has."""
        known = sequence.tokens if sequence.tokens is not None else self._rows.known(sequence.row)
        completion = sequence.completion
        new = known[len(sequence.request.prompt) + len(completion.tokens) :].tolist()
        completion.tokens += new
        if sequence.text is not None:
            completion.text += "".join(map(sequence.text.push, new))

    def _tell(self, sequence: Sequence, *, last: bool) -> None:
        completion, tell = sequence.completion, sequence.request.on_piece
        if tell is not None:
            tokens, characters = sequence.told
            self.news.append((tell, Piece(completion, completion.tokens[tokens:], completion.text[characters:], last)))
            sequence.told = len(completion.tokens), len(completion.text)
