"""Connections to one server, made by redis-py, which knows URLs, TLS and Unix sockets, and kept while they are good."""

import os
import select
import threading
from typing import Any

from pagedcache.errors import TierError
from pagedcache.tiers.redis.wire import Refused, Wire, command

__all__ = ["Connections"]

IDLE = 8  # connections kept for the next call


class Connections:
    """Connections that one thread at a time holds.

    Parameters
    ----------
    url : str
        As redis-py takes it: ``redis://``, ``rediss://`` or ``unix://``.
    timeout : float
        Seconds for each operation; a timeout in the URL does not count.

    Raises
    ------
    ImportError
        redis-py is not installed.
    ValueError
        The URL is none.
    """

    def __init__(self, url: str, timeout: float) -> None:
        try:
            import redis
        except ImportError as error:
            raise ImportError("a RedisTier needs the package redis: pip install 'pagedcache[redis]'") from error
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, ValueError)  # ValueError: of names and TLS
        self._pool: Any = redis.ConnectionPool.from_url(url, protocol=2)
        self._pool.make_connection()  # connects nothing, and refuses options that make no sense
        self._timeout = timeout
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self.made = 0  # connections so far

    def take(self) -> Wire:
        """Return a connection that works as far as one can see; OSError where none can be made."""
        with self._lock:
            if self._closed:
                raise TierError("the tier is closed")
            if os.getpid() != self._process:  # a fork: the connections are the parent's
                self._process, self._idle = os.getpid(), []
            while self._idle:
                wire = self._idle.pop()
                if not _readable(wire):
                    return wire
                wire.close()  # what can be read while nothing was asked is an end, or garbage
        return self._connected()

    def give(self, wire: Wire) -> None:
        """Take a connection back, to keep it or, where it is out of step, to close it."""
        with self._lock:
            if wire.reusable and not self._closed and len(self._idle) < IDLE and os.getpid() == self._process:
                self._idle.append(wire)
                return
        wire.close()

    def drop(self) -> None:
        """Close what is idle: a server that failed one connection has likely lost the others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def close(self) -> None:
        """Close what is idle, and all else when it is given back."""
        self._closed = True
        self.drop()

    def _connected(self) -> Wire:
        """Return a new connection, authenticated and in its database.

        redis-py only opens the socket. Its own greeting has no limit on the time and size of the replies.
        """
        try:
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            connection.socket_timeout = connection.socket_connect_timeout = self._timeout
            wire = Wire(connection._connect(), self._timeout)
        except self._failures as error:
            raise TierError(f"no connection: {error}") from error
        try:
            self._greet(wire, connection)
        except BaseException:
            wire.close()
            raise
        self.made += 1
        return wire

    def _greet(self, wire: Wire, connection: Any) -> None:
        greetings = []
        words = [word.encode() for word in (connection.username, connection.password) if word]
        if words:
            greetings.append(command(b"AUTH", *words))
        if connection.db:
            greetings.append(command(b"SELECT", b"%d" % int(connection.db)))
        if greetings:
            wire.send(greetings, len(greetings))
        for reply in wire.replies(len(greetings)):
            if isinstance(reply, Refused):
                raise TierError(f"the server refused the connection: {reply}")


def _readable(wire: Wire) -> bool:
    poll = select.poll()
    poll.register(wire.fileno(), select.POLLIN)
    return bool(poll.poll(0))
