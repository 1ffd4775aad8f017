"""A model that computes nothing and moves a clock instead, by what a machine would take.

The machine reads its weights and the K and V of every sequence of the step, and multiplies every new token with all
weights::

    seconds = max((weights_nbytes + tokens in the step's sequences * bytes_per_token) / bandwidth,
                  new tokens * 2 * parameters / flops)

which leaves out attention's own products and all overheads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.serving.models import RunnerConfig

__all__ = ["SimulatedModel"]

NEW = 1  # the token that it writes


@dataclass(frozen=True)
class SimulatedConfig:
    """The sizes of a model that is not there."""

    context: int
    vocab: int = 1 << 30


class SimulatedModel:
    """A model that takes time and writes one and the same token.

    Parameters
    ----------
    context : int
        Tokens, the longest sequence.
    weights_nbytes, bytes_per_token : int
        Bytes of the weights; bytes of K and V of a token in all layers.
    bandwidth : float
        Bytes a second. By default an A100's 1.555 TB/s, of which 80 % are reached.
    flops : float
        Operations a second. By default an A100's 312e12 in 16 bits, of which 50 % are reached.
    parameters : int, optional
        Of the model; half of `weights_nbytes` if not given.

    Attributes
    ----------
    now : float
        Seconds on its clock, which only `forward` and its user move.

    Examples
    --------
    >>> model = SimulatedModel(2048, 26 * 10**9, 819_200)
    >>> model.seconds(new_tokens=1, tokens=0) == 26e9 / model.bandwidth, model.seconds(2048, 2048) > 0.3
    (True, True)
    """

    def __init__(
        self,
        context: int,
        weights_nbytes: int,
        bytes_per_token: int,
        *,
        bandwidth: float = 0.8 * 1.555e12,
        flops: float = 0.5 * 312e12,
        parameters: int | None = None,
    ) -> None:
        self.config: RunnerConfig = SimulatedConfig(context)
        self.weights_nbytes, self.bytes_per_token = weights_nbytes, bytes_per_token
        self.bandwidth, self.flops = bandwidth, flops
        self.parameters = weights_nbytes // 2 if parameters is None else parameters
        self.now = 0.0

    def seconds(self, new_tokens: int, tokens: int) -> float:
        """Time of a step that computes so many tokens, of sequences that have so many in all after it."""
        read = self.weights_nbytes + tokens * self.bytes_per_token
        return max(read / self.bandwidth, new_tokens * 2 * self.parameters / self.flops)

    def forward(self, tokens: ArrayLike, step: Any, cache: Any, *, at: ArrayLike | None = None) -> NDArray[np.float32]:
        """Move the clock; see `Runner`."""
        self.now += self.seconds(step.num_tokens, int(step.kv_lens.sum()))
        logits = np.zeros((step.num_sequences if at is None else len(np.asarray(at)), NEW + 1), np.float32)
        logits[:, NEW] = 1
        return logits
