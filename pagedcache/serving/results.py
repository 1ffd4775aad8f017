"""What a generation returns: the texts, and what they took of the cache's memory."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from pagedcache.cache import KVCache
from pagedcache.spec import CacheSpec

__all__ = ["Completion", "Finish", "Generation", "Moment", "Report"]


class Finish(StrEnum):
    """Why a text ended."""

    END = "end"  #: the model ended it
    STOP = "stop"  #: it came to one of the request's stop strings
    LENGTH = "length"  #: max_tokens, or the model's context
    CANCELLED = "cancelled"  #: by the caller; it has the tokens that were there by then
    REFUSED = "refused"  #: others hold the memory that it needs, and nothing is left to wait for


@dataclass(slots=True)
class Completion:
    """One generated text."""

    prompt: int  # index of the prompt
    sample: int  # 0 <= sample < n; of a beam search, the rank
    tokens: list[int] = field(default_factory=list)  # without the token that ended the text
    text: str = ""
    finish: Finish | None = None  # why it ended; None: it goes on
    score: float | None = None  # of a beam search

    @property
    def ended(self) -> bool:
        """Whether the model ended the text, rather than max_tokens, the model's context or the caller."""
        return self.finish is Finish.END


@dataclass(frozen=True, slots=True)
class Moment:
    """The cache at one moment."""

    sequences: int = 0  # live ones
    tokens: int = 0  # stored by them; a shared one counts for each sequence that has it
    blocks: int = 0  # held by them; a shared one counts once
    shared: int = 0  # of these, held by several
    blocks_alone: int = 0  # that they would hold if they shared nothing
    reserved: int = 0  # tokens that a contiguous cache has to set aside: each prompt and the most that may follow it


@dataclass(slots=True)
class Report:
    """What a generation did, and what its cache held at the fullest moment."""

    spec: CacheSpec
    context: int  # tokens, the longest sequence that the model was trained for
    prompt_tokens: int = 0
    reused_tokens: int = 0  # of these, found in the prefix cache and not computed
    prefilled_tokens: int = 0  # computed; those of a prompt that was preempted count again
    new_tokens: int = 0
    guessed_tokens: int = 0  # proposed by a drafter
    accepted_tokens: int = 0  # of these, what the model would have chosen
    preemptions: int = 0  # sequences that gave way when blocks ran out
    copied: int = 0  # blocks copied because a shared one was to be written
    prefill_seconds: float = 0.0  # in steps that had prompt tokens
    decode_seconds: float = 0.0  # in all others
    decode_tokens: int = 0  # that these others computed, wrong guesses apart
    peak: Moment = field(default_factory=Moment)

    @property
    def paged_nbytes(self) -> int:
        """Bytes of the blocks held at the fullest moment."""
        return self.peak.blocks * self.spec.bytes_per_block

    @property
    def contiguous_nbytes(self) -> int:
        """Bytes of a contiguous cache in which each of these sequences reserves its prompt and max_tokens."""
        return self.peak.reserved * self.spec.bytes_per_token

    @property
    def context_nbytes(self) -> int:
        """Bytes of a contiguous cache in which each of these sequences reserves the model's whole context."""
        return self.peak.sequences * self.context * self.spec.bytes_per_token

    def observe(self, cache: KVCache, lengths: ArrayLike, reserved: int) -> None:
        """Keep this moment if it is the fullest so far.

        Parameters
        ----------
        cache : KVCache
        lengths : array_like of int
            Tokens of each live sequence.
        reserved : int
            See :class:`Moment`.
        """
        stored = np.asarray(lengths, np.int64)
        if (cache.pool.num_used, stored.sum()) > (self.peak.blocks, self.peak.tokens):
            stats = cache.stats()  # looks at every block
            alone = sum(stats.group_blocks)  # which counts shared ones for each
            self.peak = Moment(len(stored), int(stored.sum()), stats.used, stats.shared, alone, reserved)


@dataclass(frozen=True, slots=True)
class Generation:
    """All generated texts, sample by sample and prompt by prompt, and what they took."""

    completions: list[Completion]
    report: Report
