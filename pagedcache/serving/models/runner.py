"""What the loops of `pagedcache.serving` need of a model."""

from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from pagedcache.spec import CacheSpec

__all__ = ["Model", "Runner", "RunnerConfig"]


class RunnerConfig(Protocol):
    """The sizes of a model that loops look at."""

    @property
    def context(self) -> int:
        """Tokens, the longest sequence that it takes."""

    @property
    def vocab(self) -> int:
        """Its tokens are 0 to vocab - 1."""


class Runner(Protocol):
    """A model that computes the new tokens of a step on a cache; `LlamaModel` and `GemmaModel` are two."""

    @property
    def config(self) -> RunnerConfig:
        """Its sizes."""

    def forward(self, tokens: ArrayLike, step: Any, cache: Any, *, at: ArrayLike | None = None) -> NDArray[Any]:
        """Compute the step's new tokens; return logits, [len(at), vocab] or of the last one of each sequence."""


class Model(Runner, Protocol):
    """A runner that says what cache it needs, as every model that `load_model` loads."""

    def cache_spec(self, *, dtype: str = "float32", block_size: int = 16) -> CacheSpec:
        """Return the shape of the cache for its keys and values."""
