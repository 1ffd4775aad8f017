"""Who runs: admission, what each step computes, and who gives way when blocks run out.

Requests are served by priority, then in the order they came. Three rules decide when one is admitted:

- Its prompt, or what it had when it was preempted, and one token more must fit into the blocks that are free, less the
  watermark: a reserve without which those that run would soon take the newcomer's blocks away again.
- Where nobody may be preempted, and for beams, which cannot be, the blocks that it may come to hold in the worst case
  are promised to it, and all promises together must fit. They are promised and not allocated: the cache holds what is
  stored and no more.
- It waits while a block that it shares with a running prompt is still to be computed, because then it will find that
  block in the prefix cache.

Nobody overtakes: while one waits, those behind it wait too. A cache in which the caller keeps sequences of his own
works as well: what they hold when the engine has nothing to do is not given out.
"""

import secrets
from bisect import insort

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import AdmitStatus
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._rows import Rows, Sequence
from pagedcache.serving.drafting import Drafter
from pagedcache.serving.requests import Request


def _key(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.key


class Scheduler:
    """The waiting and the running sequences of one engine.

    Parameters
    ----------
    cache : KVCache
    step_tokens : int
        Most prompt tokens of a step.
    preemption : {"recompute", "swap", "never"}
    watermark : float
        Share of the blocks that an admission leaves free, where others run.
    static : bool
        Admit only when nothing runs.
    share : bool
        Look for what other requests have left in the prefix cache.
    """

    def __init__(
        self, cache: KVCache, step_tokens: int, preemption: str, watermark: float, static: bool, share: bool
    ) -> None:
        self.rows = Rows(cache.sequences.max_sequences)
        self.running: list[Sequence] = []  # in the order of their keys, as are those that wait
        self.waiting: list[Sequence] = []
        self._cache, self._step_tokens = cache, step_tokens
        self.never_preempts = preemption == "never"
        self._swaps, self._static = preemption == "swap", static
        self._private = None if share else secrets.token_hex(8)  # of the namespaces in which each finds its own alone
        self._watermark = int(watermark * cache.num_blocks)
        self._order: NDArray[np.intp] | None = None  # rows of those that run; None: to be listed anew
        self._failed: tuple[Sequence | None, int] = None, 0  # who did not fit last, and into how many blocks
        self._started = 0  # requests that have been admitted and are not done
        self.measure()

    def measure(self) -> None:
        """Find out what there is to give, where nothing of it is given."""
        if not self._started:
            table = self._cache.sequences
            self.num_blocks = self._free_blocks = (
                self._cache.pool.num_free
            )  # that the caller does not hold; not promised
            self.num_rows = self._free_rows = table.max_sequences - table.num_sequences  # the same; not kept

    def queue(self, sequence: Sequence) -> None:
        """Put a sequence in line."""
        insort(self.waiting, sequence, key=_key)

    def admit(self) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """Let those in who may run.

        Returns
        -------
        list of (Sequence, int)
            Those whose request is admitted for the first time, and the prompt tokens that were found.
        list of Sequence
            Those who wait for nothing that will ever come: others hold the memory, and nobody of ours does.
        """
        self.measure()
        new: list[tuple[Sequence, int]] = []
        if self._static and self.running:
            return new, []
        while True:
            for sequence in self.waiting.copy():
                first = sequence.request.started is None
                found = self._start(sequence)
                if found is None and self.running:
                    break
                if found is not None:
                    self.waiting.remove(sequence)
                    self._run(sequence)
                    if first:
                        new.append((sequence, found))
            if self.running or not self.waiting:
                return new, []
            swapped = [sequence for sequence in self.waiting if sequence.swapped]
            if not swapped:
                return new, [self.waiting[0]]
            self._forget(swapped[-1])  # what it shares with others that wait is still in the cache

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
        counts = pending
        many = pending > 1
        if not np.count_nonzero(many):
            if draft is None:
                return rows, counts, None
        else:
            asked = np.where(many, pending, 0)
            room = self._step_tokens - (np.cumsum(asked) - asked)
            counts = np.where(many, np.clip(room, 0, pending), pending).astype(np.int32)
            some = counts > 0
            rows, counts, pending = rows[some], counts[some], pending[some]
        wanted = (counts == pending).astype(np.int32)
        if draft is not None:
            for i in np.flatnonzero(pending == 1).tolist():
                guessed = self._guess(int(rows[i]), draft)
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
        victims = [sequence for sequence in self.running if sequence.search is None]
        if self.never_preempts or not victims:
            raise OutOfBlocks(
                f"those that run need more than the {self._cache.pool.num_free} blocks that are free: others took what "
                "was promised to them; release it, or let the engine preempt"
            )
        sequence = victims[-1]
        sequence.request.preemptions += 1
        if self._swaps and len(self.running) > 1:  # one that runs alone would soon be back, and no further
            self._cache.swap_out([self.rows.ids[sequence.row]])
            sequence.swapped = True
            self._stop(sequence)
        else:
            self._forget(sequence)
        self.queue(sequence)

    def add(self, sequence: Sequence, handle: int, tokens: NDArray[np.int32], stored: int) -> None:
        """Let a sequence run whose blocks are there: a fork."""
        self.rows.add(sequence, handle, tokens, stored)
        self._run(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.row >= 0:
            self._forget(sequence)

    def finish(self, request: Request) -> None:
        """Take back what was kept for a request."""
        if request.started is not None:
            self._started -= 1
            self._free_rows += request.width
            self._free_blocks += request.blocks if self._promises(request) else 0

    def _run(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=_key)
        self._order = None

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._order = None

    def _forget(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence, here or elsewhere; it keeps its tokens."""
        sequence.tokens = self.rows.known(sequence.row).copy()
        if not sequence.swapped:
            self._stop(sequence)
        self._cache.release([self.rows.ids[sequence.row]])
        self.rows.remove(sequence)
        sequence.swapped = False

    def _promises(self, request: Request) -> bool:
        return request.beams or self.never_preempts

    def _start(self, sequence: Sequence) -> int | None:
        """Admit a sequence, if there is room; return how many of its tokens were found."""
        if sequence.swapped:
            return self._return(sequence)
        request, tokens = sequence.request, sequence.tokens
        assert tokens is not None
        first, promised = request.started is None, self._promises(request)
        if first and (request.width > self._free_rows or (promised and request.blocks > self._free_blocks)):
            return None
        if not (promised or self._fits(sequence, tokens)) or self._is_being_computed(tokens):
            return None
        admission = self._cache.admit([tokens], namespace=self._namespace(request))
        if admission.status[0] != AdmitStatus.ADMITTED:
            return None
        if first:
            self._started += 1
            self._free_rows -= request.width
            self._free_blocks -= request.blocks if promised else 0
        self.rows.add(sequence, int(admission.ids[0]), tokens, int(admission.cached[0]))
        sequence.tokens = None
        return int(admission.cached[0])

    def _return(self, sequence: Sequence) -> int | None:
        """Bring the blocks of a sequence back that were moved away."""
        try:
            self._cache.swap_in([self.rows.ids[sequence.row]])
        except OutOfBlocks:
            return None
        sequence.swapped = False
        return 0

    def _namespace(self, request: Request) -> str | None:
        return None if self._private is None else f"{self._private}-{request.number}"

    def _fits(self, sequence: Sequence, tokens: NDArray[np.int32]) -> bool:
        free = self._cache.pool.num_free
        room = free - (self._watermark if self.running else 0)
        need = self._cache.spec.blocks_per_sequence(len(tokens) + 1)
        if need <= room:
            return True
        last, had = self._failed
        if self.running and last is sequence and free <= had:
            return False  # no block has come free since
        found = (
            int(self._cache.match([tokens], namespace=self._namespace(sequence.request))[0])
            // self._cache.spec.block_size
        )
        if need - found <= room:
            return True
        self._failed = sequence, free
        return False

    def _is_being_computed(self, tokens: NDArray[np.int32]) -> bool:
        """Whether a block that these tokens share with a running prompt, and that is not computed yet, soon will be."""
        if self._private is not None:
            return False
        size, r = self._cache.spec.block_size, self.rows
        for each in self.running:
            done, length = int(r.lengths[each.row]), min(int(r.prompts[each.row]), len(tokens) - 1)
            if done < length // size * size and (r.tokens[each.row, :size] == tokens[:size]).all():
                apart = np.flatnonzero(r.tokens[each.row, :length] != tokens[:length])
                shared = int(apart[0]) if len(apart) else length
                if done < shared // size * size:
                    return True
        return False

    def _guess(self, row: int, draft: Drafter) -> int:
        """Write guesses behind the tokens of a row; return how many."""
        r = self.rows
        owner, total = r.owners[row], int(r.totals[row])
        if owner is None or owner.search is not None or (owner.request.width > 1 and total == r.prompts[row]):
            return 0
        guess = draft(r.known(row))[: max(0, int(r.limits[row]) - total - 1)]
        r.tokens[row, total : total + len(guess)] = guess
        return len(guess)
