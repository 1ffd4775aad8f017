"""Choosing the next token from logits."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; the default is greedy.

    Parameters
    ----------
    temperature : float
        Logits are divided by it; 0 takes the most likely token.
    top_k : int, optional
        Only the k most likely tokens are eligible.
    top_p : float, optional
        Of those, only the most likely ones that together have at least this probability.
    seed : int, optional
        Makes the choices repeatable; without it they differ from run to run.

    Raises
    ------
    ValueError
        A value out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; it must be a finite number from 0 on")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be at least 0")


class Sampler:
    """Chooses the tokens of one sequence, with random numbers of its own.

    Parameters
    ----------
    sampling : Sampling
    stream : int
        Tells sequences with the same seed apart. The random numbers depend on the seed and these alone, not on
        which other sequences run or in what order.

    Examples
    --------
    >>> Sampler(Sampling())(np.array([0.0, 2.0, 1.0]))
    1
    >>> first, again = (Sampler(Sampling(temperature=1.0, seed=7), 0) for _ in range(2))
    >>> [first(np.zeros(9)) for _ in range(5)] == [again(np.zeros(9)) for _ in range(5)]
    True
    """

    def __init__(self, sampling: Sampling, *stream: int) -> None:
        self.sampling = sampling
        self._stream = stream

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token."""
        return self.sampling.temperature == 0

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.sampling.seed, spawn_key=self._stream))

    @property
    def state(self) -> dict[str, Any]:
        """Of its random numbers; set it to draw them once more."""
        return dict(self._random.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = state

    def __call__(self, logits: NDArray[np.floating]) -> int:
        """Choose a token.

        Parameters
        ----------
        logits : ndarray of float, shape [vocab]
            ``-inf`` marks a token that is not eligible. Of equal ones, greedy choice takes the first.

        Raises
        ------
        ValueError
            A logit is NaN or ``inf``, or none is finite.
        """
        best = int(np.argmax(logits))  # NaN compares as the largest here
        if not np.isfinite(logits[best]):
            raise ValueError(
                f"the largest of {logits.size} logits is {logits[best]}, of token {best}; it must be finite"
            )
        if self.greedy:
            return best
        tokens, weights = self._eligible(logits, best)
        total = np.cumsum(weights)
        # Rounding can leave a draw at the very end of the last sum.
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(tokens[min(drawn, tokens.size - 1)])

    def _eligible(self, logits: NDArray[np.floating], best: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the eligible tokens and their relative probabilities."""
        top_k, top_p = self.sampling.top_k, self.sampling.top_p
        tokens = np.arange(logits.size)
        if top_k is not None and top_k < logits.size:
            tokens = np.argpartition(-logits, top_k - 1)[:top_k]
        with np.errstate(over="ignore"):  # a tiny temperature makes -inf of all but the best, as it should
            weights = np.exp((logits[tokens].astype(np.float64) - float(logits[best])) / self.sampling.temperature)
        if top_p is not None:
            order = np.argsort(-weights, kind="stable")
            total = np.cumsum(weights[order])
            order = order[: int(np.searchsorted(total, top_p * total[-1])) + 1]
            tokens, weights = tokens[order], weights[order]
        return tokens, weights
