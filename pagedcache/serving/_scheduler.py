"""Who runs: admission, what each step computes, and who gives way when blocks run out.

Requests are served by priority, then in the order they came. Three rules decide when one is admitted:

- Its prompt, or what it had when it was preempted, and one token more must fit into the blocks that are free, less a
  reserve without which those that run would soon take the newcomer's blocks away again: the watermark, and at least a
  block for each of them.
- Where nobody may be preempted, and for beams, which cannot be, the blocks that it may come to hold in the worst case
  are promised to it, and all promises together must fit. They are promised and not allocated: the cache holds what is
  stored and no more.
- It waits while a block that it shares with a running prompt is still to be computed, because then it will find that
  block in the prefix cache.

Nobody overtakes: while one waits, those behind it wait too; but where nobody runs, those who fit are let in. What the
caller's own sequences hold when the engine has nothing to do is not given out.
"""

import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import AdmitStatus
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._line import Line
from pagedcache.serving._loads import Loads
from pagedcache.serving._needs import blocks_of, room_in, without_head
from pagedcache.serving._rows import Rows, Sequence
from pagedcache.serving.drafting import Drafter
from pagedcache.serving.requests import Request
from pagedcache.serving.results import Report


class Scheduler:
    """The waiting and the running sequences of one engine.

    Parameters
    ----------
    cache : KVCache
    step_tokens : int
        Most prompt tokens of a step.
    preemption : {"recompute", "swap", "never"}
    watermark : float
        Share of the blocks that an admission leaves free at least, where others run.
    static : bool
        Admit only when nothing runs.
    share : bool
        Look for what other requests have left in the prefix cache.
    report : Report
        Told what was found there.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        cache: KVCache,
        step_tokens: int,
        preemption: str,
        watermark: float,
        static: bool,
        share: bool,
        report: Report,
        clock: Callable[[], float],
    ) -> None:
        self.rows = Rows(cache.sequences.max_sequences, cache.spec.max_step_tokens)
        self.running, self.waiting = Line(), Line()
        self._cache, self._loads, self._step_tokens = cache, Loads(cache), step_tokens
        self._row_tokens = cache.spec.max_step_tokens or step_tokens  # most of one sequence: windows keep so many more
        self.never_preempts, self._swaps, self._static = preemption == "never", preemption == "swap", static
        self._private = None if share else secrets.token_hex(8)  # of the namespaces in which each finds its own alone
        self._report, self._clock = report, clock
        self._asynchronous = cache.storage is not None and not cache.backend.capabilities.synchronous
        self._watermark = int(watermark * cache.num_blocks)
        self._order: NDArray[np.intp] | None = None  # rows of those that run; None: to be listed anew
        self._failed: tuple[Sequence | None, int] = None, 0  # who did not fit last, and into how many blocks
        self._started = 0  # requests that have been admitted and are not done
        self.measure()

    def measure(self) -> None:
        """Find out what there is to give, where nothing of it is given."""
        self._loads.wait(unless=bool(self.running))
        self._retire()
        if not self._started:
            self.room = room_in(self._cache)  # that the caller does not hold
            self._free_blocks, self._free_rows = self.room  # of these, not promised to a request

    def queue(self, sequence: Sequence) -> None:
        """Put a sequence in line."""
        self.waiting.add(sequence)

    def admit(self) -> Sequence | None:
        """Let those in who may run.

        Returns
        -------
        Sequence or None
            One that waits for nothing that will ever come: others hold the memory, and nobody of ours does.
        """
        self.measure()
        if self._static and self.running:
            return None
        while True:
            at = 0
            while at < len(self.waiting):
                if self._start(self.waiting[at]):
                    continue  # it has left the line
                if self.running:
                    break
                at += 1
            if self.running or not self.waiting:
                return None
            swapped = [sequence for sequence in self.waiting if sequence.swapped]
            if not swapped:
                return self.waiting[0]
            self._forget(swapped[-1])  # what it shares with others that wait is still in the cache
            self._retire()

    def plan(self, draft: Drafter | None) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.int32] | None]:
        """Say which rows compute how many tokens, and how many logits each needs.

        Returns
        -------
        rows : intp [n]
        counts : int32 [n]
            New tokens; of a row that has guesses, one and these.
        wanted : int32 [n] or None
            After the last so many of them logits are wanted: 0 where the prompt goes on in another step. None: every
            row computes one token and wants what follows it.
        """
        if self._order is None:
            self._order = np.array([sequence.row for sequence in self.running], np.intp)
        r, rows = self.rows, self._order
        pending = r.totals[rows] - r.lengths[rows]
        counts, many = pending, pending > 1
        if not np.count_nonzero(many):
            if draft is None:
                return rows, counts, None
        else:
            asked = np.where(many, np.minimum(pending, self._row_tokens), 0)
            room = self._step_tokens - (np.cumsum(asked) - asked)
            counts = np.where(many, np.clip(room, 0, asked), pending).astype(np.int32)
            some = counts > 0
            rows, counts, pending = rows[some], counts[some], pending[some]
        wanted = (counts == pending).astype(np.int32)
        if draft is not None:
            for i in np.flatnonzero(pending == 1).tolist():
                guessed = r.guess(int(rows[i]), draft)
                counts[i] += guessed
                wanted[i] += guessed
        return rows, counts, wanted

    def preempt(self) -> None:
        """Take the blocks of the last one that runs; it waits, and goes on later as if nothing had been.

        Raises
        ------
        OutOfBlocks
            Nobody may be preempted.
        """
        if self._loads.cut_short():
            return self._retire()
        victims = [sequence for sequence in self.running if sequence.search is None]
        swapped = [sequence for sequence in self.waiting if sequence.swapped]  # they keep the blocks that they share
        if self.never_preempts or not (victims or swapped):
            raise OutOfBlocks(
                f"those that run need more than the {self._cache.pool.num_free} blocks that are free: others took what "
                "was promised to them; release it, or let the engine preempt"
            )
        if not victims:
            self._forget(swapped[-1])
            return self._retire()
        sequence = victims[-1]
        if self._swaps and len(self.running) > 1:  # one that runs alone would soon be back, and no further
            self._cache.swap_out([self.rows.ids[sequence.row]])
            sequence.swapped = True
            self._stop(sequence)
        else:
            self._forget(sequence)
        sequence.request.preemptions += 1
        self._report.preemptions += 1
        self.queue(sequence)
        self._retire()

    def add(self, sequence: Sequence, handle: int, tokens: NDArray[np.int32], stored: int) -> None:
        """Let a sequence run whose blocks are there."""
        self.rows.add(sequence, handle, tokens, stored)
        self._run(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        self._loads.give_up(sequence)
        if sequence.waits:
            self.waiting.take(sequence)
        if sequence.row >= 0:
            self._forget(sequence)

    def of(self, request: Request) -> list[Sequence]:
        """Return the sequences of a request, those that run first."""
        return self.running.of(request) + self.waiting.of(request)

    def finish(self, request: Request) -> None:
        """Take back what was kept for a request."""
        if request.started is not None:
            self._started -= 1
            self._free_rows += request.width
            self._free_blocks += request.blocks if self._promises(request) else 0

    def _run(self, sequence: Sequence) -> None:
        self.running.add(sequence)
        self._order = None

    def _stop(self, sequence: Sequence) -> None:
        self.running.take(sequence)
        self._order = None

    def _forget(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence, here or elsewhere; it keeps its tokens."""
        sequence.tokens = self.rows.known(sequence.row).copy()
        self._cache.release([self.rows.ids[sequence.row]])
        if not sequence.swapped:
            self._stop(sequence)
        self.rows.remove(sequence)
        sequence.swapped = False

    def _promises(self, request: Request) -> bool:
        return request.beams or self.never_preempts

    def _start(self, sequence: Sequence) -> bool:
        """Let a sequence run, if there is room."""
        if sequence.swapped:
            return self._return(sequence)
        request, tokens = sequence.request, sequence.tokens
        assert tokens is not None
        first, promised = request.started is None, self._promises(request)
        if first and (request.width > self._free_rows or (promised and request.blocks > self._free_blocks)):
            return False
        if not (promised or self._fits(sequence, tokens)) or self._is_being_computed(tokens):
            return False
        namespace = self._namespace(request)
        if not self._loads.are_done(sequence, tokens, namespace, wait=not self.running):
            return False
        self.rows.widen(len(request.prompt) + request.limit)
        admission = self._cache.admit([tokens], namespace=namespace)
        if admission.status[0] != AdmitStatus.ADMITTED:
            return False
        found = without_head(self._cache, admission) if promised else int(admission.cached[0])
        self.waiting.take(sequence)
        self.add(sequence, int(admission.ids[0]), tokens, found)
        sequence.tokens = None
        if first:
            self._started += 1
            self._free_rows -= request.width
            self._free_blocks -= request.blocks if promised else 0
            self._report.reused_tokens += found
            request.found_tokens, request.started = found, self._clock()
        return True

    def _return(self, sequence: Sequence) -> bool:
        """Bring the blocks of a sequence back that were moved away."""
        try:
            self._cache.swap_in([self.rows.ids[sequence.row]])
        except OutOfBlocks:
            return False
        self.waiting.take(sequence)
        sequence.swapped = False
        self._run(sequence)
        return True

    def _retire(self) -> None:
        """Get back blocks that work in flight held: logits were read, so there is little to wait for."""
        if self._asynchronous:
            self._cache.synchronize()

    def _namespace(self, request: Request) -> str | None:
        return None if self._private is None else f"{self._private}-{request.number}"

    def _fits(self, sequence: Sequence, tokens: NDArray[np.int32]) -> bool:
        free = self._cache.pool.num_free
        room = free - (max(self._watermark, len(self.running)) if self.running else 0)
        need = blocks_of(self._cache, min(len(tokens) + 1, len(sequence.request.prompt) + sequence.request.limit - 1))
        if need <= room:
            return True
        last, had = self._failed
        if self.running and last is sequence and free <= had:
            return False  # no block has come free since
        found = int(self._cache.match([tokens], namespace=self._namespace(sequence.request))[0])
        if need - found // self._cache.spec.block_size <= room:
            return True
        self._failed = sequence, free
        return False

    def _is_being_computed(self, tokens: NDArray[np.int32]) -> bool:
        """Whether a block that these tokens share with a running prompt, and that is not computed yet, soon will be."""
        size = self._cache.spec.block_size
        if self._private is not None or len(tokens) <= size:
            return False
        return self.rows.will_share(np.array([each.row for each in self.running], np.intp), tokens, size)
