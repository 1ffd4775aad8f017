"""What a simulated cache holds, step by step: the sums behind the table and the samples behind the pictures.

Every slot (the K and V of one token) is at each moment one of::

      handed out to a sequence                                                       | not handed out
      stored   | reserved        | internal               | rounding                | external
      a token  | for a token     | asked for, and never   | given beyond what was   | free, whether or not
      is there | that will come  | used                   | asked for               | it is of use

The five add up to all slots. Blocks are handed out as tokens come: what is empty in the last one of a sequence counts
as internal, and there is no reserved and no rounding.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Machine", "Meter", "SlotKind", "Usage"]


class SlotKind(IntEnum):
    """What a slot is; see the module."""

    EXTERNAL = 0
    STORED = 1
    RESERVED = 2
    INTERNAL = 3
    ROUNDING = 4


@dataclass(frozen=True)
class Machine:
    """A machine that does nothing but read: decoding is bound by the memory that it has to go through.

    A step reads all weights and the K and V of every stored token, so that::

        seconds = (weights_nbytes + stored tokens * bytes_per_token) / bandwidth
        throughput = sequences / seconds        tokens a second, as each sequence gets one a step

    Computing prompts, and what preempted sequences compute again, costs nothing here: that flatters systems with large
    batches a little, and paging most.

    Attributes
    ----------
    weights_nbytes, bytes_per_token : int
        Bytes of the weights; bytes of K and V of a token in all layers.
    bandwidth : float
        Bytes a second. By default an A100's 1.555 TB/s, of which 80 % are reached.

    Examples
    --------
    OPT-13B in float16 with 8,000 tokens stored: 33 GB a step.

    >>> Machine(26 * 10**9, 819_200).seconds(1, 8_000)
    0.026168488745980708
    """

    weights_nbytes: int
    bytes_per_token: int
    bandwidth: float = 0.8 * 1.555e12

    def seconds(self, steps: Any, token_steps: Any) -> Any:
        """Time of so many steps, in which so many tokens were stored in sum; numbers or arrays."""
        return (steps * self.weights_nbytes + token_steps * self.bytes_per_token) / self.bandwidth

    def throughput(self, usage: "Usage") -> float:
        """Tokens a second."""
        return float(usage.batch / self.seconds(1, usage.stored * usage.slots))


@dataclass(frozen=True, eq=False)
class Usage:
    """What a simulated cache held, while requests were waiting.

    Attributes
    ----------
    system : str
        Name of the system.
    slots : int
        Tokens for which the memory has room.
    steps : int
        Steps that the means are taken over: from when a tenth of the requests is done until none is waiting.
    stored, reserved, internal, rounding, external : float
        Means, as shares of all slots; they add up to 1.
    batch : float
        Mean number of sequences of a step.
    preemptions : int
        How often a sequence had to give its memory back before it was done.
    samples : int64 [n, 4]
        From the first step on: steps until then, sum of stored tokens over them, slots stored and slots handed out.
    kinds : int8 [slots]
        `SlotKind` of each slot when a third of the requests was done.
    owners : int32 [slots]
        Whose it was then, counted from 0; -1 where nobody's.
    """

    system: str
    slots: int
    steps: int
    stored: float
    reserved: float
    internal: float
    rounding: float
    external: float
    batch: float
    preemptions: int
    samples: NDArray[np.int64]
    kinds: NDArray[np.int8]
    owners: NDArray[np.int32]

    @property
    def stored_of_handed(self) -> float:
        """Stored tokens as a share of the slots that were handed out."""
        return self.stored / (1 - self.external)

    def figures(self) -> dict[str, Any]:
        """Return the means, without samples and map."""
        names = "system slots steps stored reserved internal rounding external stored_of_handed batch preemptions"
        return {name: getattr(self, name) for name in names.split()}


class Meter:
    """Takes what a simulation holds in each step.

    Parameters
    ----------
    slots : int
        Of the memory.
    requests : int
        How many will be done in all: the first tenth is not counted.
    """

    def __init__(self, slots: int, requests: int) -> None:
        self.slots = slots
        self.done = 0  # requests; the simulation counts them
        self.preemptions = 0  # the simulation counts these too
        self._warm = requests // 10
        self._third = requests // 3
        self._sums = np.zeros(6, np.int64)  # over measured steps: 1, stored, final, asked, handed, sequences
        self._samples = [(0, 0, 0, 0)]
        self.kinds = np.full(slots, SlotKind.EXTERNAL, np.int8)
        self.owners = np.full(slots, -1, np.int32)
        self._painted = False

    def add(self, steps: int, stored: int, sequences: int, *, final: int, asked: int, handed: int) -> None:
        """Take `steps` equal steps, but for a token more of each sequence in every one.

        Parameters
        ----------
        steps, stored, sequences : int
            How many; tokens stored in the first of them; sequences.
        final, asked, handed : int
            Slots that the sequences will need, have asked for and were given, in sum.
        """
        token_steps = steps * stored + sequences * steps * (steps - 1) // 2
        at, before = self._samples[-1][:2]
        if steps > 1:
            self._samples.append((at + 1, before + stored, stored, handed))
        last = stored + sequences * (steps - 1)
        self._samples.append((at + steps, before + token_steps, last, handed))
        if self.done >= self._warm:
            self._sums += (steps, token_steps, final * steps, asked * steps, handed * steps, sequences * steps)

    @property
    def wants_map(self) -> bool:
        """Whether it is time to :meth:`paint`."""
        return not self._painted and self.done >= self._third

    def paint(self, owner: int, slots: NDArray[np.int64], stored: int, final: int, asked: int) -> None:
        """Take the slots of one sequence, in the order in which it fills them."""
        self._painted = True
        self.owners[slots] = owner
        for kind, end in (  # each is painted over by the next
            (SlotKind.ROUNDING, len(slots)),
            (SlotKind.INTERNAL, asked),
            (SlotKind.RESERVED, final),
            (SlotKind.STORED, stored),
        ):
            self.kinds[slots[:end]] = kind

    def usage(self, system: str) -> Usage:
        """Return the means.

        Raises
        ------
        ValueError
            There never were requests waiting after the first tenth: the memory is too large for so few.
        """
        steps, stored, final, asked, handed, sequences = self._sums.tolist()
        if not steps:
            raise ValueError(
                f"{system}: {self.slots} tokens of memory were never short for these requests, so that nothing was "
                "measured; give more requests or less memory"
            )
        share = 1 / (steps * self.slots)
        return Usage(
            system,
            self.slots,
            steps,
            stored * share,
            (final - stored) * share,
            (asked - final) * share,
            (handed - asked) * share,
            1 - handed * share,
            sequences / steps,
            self.preemptions,
            np.array(self._samples, np.int64),
            self.kinds,
            self.owners,
        )
