"""The running sequences of an engine as rows of arrays, so that a step costs a few array operations and no loop."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pagedcache.serving._beams import Beams
from pagedcache.serving._text import Text
from pagedcache.serving.drafting import Drafter
from pagedcache.serving.requests import Request
from pagedcache.serving.results import Completion
from pagedcache.serving.sampler import Sampler

if TYPE_CHECKING:
    from pagedcache._prefetch import Prefetch


@dataclass(slots=True, eq=False)
class Sequence:
    """One text on its way: waiting with its tokens, or running in a row of `Rows`."""

    request: Request
    sample: int
    completion: Completion  # of a search, the first one
    sampler: Sampler
    text: Text | None  # where there is a tokenizer
    tokens: NDArray[np.int32] | None  # of one that waits: the prompt, and what was chosen before it was preempted
    search: "Search | None" = None
    row: int = -1
    load: "Prefetch | None" = None  # of one that waits, what the cache's tiers have of it
    swapped: bool = False  # its blocks are elsewhere; it waits, and keeps its row
    told: tuple[int, int] = (0, 0)  # tokens and characters that the request's callback has been given

    @property
    def waits(self) -> bool:
        """Whether it waits, and does not run."""
        return self.row < 0 or self.swapped

    @property
    def key(self) -> tuple[int, int, int]:
        """Who comes first: the higher priority, then the earlier request, then the earlier sample."""
        return (-self.request.priority, self.request.number, self.sample)


@dataclass(slots=True, eq=False)
class Search:
    """The beams of one request; its sequences share this object."""

    beams: Beams
    rows: list[int] = field(default_factory=list)  # in the order of the live hypotheses


class Rows:
    """Room for `count` sequences, of which a step has at most `max_step_tokens` each.

    Attributes
    ----------
    ids : int64 [count]
        Handles in the cache.
    lengths, totals, limits, prompts : int32 [count]
        Tokens stored, known, and the most there may be; of these, the prompt's.
    tokens : int32 [count, width]
        Of each sequence its known tokens, and what is guessed to follow; what comes after them is anything.
    plain : bool [count]
        The likeliest token is chosen, and nobody looks at it before the text ends; not before the first one, with which
        samples part.
    ends : bool [count]
        End tokens end the text.
    owners : list of Sequence or None
    """

    def __init__(self, count: int, max_step_tokens: int | None = None) -> None:
        self._max_step_tokens = max_step_tokens
        self.ids = np.zeros(count, np.int64)
        self.lengths, self.totals, self.limits, self.prompts = (np.zeros(count, np.int32) for _ in range(4))
        self.tokens = np.zeros((count, 64), np.int32)
        self.plain, self.ends = np.zeros(count, bool), np.zeros(count, bool)
        self.owners: list[Sequence | None] = [None] * count
        self._vacant = list(range(count))[::-1]

    def add(self, sequence: Sequence, handle: int, tokens: NDArray[np.int32], stored: int) -> None:
        """Give a sequence a row, which is wide enough."""
        row = sequence.row = self._vacant.pop()
        request = sequence.request
        if sequence.search is not None and not sequence.search.rows:
            sequence.search.rows.append(row)
        self.owners[row] = sequence
        self.ids[row] = handle
        self.lengths[row], self.totals[row], self.prompts[row] = stored, len(tokens), len(request.prompt)
        self.limits[row] = len(request.prompt) + request.limit
        self.tokens[row, : len(tokens)] = tokens
        self.ends[row] = request.ends
        self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Find out whether a sequence is plain."""
        request, row = sequence.request, sequence.row
        followed = bool(request.on_piece or request.stop or request.beams)
        self.plain[row] = self.totals[row] > self.prompts[row] and sequence.sampler.greedy and not followed

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence's row back."""
        self.owners[sequence.row] = None
        self._vacant.append(sequence.row)
        sequence.row = -1

    def known(self, row: int) -> NDArray[np.int32]:
        """Return the tokens of a row, a view."""
        return self.tokens[row, : self.totals[row]]

    def will_share(self, rows: NDArray[np.intp], tokens: NDArray[np.int32], size: int) -> bool:
        """Whether a prompt of these rows shares a block of `size` tokens with others that it has yet to compute."""
        rows = rows[(self.lengths[rows] < self.prompts[rows]) & (self.prompts[rows] >= size)]
        if not len(rows):  # and the rows may be shorter than a block
            return False
        for row in rows[(self.tokens[rows, :size] == tokens[:size]).all(axis=1)].tolist():
            length = min(int(self.prompts[row]), len(tokens) - 1)
            apart = np.flatnonzero(self.tokens[row, :length] != tokens[:length])
            shared = int(apart[0]) if len(apart) else length
            if self.lengths[row] < shared // size * size:
                return True
        return False

    def guess(self, row: int, draft: Drafter) -> int:
        """Write guesses behind the tokens of a row; return how many."""
        owner, total = self.owners[row], int(self.totals[row])
        if owner is None or owner.search is not None or (owner.request.width > 1 and total == self.prompts[row]):
            return 0
        most = int(self.limits[row]) - total - 1
        if self._max_step_tokens is not None:
            most = min(most, self._max_step_tokens - 1)  # they come with the last token, which is not stored yet
        guess = draft(self.known(row))[: max(0, most)]
        self.tokens[row, total : total + len(guess)] = guess
        return len(guess)

    def widen(self, width: int) -> None:
        """Make room for so many tokens of a sequence."""
        if width > self.tokens.shape[1]:
            wider = np.zeros((len(self.tokens), width + width // 4), np.int32)  # few texts are longer yet
            wider[:, : self.tokens.shape[1]] = self.tokens
            self.tokens = wider
