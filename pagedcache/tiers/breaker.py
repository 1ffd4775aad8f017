"""A circuit breaker: what keeps failing is left alone for a while, then tried once."""

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Says whether to try something that others share and that may be down.

    ``closed``: try. After `max_failures` failures in a row ``open``: do not. After `retry_after` seconds of that
    ``half-open``: one caller may try; what it reports closes the breaker, or opens it again. A trial that reports
    nothing is given up after `retry_after` seconds, so that a thread that died does not keep the breaker half-open.

    Parameters
    ----------
    max_failures : int
        Failures in a row that open it.
    retry_after : float
        Seconds that it stays open.
    clock : callable
        Seconds, never going back; for tests.

    Examples
    --------
    >>> now = 0.0
    >>> breaker = Breaker(max_failures=2, retry_after=5.0, clock=lambda: now)
    >>> breaker.fail(), breaker.fail(), breaker.allow(), breaker.state
    (None, None, False, 'open')
    >>> now = 5.0
    >>> breaker.allow(), breaker.state, breaker.allow()
    (True, 'half-open', False)
    >>> breaker.succeed(), breaker.state
    (None, 'closed')
    """

    def __init__(
        self, max_failures: int = 3, retry_after: float = 5.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_failures < 1:
            raise ValueError(f"max_failures is {max_failures}; at least one failure opens a breaker")
        if not retry_after > 0:
            raise ValueError(f"retry_after is {retry_after} seconds; it must be above 0")
        self.max_failures = max_failures
        self.retry_after = retry_after
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._until: float | None = None  # when the next trial may begin; None: closed
        self._trial = False  # one has begun, and has reported nothing

    @property
    def state(self) -> str:
        """``"closed"``, ``"open"`` or ``"half-open"``."""
        with self._lock:
            if self._until is None:
                return "closed"
            return "half-open" if self._trial or self._clock() >= self._until else "open"

    def allow(self) -> bool:
        """Whether to try; who is allowed reports with `succeed` or `fail`."""
        with self._lock:
            if self._until is None:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._trial = True
            self._until = now + self.retry_after
            return True

    def succeed(self) -> None:
        """Report that it worked, which closes the breaker."""
        with self._lock:
            self._failures = 0
            self._until = None
            self._trial = False

    def fail(self) -> None:
        """Report that it failed."""
        with self._lock:
            self._failures += 1
            if self._trial or self._failures >= self.max_failures:
                self._until = self._clock() + self.retry_after
                self._trial = False
