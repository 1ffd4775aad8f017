"""The server behind its circuit breaker: what is asked of it is answered, or counts as not there."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from pagedcache.errors import TierError
from pagedcache.tiers.breaker import Breaker
from pagedcache.tiers.redis.connections import Connections
from pagedcache.tiers.redis.wire import Refused, Wire, command

__all__ = ["Server"]

Result = TypeVar("Result")
Reply: TypeAlias = "int | bytes | Refused | None"
AT_ONCE = 128  # commands of one trip


class Server:
    """One server, for any thread.

    Attributes
    ----------
    errors : int
        Calls that failed.
    refused : int
        Calls that the open breaker answered.
    """

    def __init__(self, connections: Connections, breaker: Breaker) -> None:
        self.connections = connections
        self.breaker = breaker
        self.errors = 0
        self.refused = 0
        self._lock = threading.Lock()

    def attempt(self, work: Callable[[Wire], Result], default: Result) -> Result:
        """Return what `work` makes of a connection, or `default` where the server fails."""
        if not self.breaker.allow():
            with self._lock:
                self.refused += 1
            return default
        try:
            result = self._worked(work)
        except OSError:
            self.breaker.fail()
            self.connections.drop()
            with self._lock:
                self.errors += 1
            return default
        self.breaker.succeed()
        return result

    def _worked(self, work: Callable[[Wire], Result]) -> Result:
        wire = self.connections.take()
        try:
            result = work(wire)
        except BaseException:
            wire.close()  # whatever it was: replies may be due
            raise
        self.connections.give(wire)
        return result

    def read(self, commands: Sequence[Sequence[bytes]], limit: int = 0, until: Reply = None) -> list[Reply]:
        """Ask, up to the first reply that is `until`; none where the server fails, or refuses.

        A key that holds another type than ours is an answer like others, and not the server's failure.
        """

        def ask(wire: Wire) -> list[Reply]:
            found = []
            for reply in self._replies(wire, commands, limit, until):
                if isinstance(reply, Refused) and not reply.startswith("WRONGTYPE"):
                    raise TierError(f"the server refused to read: {reply}")
                found.append(reply)
            return found

        return self.attempt(ask, [])

    def write(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        """Have something changed, which a server that is full, or a replica, may refuse and still be of use."""
        return self.attempt(lambda wire: self._replies(wire, commands, 0, None), []) if commands else []

    def unlink(self, names: Sequence[bytes]) -> int:
        """Remove keys; how many were there."""
        asked = [[b"UNLINK", *names[begin : begin + AT_ONCE]] for begin in range(0, len(names), AT_ONCE)]
        return sum(reply for reply in self.write(asked) if isinstance(reply, int))

    def _replies(self, wire: Wire, commands: Sequence[Sequence[bytes]], limit: int, until: Reply) -> list[Reply]:
        """Return the replies, up to the first trip in which one is `until`."""
        found: list[Reply] = []
        for begin in range(0, len(commands), AT_ONCE):
            part = commands[begin : begin + AT_ONCE]
            wire.send([b"".join([command(*words) for words in part])], len(part))
            found += wire.replies(len(part), limit)
            if until is not None and until in found:
                return found[: found.index(until)]
        return found
