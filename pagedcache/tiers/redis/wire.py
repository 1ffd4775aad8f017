"""A connection to the server, once it is set up: commands, small replies, and blocks straight into memory.

The Redis protocol (RESP2) in as far as a cache needs it. Nothing that the server says is believed: lines and bulks have
limits that hold before memory is taken, and all has a time by when it must be whole. Whatever raises leaves the
connection out of step; `reusable` tells, and who holds it throws it away then.
"""

import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import TierError

__all__ = ["BadReply", "Buffer", "Refused", "Wire", "command"]

Buffer: TypeAlias = bytes | bytearray | NDArray[np.uint8]

LINE = 1024  # bytes of a line at most: a type, a number, or the text of an error
CHUNK = 4096  # bytes to ask for where replies are small
BUFFERS = 512  # of one system call; Linux takes 1024
SLICE = 8 << 20  # bytes for which the server is given another `timeout`


class BadReply(TierError):
    """The server sent what a Redis server would not."""


class Refused(str):
    """What the server said instead of doing it."""

    __slots__ = ()


def command(*words: bytes) -> bytes:
    """Return a command as it is sent.

    Examples
    --------
    >>> command(b"GET", b"key")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Wire:
    """A connected socket, from whichever family, with or without TLS.

    Parameters
    ----------
    sock : socket.socket
        Connected; closed by `close`.
    timeout : float
        Seconds that the server has for what was asked at once, and again for each 8 MiB of it, either way.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._sock = sock
        self._timeout = timeout
        self._scattered = not isinstance(sock, ssl.SSLSocket)  # sendmsg and recvmsg_into, which TLS lacks
        sock.settimeout(None if self._scattered else timeout)
        if self._scattered:  # the kernel keeps the time: Python would poll before every call, and MSG_WAITALL not wait
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6) or 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._read = bytearray()  # received, and not asked for yet
        self._pending = 0  # replies that are due
        self._until = 0.0

    @property
    def reusable(self) -> bool:
        """Whether every reply was read, and nothing else came."""
        return self._pending == 0 and not self._read

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def send(self, parts: Sequence[Buffer], replies: int) -> None:
        """Send the bytes of the parts, in order, to which this many replies are due."""
        views = _views(parts)
        self._pending += replies
        self.expect(sum(map(len, views)))
        if not self._scattered:
            for view in views:
                self._sock.sendall(view)
                self._require_time()
            return
        first = 0
        while first < len(views):
            sent = self._sock.sendmsg(views[first : first + BUFFERS])
            first = _advance(views, first, sent)
            self._require_time()

    def expect(self, nbytes: int) -> None:
        """Begin the time that the server has, for this many bytes."""
        self._until = time.monotonic() + self._timeout * (1 + nbytes // SLICE)

    def reply(self, limit: int = 0) -> "int | bytes | Refused | None":
        """Read one reply: a number, a bulk of at most `limit` bytes, None, or what was refused."""
        line = self._line()
        kind, text = line[:1], line[1:]
        found: int | bytes | Refused | None = text
        if kind == b":":
            found = _number(text, line)
        elif kind == b"-":
            found = Refused(text.decode("ascii", "replace"))
        elif kind == b"$":
            found = self._bulk(_number(text, line), limit)
        elif kind != b"+":
            raise BadReply(f"the server replied {line[:40]!r}")
        self._pending -= 1
        return found

    def replies(self, count: int, limit: int = 0) -> "list[int | bytes | Refused | None]":
        """Read `count` replies."""
        self.expect(count * limit)
        return [self.reply(limit) for _ in range(count)]

    def bulk_into(self, pieces: Iterable[NDArray[np.uint8]], nbytes: int) -> bool:
        """Read a bulk of just `nbytes` into the pieces; False where the reply is another, and reading ends there."""
        if self._read:
            raise BadReply(f"the server sent {bytes(self._read[:40])!r} unasked")
        expected = b"$%d\r\n" % nbytes
        head, tail = bytearray(len(expected)), bytearray(2)
        views = _views([head, *pieces, tail])
        first = seen = 0
        while first < len(views):
            got = self._into(views, first, whole=seen == len(head))
            if seen < len(head):
                seen += got
                if head[:seen] != expected[:seen]:
                    return self._other(bytes(head[:seen]))
            first = _advance(views, first, got)
        if tail != b"\r\n":
            raise BadReply(f"the server ended a bulk of {nbytes} bytes by {bytes(tail)!r}")
        self._pending -= 1
        return True

    def _other(self, head: bytes) -> bool:
        """False for a bulk of another size or for none; raise for all else."""
        if not head.startswith(b"$"):
            raise BadReply(f"the server replied {head!r} and more, where bytes of a block are due")
        return False

    def _into(self, views: list[memoryview], first: int, whole: bool) -> int:
        """Receive something into the views from the first on, if possible the whole of them; how many bytes."""
        self._require_time()
        if self._scattered:
            flags = socket.MSG_WAITALL if whole else 0
            got = self._sock.recvmsg_into(views[first : first + BUFFERS], 0, flags)[0]
        else:
            got = self._sock.recv_into(views[first])
        if not got:
            raise ConnectionResetError("the server closed the connection")
        return got

    def _line(self) -> bytes:
        while (end := self._read.find(b"\r\n", 0, LINE)) < 0:
            if len(self._read) >= LINE:
                raise BadReply(f"the server sent a line of more than {LINE} bytes: {bytes(self._read[:40])!r}...")
            self._fill()
        return self._taken(end)

    def _bulk(self, size: int, limit: int) -> bytes | None:
        if size == -1:
            return None
        if not 0 <= size <= limit:
            raise BadReply(f"the server announced {size} bytes; at most {limit} were asked for")
        while len(self._read) < size + 2:
            self._fill()
        if self._read[size : size + 2] != b"\r\n":
            raise BadReply(f"the server sent more than the {size} bytes it announced")
        return self._taken(size)

    def _taken(self, size: int) -> bytes:
        """Remove `size` bytes, and the end of the line behind them."""
        taken = bytes(self._read[:size])
        del self._read[: size + 2]
        return taken

    def _fill(self) -> None:
        self._require_time()
        got = self._sock.recv(CHUNK)
        if not got:
            raise ConnectionResetError("the server closed the connection")
        self._read += got

    def _require_time(self) -> None:
        """Raise where a server that keeps sending a little has had its time."""
        if time.monotonic() > self._until:
            raise TimeoutError("the server is too slow")


def _views(parts: Iterable[Buffer]) -> list[memoryview]:
    views: list[Any] = list(parts)  # mypy knows arrays for no buffers in Python 3.11
    return [memoryview(view) for view in views if len(view)]


def _advance(views: list[memoryview], first: int, done: int) -> int:
    """Drop `done` bytes from the views; which is the first that has some left."""
    while first < len(views) and done >= len(views[first]):
        done -= len(views[first])
        first += 1
    if done:
        views[first] = views[first][done:]
    return first


def _number(text: bytes, line: bytes) -> int:
    """Return the number of a line; int() alone would take more than the protocol has."""
    if not text.removeprefix(b"-").isdigit() or len(text) > 20:
        raise BadReply(f"the server replied {line[:40]!r}")
    return int(text)
