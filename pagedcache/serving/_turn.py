"""One turn of an engine: a ragged batch through the model, and what its logits mean for each sequence.

Sequences that take their likeliest token, and that nobody watches, are served by array operations all at once. The
rest is served one by one: those that draw, whose text is followed, whose guesses are verified, that part into samples,
and beams.
"""

from collections.abc import Callable
from copy import copy
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import Step
from pagedcache.errors import OutOfBlocks, PositionReleased
from pagedcache.serving._rows import Search, Sequence
from pagedcache.serving._scheduler import Scheduler
from pagedcache.serving._texts import Texts
from pagedcache.serving.drafting import Drafter
from pagedcache.serving.models import Runner
from pagedcache.serving.results import Finish, Report
from pagedcache.serving.sampler import Sampler

Places = NDArray[np.intp]  # rows, by number
Int32 = NDArray[np.int32]
Logits = NDArray[np.float32]


class Turn:
    """What an engine does with those who run."""

    def __init__(
        self,
        scheduler: Scheduler,
        texts: Texts,
        model: Runner,
        cache: KVCache,
        report: Report,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler, self._rows, self._texts = scheduler, scheduler.rows, texts
        self._model, self._cache = model, cache
        self._report, self._clock = report, clock
        self._torn = False  # an exception has left the middle of a turn
        self._drawn: dict[int, tuple[Sampler, dict[str, Any]]] = {}  # by row: state before draws that are not given yet

    def take(self, draft: Drafter | None, *, observe: bool) -> int:
        """Compute a step of those who run; return how many prompt tokens were among it."""
        if self._torn:
            self._mend()
        self._torn = True
        prefilled = self._take(draft, observe=observe)
        self._torn = False
        return prefilled

    def _take(self, draft: Drafter | None, *, observe: bool) -> int:
        opened = self._open(draft)
        if opened is None:
            return 0
        rows, counts, wanted, step = opened
        r = self._rows
        began = self._clock()
        try:
            copied = len(step.copies)
            tokens = r.tokens[rows if wanted is None else rows[step.token_seq], step.positions]
            at = None if wanted is None else _last(step, wanted)
            logits = self._model.forward(tokens, step, self._cache, at=at)
            best = self._likeliest(logits, rows, wanted)
            accepted, chosen = self._verify(rows, counts, wanted, logits, best)
            self._cache.commit(step, tokens, accepted)
        except BaseException:
            if not step.closed:  # an interrupt may come as late as when commit has done its work
                self._cache.abandon(step)
            raise
        plain = r.plain[rows]
        only_plain = wanted is None and np.count_nonzero(plain) == len(plain)
        prefilled = 0 if only_plain else int(np.clip(r.prompts[rows] - r.lengths[rows], 0, counts).sum())
        stored = counts if accepted is None else np.array([len(each) for each in accepted], np.int32)
        r.lengths[rows] += stored
        computed = len(rows) if wanted is None else int(stored.sum())
        self._count(copied, prefilled, computed, self._clock() - began)
        if observe:
            running = [sequence.row for sequence in self._scheduler.running]
            self._report.observe(self._cache, r.lengths[running], int(r.limits[running].sum()))
        if only_plain:
            self._advance_plain(rows, best)
        else:
            wanted = np.ones(len(rows), np.int32) if wanted is None else wanted
            self._advance(rows, wanted, plain & (wanted == 1), logits, best, chosen)
        return prefilled

    def _count(self, copied: int, prefilled: int, computed: int, seconds: float) -> None:
        report = self._report
        report.copied += copied
        report.prefilled_tokens += prefilled
        if prefilled:
            report.prefill_seconds += seconds
        else:
            report.decode_seconds += seconds
            report.decode_tokens += computed

    def _mend(self) -> None:
        """Agree with the cache again: whoever was not given what follows its last token computes that token again."""
        r = self._rows
        for sequence in self._scheduler.running.copy():
            row = sequence.row
            if row < 0:
                continue  # its search has begun again
            handle, last = int(r.ids[row]), int(r.totals[row]) - 1
            stored = self._cache.sequences.position(handle)
            if stored > last:
                # The whole last block goes: it may be published, and to write into it would take another block. But
                # beams have to stay side by side: one token of each is computed in any step, more may not be.
                stored = last if sequence.search is not None else last - last % self._cache.spec.block_size
                try:
                    self._cache.truncate([handle], stored)
                except PositionReleased:
                    self._texts.begin_again(sequence)
                    continue
            r.lengths[row] = stored
        for sampler, state in self._drawn.values():
            sampler.state = state
        self._drawn.clear()

    # -- before the model ---------------------------------------------------------------------------

    def _open(self, draft: Drafter | None) -> tuple[Places, Int32, Int32 | None, Step] | None:
        """Open a step, preempting where blocks are short; None where nobody is left."""
        scheduler = self._scheduler
        while scheduler.running:
            rows, counts, wanted = scheduler.plan(draft)
            try:
                return rows, counts, wanted, self._cache.extend(self._rows.ids[rows], counts)
            except OutOfBlocks:
                if draft is not None:  # guesses are worth no preemption
                    draft = None
                else:
                    scheduler.preempt()
        return None

    # -- between the model and the commit -----------------------------------------------------------

    def _likeliest(self, logits: Logits, rows: Places, wanted: Int32 | None) -> Int32:
        """Return the likeliest token of each row of logits; refuse any that cannot be compared."""
        best: Int32 = logits.argmax(axis=1).astype(np.int32)  # NaN compares as the largest here
        largest = logits[np.arange(len(best)), best]
        if not isfinite(np.add.reduce(largest, dtype=np.float64)):
            bad = int(np.argmin(np.isfinite(largest)))
            of = rows if wanted is None else np.repeat(rows, wanted)
            owner = self._rows.owners[int(of[bad])]
            number = owner.request.number if owner is not None else -1
            raise ValueError(
                f"request {number}: the largest logit is {largest[bad]}, of token {best[bad]}; it must be finite"
            )
        return best

    def _verify(
        self, rows: Places, counts: Int32, wanted: Int32 | None, logits: Logits, best: Int32
    ) -> tuple[list[Int32] | None, dict[int, list[int]]]:
        """Compare guesses with what the model chooses.

        Returns
        -------
        list of int32 arrays or None
            Which of each row's new tokens stay; None: all.
        dict
            By row, the tokens chosen where there were guesses: those that were right, and one more.
        """
        if wanted is None or not len(guessing := np.flatnonzero(wanted > 1)):
            return None, {}
        accepted = [np.arange(count, dtype=np.int32) for count in counts]
        chosen: dict[int, list[int]] = {}
        begins = np.cumsum(wanted) - wanted
        for i in guessing.tolist():
            row, begin = int(rows[i]), int(begins[i])
            owner = self._rows.owners[row]
            assert owner is not None
            total = int(self._rows.totals[row])
            guess = self._rows.tokens[row, total : total + wanted[i] - 1].tolist()
            taken: list[int] = []
            if not owner.sampler.greedy:
                self._drawn[row] = owner.sampler, owner.sampler.state
            for k, expected in enumerate([*guess, None]):
                at = begin + k
                token = int(best[at]) if owner.sampler.greedy else owner.sampler(logits[at])
                taken.append(token)
                if token != expected:
                    break
            chosen[row] = taken
            accepted[i] = np.arange(int(counts[i]) - len(guess) + len(taken) - 1, dtype=np.int32)
            self._report.guessed_tokens += len(guess)
            self._report.accepted_tokens += len(taken) - 1
        return accepted, chosen

    # -- after the commit ---------------------------------------------------------------------------

    def _advance(
        self,
        rows: Places,
        wanted: Int32,
        plain: NDArray[np.bool_],
        logits: Logits,
        best: Int32,
        chosen: dict[int, list[int]],
    ) -> None:
        """Give every sequence whose tokens are computed the next ones."""
        r = self._rows
        begins = np.cumsum(wanted) - wanted
        self._advance_plain(rows[plain], best[begins[plain]])
        place: dict[int, int] = {}  # of a row's logits
        searches: dict[int, Search] = {}
        for i in np.flatnonzero((wanted > 0) & ~plain).tolist():
            row, at = int(rows[i]), int(begins[i])
            place[row] = at
            sequence = r.owners[row]
            assert sequence is not None
            if sequence.search is not None:
                searches[id(sequence.search)] = sequence.search
            elif row in chosen:
                self._drawn.pop(row, None)
                self._texts.give(sequence, chosen[row])
            else:
                for each in [sequence, *self._part(sequence)]:
                    self._texts.give(each, [each.sampler(logits[at])])
        for search in searches.values():
            self._continue(search, logits[[place[row] for row in search.rows]])

    def _advance_plain(self, rows: Places, tokens: Int32) -> None:
        r = self._rows
        totals = r.totals[rows]
        r.tokens[rows, totals] = tokens
        totals += 1
        r.totals[rows] = totals
        self._report.new_tokens += len(rows)
        done = totals == r.limits[rows]
        if self._texts.ends:
            ended = r.ends[rows] & np.logical_or.reduce([tokens == end for end in self._texts.ends])
            done |= ended
        for i in done.nonzero()[0].tolist():
            sequence = r.owners[int(rows[i])]
            assert sequence is not None
            if self._texts.ends and ended[i]:
                r.totals[sequence.row] -= 1
                self._texts.finish(sequence, Finish.END)
            else:
                self._texts.finish(sequence, Finish.LENGTH)

    def _part(self, sequence: Sequence) -> list[Sequence]:
        """Make the other samples of a prompt, once, when it is computed."""
        request, r = sequence.request, self._rows
        if request.width == 1 or r.totals[sequence.row] > len(request.prompt) or len(self._scheduler.of(request)) > 1:
            return []
        return self._fork(sequence, request.width - 1)

    def _fork(self, sequence: Sequence, count: int) -> list[Sequence]:
        r, request = self._rows, sequence.request
        handles = self._cache.fork([r.ids[sequence.row]], count)[0] if count else []
        tokens = r.known(sequence.row)
        others = [self._texts.sequence(request, sample, None, sequence.search) for sample in range(1, count + 1)]
        for other, handle in zip(others, handles, strict=True):
            self._scheduler.add(other, int(handle), tokens, int(r.lengths[sequence.row]))
        return others

    def _continue(self, search: Search, logits: Logits) -> None:
        """Continue the beams of a request."""
        r, beams = self._rows, copy(search.beams)
        first = r.owners[search.rows[0]]
        assert first is not None
        try:
            parents = beams.advance(logits)
        except ValueError as error:
            raise ValueError(f"request {first.request.number}: {error}") from None
        if not beams.done:
            if len(search.rows) < len(parents):
                search.rows += [each.row for each in self._fork(first, len(parents) - 1)]
            else:
                self._cache.reorder(r.ids[search.rows], parents)
        search.beams = beams
        self._texts.mark(first.request)
        self._report.new_tokens += len(beams.live)
        if beams.done:
            self._texts.finish(first, Finish.LENGTH)
            return
        for row, (token,) in zip(search.rows, beams.last_tokens, strict=True):
            r.tokens[row, r.totals[row]] = token
            r.totals[row] += 1


def _last(step: Step, wanted: Int32) -> NDArray[np.intp]:
    """Return the places of the last `wanted` new tokens of each sequence."""
    ends = step.qo_indptr[1:]
    return np.arange(wanted.sum()) + np.repeat(ends - np.cumsum(wanted), wanted)
