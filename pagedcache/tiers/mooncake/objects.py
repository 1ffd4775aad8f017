"""A Mooncake Store behind a circuit breaker: what is asked of it is answered, or counts as not there."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from pagedcache.errors import TierError
from pagedcache.tiers.breaker import Breaker
from pagedcache.tiers.protocol import Bytes

__all__ = ["Objects"]

Result = TypeVar("Result")

# Mooncake's codes: what is an answer, and no failure of the store.
NO_ROOM, WRONG_ARGUMENT, NOT_READY, ABSENT, PRESENT = -200, -600, -703, -704, -705


class Objects:
    """Objects of a store, and the registered memory that their bytes go through; one call at a time.

    Methods besides `attempt` and those that name a default are for use inside `attempt`.

    Attributes
    ----------
    buffer : uint8 [bytes]
        Whoever holds `lock` may use it.
    errors : int
        Calls that failed.
    refused : int
        Calls that the open breaker answered.
    """

    def __init__(self, store: Any, breaker: Breaker) -> None:
        self.lock = threading.RLock()
        self.buffer: Bytes = np.empty(0, np.uint8)
        self.errors = 0
        self.refused = 0
        self._store = store
        self._breaker = breaker
        self._closed = False
        self._sessions: set[str] = set()  # open, and to be ended by whoever holds the Store

    def register(self, nbytes: int) -> None:
        """Make the buffer; TierError where Mooncake does not take it."""
        buffer = np.empty(nbytes, np.uint8)
        code = self._store.register_buffer(buffer.ctypes.data, nbytes)
        if code:
            raise TierError(f"Mooncake registers no buffer of {nbytes} bytes: code {code}")
        self.buffer = buffer

    def close(self) -> None:
        """Give the buffer back; from then on nothing is there."""
        with self.lock:
            if not self._closed and len(self.buffer):
                self._store.unregister_buffer(self.buffer.ctypes.data)
            self._closed = True

    def attempt(self, work: Callable[[], Result], default: Result) -> Result:
        """Return what `work` does, or `default` where the store fails."""
        with self.lock:
            if self._closed:
                return default
            if not self._breaker.allow():
                self.refused += 1
                return default
            try:
                result = work()
            except (OSError, RuntimeError):  # RuntimeError: what Mooncake's C++ throws
                self._breaker.fail()
                self.errors += 1
                return default
            self._breaker.succeed()
            return result

    def parts(self, count: int, nbytes: int) -> list[slice]:
        """Divide `count` stretches of `nbytes` into what the buffer holds."""
        size = len(self.buffer) // nbytes
        return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]

    def exist(self, names: list[str]) -> list[bool]:
        """Whether each is there; to ask renews the lease of those that are."""
        codes = self._store.batch_is_exist(names) if names else []
        _require(codes)
        return [code == 1 for code in codes]

    def ranges(self, names: list[str], offset: int, nbytes: int) -> tuple[Bytes, bool]:
        """Fetch a stretch of objects into the buffer.

        Returns
        -------
        uint8 [blocks, nbytes]
            Of the leading objects that are there.
        bool
            Whether the one behind them is there and too short.
        """
        count = len(names)
        into, begins = [[i * nbytes] for i in range(count)], [[offset]] * count
        at = self.buffer.ctypes.data
        found = self._store.get_into_ranges([at], [names], [into], [begins], [[[nbytes]] * count])
        codes = [each[0] for each in found[0]]
        _require(codes, WRONG_ARGUMENT, NOT_READY, ABSENT)
        there = next((i for i, code in enumerate(codes) if code != nbytes), count)
        return self.buffer[: there * nbytes].reshape(there, nbytes), WRONG_ARGUMENT in codes[there : there + 1]

    def reserve(self, names: list[str], nbytes: int) -> list[bool]:
        """Begin put sessions; False where there is no room, or the object is there or on its way."""
        if not names:
            return []
        codes = self._store.batch_put_session_start(names, [nbytes] * len(names))
        _require(codes, NO_ROOM, WRONG_ARGUMENT, PRESENT)
        begun = {name: code for name, code in zip(names, codes, strict=True) if code != PRESENT}
        lost = [name for name, code in begun.items() if code == WRONG_ARGUMENT and name not in self._sessions]
        if lost:  # sessions that could not be ended when the store failed: the next call begins anew
            self._store.batch_put_session_revoke(lost)
        self._sessions.update(name for name, code in begun.items() if code == 0)
        return [code == 0 for code in codes]

    def send(self, names: list[str], nbytes: int) -> None:
        """Send what stands in the buffer, one object behind the other, to their sessions."""
        begins = [[self.buffer.ctypes.data + i * nbytes] for i in range(len(names))]
        sizes, zeros = [[nbytes]] * len(names), [[0]] * len(names)
        _require(self._store.batch_put_from_multi_buffer_ranges(names, begins, sizes, zeros))

    def publish(self, names: list[str]) -> list[bool]:
        """End put sessions; which objects can be read. None where the store fails."""
        self._sessions.difference_update(names)
        codes: list[int] = self.attempt(lambda: self._store.batch_put_session_end(names), []) if names else []
        return [code == 0 for code in codes]

    def revoke(self, names: list[str]) -> None:
        """Give up put sessions, as far as the store works."""
        self._sessions.difference_update(names)
        if names:
            self.attempt(lambda: self._store.batch_put_session_revoke(names), None)

    def remove(self, names: list[str]) -> int:
        """Remove objects, leases or not; how many were there. None where the store fails."""
        codes: list[int] = self.attempt(lambda: self._store.batch_remove(names, True), []) if names else []
        return codes.count(0)


def _require(codes: Sequence[int], *answers: int) -> None:
    """Raise TierError at a code that is neither success nor one of these answers."""
    for code in codes:
        if code < 0 and code not in answers:
            raise TierError(f"Mooncake failed with code {code}")
