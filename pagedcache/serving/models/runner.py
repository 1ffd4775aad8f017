"""What the loops of `pagedcache.serving` need of a model."""

from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

__all__ = ["Runner", "RunnerConfig"]


class RunnerConfig(Protocol):
    """The sizes of a model that loops look at."""

    @property
    def context(self) -> int:
        """Tokens, the longest sequence that it takes."""

    @property
    def vocab(self) -> int:
        """Its tokens are 0 to vocab - 1."""


class Runner(Protocol):
    """A model that computes the new tokens of a step on a cache; `LlamaModel` is one."""

    @property
    def config(self) -> RunnerConfig:
        """Its sizes."""

    def forward(self, tokens: ArrayLike, step: Any, cache: Any, *, at: ArrayLike | None = None) -> NDArray[Any]:
        """Compute the step's new tokens; return logits, [len(at), vocab] or of the last one of each sequence."""
