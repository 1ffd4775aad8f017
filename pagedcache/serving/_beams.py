"""The bookkeeping of a beam search: which hypotheses live, which are finished, what follows from new logits.

It knows no cache and no model. A hypothesis's sum is that of the log-probabilities of its new tokens, the one that
ended it included; its score is ``sum / length ** length_penalty``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One continuation of the prompt."""

    tokens: tuple[int, ...]  # without the one that ended it
    sum: float  # of log-probabilities
    score: float
    ended: bool


class Beams:
    """A beam search over one prompt.

    Each turn ranks every continuation of every live hypothesis by one token. From the best on, those that end the text
    are finished, and the others live on, until `width` do. The search is done when the live ones are `limit` tokens
    long; or sooner, when none of them can come to be among the `keep` best. So stopping early never changes what is
    found. Ties go to the better parent, then the lower token.

    Parameters
    ----------
    width : int
        Live hypotheses.
    keep : int
        Hypotheses wanted at the end.
    limit : int
        Most new tokens of each.
    length_penalty : float
        Not below 0.
    ends : frozenset of int
        Tokens that end a text; at most ``vocab - width`` of them.

    Examples
    --------
    >>> beams = Beams(width=2, keep=1, limit=2, length_penalty=0.0, ends=frozenset())
    >>> beams.advance(np.log([[0.5, 0.4, 0.1]]))
    [0, 0]
    >>> beams.advance(np.log([[0.4, 0.3, 0.3], [0.8, 0.1, 0.1]]))  # what began second best ends best
    [1, 0]
    >>> beams.done, [each.tokens for each in beams.best()]
    (True, [(1, 0)])
    """

    def __init__(self, *, width: int, keep: int, limit: int, length_penalty: float, ends: frozenset[int]) -> None:
        self.live = [Hypothesis((), 0.0, 0.0, False)]
        self.done = False
        self._width, self._keep, self._limit = width, keep, limit
        self._length_penalty = length_penalty
        self._ends = ends
        self._finished: list[Hypothesis] = []  # the best ones, best first

    @property
    def last_tokens(self) -> list[list[int]]:
        """The newest token of each live hypothesis, whose K/V is not stored yet."""
        return [[each.tokens[-1]] for each in self.live]

    def advance(self, logits: NDArray[np.floating]) -> list[int]:
        """Continue the live hypotheses by one token.

        Parameters
        ----------
        logits : ndarray of float, shape [live, vocab]

        Returns
        -------
        list of int, `width` of them
            Which of the former live hypotheses each of the new ones continues.

        Raises
        ------
        ValueError
            A logit is not finite.
        """
        sums = np.array([each.sum for each in self.live])[:, None] + _log_softmax(logits)
        length = len(self.live[0].tokens) + 1
        live: list[Hypothesis] = []
        parents: list[int] = []
        for parent, token in self._ranked(sums):
            total = float(sums[parent, token])
            score = total / length**self._length_penalty
            before = self.live[parent].tokens
            if token in self._ends:
                self._finish(Hypothesis(before, total, score, True))
                continue
            live.append(Hypothesis((*before, token), total, score, False))
            parents.append(parent)
            if len(live) == self._width:
                break
        self.live = live
        self.done = length == self._limit or not self._can_improve()
        return parents

    def best(self) -> list[Hypothesis]:
        """Return the `keep` best hypotheses, finished or live, best first."""
        return self._sorted(self._finished + self.live)

    def _ranked(self, sums: NDArray[np.float64]) -> list[tuple[int, int]]:
        """Return (parent, token) of as many candidates as may be looked at, best first."""
        flat = sums.ravel()
        count = min(self._width + len(self.live) * len(self._ends), flat.size)
        least = np.partition(flat, -count)[-count]
        found = np.flatnonzero(flat >= least)  # in order, and with all that tie with the last one
        found = found[np.argsort(-flat[found], kind="stable")]
        return [(int(index) // sums.shape[1], int(index) % sums.shape[1]) for index in found]

    def _finish(self, hypothesis: Hypothesis) -> None:
        self._finished = self._sorted([*self._finished, hypothesis])

    def _sorted(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        return sorted(hypotheses, key=lambda each: -each.score)[: self._keep]  # stable: the earlier one wins a tie

    def _can_improve(self) -> bool:
        """Whether a live hypothesis may still come to beat the worst of the finished ones that are wanted."""
        if len(self._finished) < self._keep:
            return True
        # A sum only falls as the text grows, and it is below 0: at best the text grows for nothing.
        attainable: float = self.live[0].sum / self._limit**self._length_penalty
        return attainable > self._finished[-1].score


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Log-probabilities of each row, in float64."""
    if not np.isfinite(logits).all():
        row, token = np.argwhere(~np.isfinite(logits))[0]
        raise ValueError(f"the logit of token {token} is {logits[row, token]}; it must be finite")
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
