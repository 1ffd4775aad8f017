"""What a trace tells of requests: when they came, how long they were, which blocks of their prompts were alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._sizes import integer

__all__ = ["MAX_TOKENS", "Trace"]

MAX_TOKENS = 2**30  # of a prompt or an answer: lengths are summed in int64 and kept by the core in int32


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order in which they came.

    Attributes
    ----------
    name : str
        Of the file, or of the trace that comes with the package.
    prompts, outputs : int64 [n]
        Tokens of each prompt and of each answer.
    arrivals : float64 [n], or None
        Seconds since the first request.
    blocks : tuple of n int32 arrays, or None
        What the blocks of each prompt hold, as numbers from 0 on. A number stands for a block *and* all before it: two
        prompts have a number in common where, and only where, they are alike from the first token to the end of
        that block.
    block_size : int, or None
        Tokens of a block; the last one of a prompt may be shorter.

    Examples
    --------
    >>> trace = Trace("two", np.array([20, 40]), np.array([5, 6]))
    >>> len(trace), int(trace.prompts.sum())
    (2, 60)
    """

    name: str
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    arrivals: NDArray[np.float64] | None = None
    blocks: tuple[NDArray[np.int32], ...] | None = None
    block_size: int | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def num_blocks(self) -> int:
        """How many different blocks there are; 0 where the trace does not tell."""
        return max((int(ids.max()) + 1 for ids in self.blocks or () if len(ids)), default=0)

    @property
    def num_accesses(self) -> int:
        """How many blocks the prompts have in sum; 0 where the trace does not tell."""
        return sum(map(len, self.blocks or ()))

    def select(self, requests: int, *, max_length: int | None = None, seed: int | None = None) -> "Trace":
        """Return requests that have an answer, and no more than `max_length` tokens in all.

        Parameters
        ----------
        requests : int
            At most so many; with a seed, exactly.
        max_length : int, optional
            Most tokens of prompt and answer together.
        seed : int, optional
            Draw the requests at random, the same one perhaps several times, instead of taking the first ones.
            Arrivals and blocks, which lose their meaning, are dropped.

        Raises
        ------
        ValueError
            No request is left.
        """
        integer("requests", requests)
        fits = self.outputs > 0
        if max_length is not None:
            fits &= self.prompts + self.outputs <= max_length
        kept = np.flatnonzero(fits)
        if not len(kept):
            limit = "" if max_length is None else f" and at most {max_length} tokens"
            raise ValueError(f"{self.name}: none of its {len(self)} requests has an answer{limit}")
        if seed is not None:
            kept = kept[np.random.default_rng(seed).integers(0, len(kept), requests)]
            return Trace(self.name, self.prompts[kept], self.outputs[kept])
        return self._take(kept[:requests])

    def first(self, requests: int) -> "Trace":
        """Return the first requests, at most so many, whatever their lengths."""
        return self._take(np.arange(min(integer("requests", requests), len(self))))

    def _take(self, kept: NDArray[np.int64]) -> "Trace":
        return Trace(
            self.name,
            self.prompts[kept],
            self.outputs[kept],
            None if self.arrivals is None else self.arrivals[kept],
            None if self.blocks is None else tuple(self.blocks[i] for i in kept),
            self.block_size,
        )

    def summary(self) -> dict[str, Any]:
        """Return the figures that tell a workload: counts, and mean, median and 99th percentile of the lengths."""
        figures: dict[str, Any] = {"name": self.name, "requests": len(self)}
        for what, lengths in (("prompt", self.prompts), ("output", self.outputs)):
            figures[f"{what}_mean"] = float(lengths.mean())
            figures[f"{what}_p50"], figures[f"{what}_p99"] = (float(q) for q in np.percentile(lengths, [50, 99]))
        if self.arrivals is not None:
            figures["seconds"] = float(self.arrivals.max())
        if self.blocks is not None:
            figures |= {"block_size": self.block_size, "block_accesses": self.num_accesses}
            figures["different_blocks"] = len(np.unique(np.concatenate(self.blocks)))
        return figures
