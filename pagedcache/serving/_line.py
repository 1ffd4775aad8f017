"""Sequences in the order in which they are served."""

from bisect import bisect_left, insort

from pagedcache.serving._rows import Sequence
from pagedcache.serving.requests import Request


def _key(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.key


class Line(list[Sequence]):
    """A list in the order of keys: what is looked for is found without a walk along all that wait."""

    def add(self, sequence: Sequence) -> None:
        """Put a sequence where it belongs."""
        insort(self, sequence, key=_key)

    def take(self, sequence: Sequence) -> None:
        """Take a sequence out that is in the line."""
        at = bisect_left(self, sequence.key, key=_key)
        assert self[at] is sequence
        del self[at]

    def of(self, request: Request) -> list[Sequence]:
        """Return the sequences of a request."""
        begin, end = ((-request.priority, number, 0) for number in (request.number, request.number + 1))
        return self[bisect_left(self, begin, key=_key) : bisect_left(self, end, key=_key)]
