"""The pieces of one request as an iterator, which has the engine do steps as they are asked for."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from pagedcache.serving.requests import Piece, Request


class Stream:
    """Iterates over pieces; given up or closed, it cancels its request.

    Parameters
    ----------
    request : Request
        Whose callback appends to `pieces`.
    pieces : deque of Piece
    step, cancel : callable
        The engine's.
    later : callable
        Takes ``(cancel, request)``, for the engine to do at its next step.
    """

    def __init__(
        self,
        request: Request,
        pieces: deque[Piece],
        step: Callable[[], object],
        cancel: Callable[[Request], None],
        later: Callable[[tuple[Callable[[Request], None], Request]], None],
    ) -> None:
        self._request, self._pieces, self._step, self._cancel, self._later = request, pieces, step, cancel, later
        self._thread = threading.get_ident()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self._request.done:
                raise StopIteration
            self._step()
        return self._pieces.popleft()

    def close(self) -> None:
        """Cancel the request, if it is not done."""
        self._cancel(self._request)

    def __del__(self) -> None:
        if threading.get_ident() == self._thread:
            self.close()
        else:  # collected on a thread of a tier, say, which may hold the tier's lock and must not wait for the cache's
            self._later((self._cancel, self._request))
