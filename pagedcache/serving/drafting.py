"""Guessing what a text goes on with, for a model to verify several tokens in one step."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pagedcache.spec import CacheSpec

__all__ = ["Drafter", "PromptLookup"]


class Drafter(Protocol):
    """Proposes tokens; a wrong guess costs time and changes nothing."""

    def __call__(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return what may follow the tokens of one sequence, prompt included; possibly nothing.

        `tokens` is read-only, and another text's soon.
        """


def checked(draft: Drafter, vocab: int, spec: CacheSpec) -> Drafter:
    """Return a drafter whose guesses a model of so many tokens can compute: they end before the first that it lacks.

    Refused where the cache keeps states: wrong guesses could not be rolled back.
    """
    if spec.state_groups:
        raise ValueError(
            f"draft guesses tokens, and group {spec.state_groups[0].name!r} keeps a state, which cannot be rolled back "
            "to before a wrong one: leave draft out"
        )

    def guess(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        tokens.flags.writeable = False
        found = np.asarray(draft(tokens))
        if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
            raise TypeError(f"the drafter returned {found.dtype} of shape {found.shape}; guesses are a row of integers")
        foreign = (found < 0) | (found >= vocab)
        return (found[: foreign.argmax()] if foreign.any() else found).astype(np.int32)

    return guess


class PromptLookup:
    """Goes on as the text did when its last few tokens last occurred (A. Saxena, Prompt Lookup Decoding, 2023).

    Good where texts repeat their prompt: summaries, edits, questions about a document.

    Parameters
    ----------
    count : int
        Most tokens of a proposal.
    longest, shortest : int
        How many last tokens have to occur before: the longest that do are taken.

    Examples
    --------
    >>> PromptLookup(count=3)(np.array([7, 1, 2, 3, 4, 9, 1, 2], np.int32))
    array([3, 4, 9], dtype=int32)
    >>> PromptLookup()(np.array([1, 2, 3], np.int32))
    array([], dtype=int32)
    """

    def __init__(self, count: int = 4, *, longest: int = 3, shortest: int = 2) -> None:
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        if not 1 <= shortest <= longest:
            raise ValueError(f"shortest is {shortest} and longest {longest}; they must be 1 <= shortest <= longest")
        self.count, self.longest, self.shortest = count, longest, shortest

    def __call__(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return up to `count` tokens that followed the latest occurrence after which there are so many."""
        ends = np.flatnonzero(tokens[:-1] == tokens[-1:])  # of occurrences of the last token, then of the last two, ...
        follows = len(tokens)
        for length in range(1, self.longest + 1):
            if length > 1:
                ends = ends[ends >= length - 1]
                ends = ends[tokens[ends - length + 1] == tokens[-length]]
            if not ends.size:
                break
            if length >= self.shortest:
                whole = ends[ends + self.count < len(tokens)]
                follows = int(whole[-1] if whole.size else ends[0]) + 1
        return tokens[follows : follows + self.count]
