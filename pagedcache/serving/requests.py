"""What is asked of an engine, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedcache.serving.results import Completion
from pagedcache.serving.sampler import Sampling

__all__ = ["Piece", "PieceCallback", "Request"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step added to one text."""

    completion: Completion
    tokens: list[int]
    text: str  # which may lag behind the tokens: half a character, or what may become a stop string, is held back
    last: bool


PieceCallback = Callable[[Piece], None]


@dataclass(slots=True, eq=False)
class Request:
    """One prompt, and the texts that go on from it; made by ``Engine.submit``.

    Times are those of the engine's clock, in seconds.
    """

    number: int  # in order of submission, from 0
    prompt: NDArray[np.int32]  # token ids
    limit: int  # most new tokens of each text
    width: int  # sequences that go on from the prompt: samples, or beams
    blocks: int  # that they hold in the worst case
    priority: int
    sampling: Sampling
    stop: tuple[str, ...]
    ends: bool  # whether the engine's end tokens end a text
    beams: bool
    length_penalty: float
    completions: list[Completion]  # complete when `done`; tokens of a text that is followed come as they are chosen
    on_piece: PieceCallback | None
    submitted: float
    started: float | None = None  # admitted for the first time
    first_token: float | None = None
    finished: float | None = None
    found_tokens: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    preemptions: int = 0  # how often one of its sequences had to give up its memory

    @property
    def done(self) -> bool:
        """Whether all texts have ended, one way or another."""
        return self.finished is not None
