"""Batches over ZeroMQ, as vLLM's publisher sends them, from a thread of its own.

::

    publish() --> queue --> thread --> PUB     topic | number, 8 bytes, big-endian | payload
                                   \\-> the last batches, kept
                                        ROUTER  <- "" | first number wanted
                                                -> "" | topic | number | payload, for each that is kept
                                                -> "" | ""    | -1     | "", at the end

PUB sends to whoever is connected, and forgets. Numbers begin at 0 and miss none, so that a subscriber sees a gap, and
asks the ROUTER for what it missed.
"""

import socket
import threading
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pagedcache.monitoring._extras import needed

__all__ = ["ZmqPublisher"]

END = (-1).to_bytes(8, "big", signed=True)
LINGER = 1000  # milliseconds that a closed socket goes on sending what it has taken


class ZmqPublisher:
    """Sends batches to subscribers; an `EventSink`.

    Parameters
    ----------
    endpoint : str
        Where subscribers connect, such as ``"tcp://127.0.0.1:5557"``; port ``*`` is any free one. There is no
        encryption and no password: whoever reaches it reads along.
    replay : str, optional
        Where they ask for batches that they missed.
    topic : str
        What subscribers may select by. llm-d expects ``"kv@<pod>@<model>"``.
    connect : bool
        Connect `endpoint` to a subscriber that has bound it, instead of binding it.
    queue : int
        Most batches that wait for the thread; more are dropped.
    keep : int
        Batches kept for replay.
    pending : int
        Most batches that ZeroMQ holds for a slow subscriber, who misses what comes after.
    context : zmq.Context, optional
        For ``inproc://`` endpoints.

    Attributes
    ----------
    dropped : int
        Batches that `publish` did not take.
    sent : int
        Batches that went out: the number of the next one.

    Notes
    -----
    The thread runs from `start`, or ``with``, to `close`. In the child of a fork nothing runs, whatever the parent
    does: `publish` drops there. `publish` never waits, and may be called from any thread.

    Examples
    --------
    >>> with ZmqPublisher("tcp://127.0.0.1:*") as publisher:                            # doctest: +SKIP
    ...     publisher.publish(b"payload")
    True
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay: str | None = None,
        topic: str = "",
        connect: bool = False,
        queue: int = 1000,
        keep: int = 10_000,
        pending: int = 100_000,
        context: Any = None,
    ) -> None:
        for name, value in (("queue", queue), ("keep", keep), ("pending", pending)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        self.endpoint, self.replay = endpoint, replay  # once started: as bound, with the port's number
        self.dropped = self.sent = 0
        self._topic, self._connect, self._limit, self._pending = topic.encode(), connect, queue, pending
        self._queue: deque[bytes] = deque()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._context = context
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self) -> Self:
        """Bind the endpoints and start the thread.

        Raises
        ------
        ImportError
            The extra ``events`` is not installed.
        RuntimeError
            It was started before.
        zmq.ZMQError
            An endpoint cannot be had.
        """
        if self._thread is not None:
            raise RuntimeError("this publisher was started before: make a new one")
        zmq = needed("zmq", "events")
        context = zmq.Context.instance() if self._context is None else self._context
        opened: list[Any] = []
        try:
            out = self._open(context.socket(zmq.PUB), opened, self._pending)
            if self._connect:
                out.connect(self.endpoint)
            else:
                out.bind(self.endpoint)
            if self.replay is not None:
                # Room for all that is kept, and the end: a ROUTER drops beyond it.
                asked = self._open(context.socket(zmq.ROUTER), opened, (self._kept.maxlen or 0) + 1)
                asked.bind(self.replay)
        except BaseException:
            for each in opened:
                each.close(0)
            raise
        names = [each.last_endpoint.decode().rstrip("\0") for each in opened]
        self.endpoint, self.replay = names[0], names[1] if len(names) > 1 else None
        self._wake, woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(
            target=self._work, args=(zmq, woken, *opened), name="pagedcache-events", daemon=True
        )
        self._thread.start()
        return self

    @staticmethod
    def _open(made: Any, opened: list[Any], pending: int) -> Any:
        opened.append(made)
        made.sndhwm, made.linger = pending, LINGER
        return made

    @property
    def running(self) -> bool:
        """Whether the thread is there; False in the child of a fork."""
        return not self._closing and self._thread is not None and self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether `publish` would take a batch now."""
        return self.running and len(self._queue) < self._limit

    def publish(self, payload: bytes) -> bool:
        """Hand a batch to the thread, without waiting.

        Parameters
        ----------
        payload : bytes
            As from `encode_events`.

        Returns
        -------
        bool
            False where it was dropped: nothing runs, or the queue is full. It has no number then.
        """
        if not self.ready:
            self.dropped += 1
            return False
        self._queue.append(payload)
        self._nudge()
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Send what is in the queue and end the thread; closing twice is harmless.

        Parameters
        ----------
        timeout : float
            Seconds to wait for it.
        """
        was_running, self._closing = self.running, True
        if was_running and self._thread is not None:
            self._nudge()
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _nudge(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: it is gone
            self._wake.send(b"\0")

    # -- the thread -------------------------------------------------------------------------------

    def _work(self, zmq: Any, woken: socket.socket, out: Any, asked: Any = None) -> None:
        poller = zmq.Poller()
        poller.register(woken, zmq.POLLIN)
        if asked is not None:
            poller.register(asked, zmq.POLLIN)
        closing = False
        try:
            while not closing:
                ready = dict(poller.poll())
                closing = self._closing  # before the queue is looked at: what was published before still goes out
                if woken.fileno() in ready:
                    woken.recv(4096)
                while self._queue:
                    self._send(out, self._queue.popleft())
                if asked in ready:
                    self._answer(asked, asked.recv_multipart())
        except zmq.ContextTerminated:
            pass  # whoever ended the context wants no more of it
        finally:
            for each in (out, asked, woken, self._wake):
                if each is not None:
                    each.close()

    def _send(self, out: Any, payload: bytes) -> None:
        out.send_multipart((self._topic, self.sent.to_bytes(8, "big"), payload))
        self._kept.append((self.sent, payload))
        self.sent += 1

    def _answer(self, asked: Any, request: list[bytes]) -> None:
        """Send what is kept from the number on that was asked for; a request that is none is ignored."""
        if len(request) != 3 or request[1] or len(request[2]) != 8:
            return
        who, first = request[0], int.from_bytes(request[2], "big")
        for number, payload in self._kept:
            if number >= first:
                asked.send_multipart((who, b"", self._topic, number.to_bytes(8, "big"), payload))
        asked.send_multipart((who, b"", b"", END, b""))
