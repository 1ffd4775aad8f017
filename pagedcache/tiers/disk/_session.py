"""An open tier among threads and processes: who may use its files, and until when."""

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pagedcache._sizes import parse_bytes
from pagedcache.errors import TierError
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.disk._opening import Opened, open_folder
from pagedcache.tiers.disk._writer import Writer
from pagedcache.tiers.protocol import TierStats

__all__ = ["Session"]


class Session:
    """What `DiskTier` is beside the protocol: settings, lock, life.

    One lock guards everything. Reading and writing of blocks, and waiting for the disk, is done outside it, counted
    in ``_busy``, so that `close` never takes a descriptor away from a thread that uses it.
    """

    def __init__(self, path: str | os.PathLike[str], size: int | str | None, *, readonly: bool, sync: bool) -> None:
        if size is None and not readonly:
            raise ValueError("a disk tier that writes needs a size, such as '20 GiB'")
        self.path = Path(os.path.abspath(path))
        self.size = 0 if size is None else parse_bytes(size)
        self.readonly = readonly
        self.sync = sync
        self.form: BlockFormat | None = None
        self._opened: Opened | None = None
        self._closed = False
        self._forked = False
        self._lock = threading.Condition(threading.RLock())
        self._busy = 0
        self._stats = TierStats(capacity=self.size)
        _SESSIONS.add(self)

    def bind(self, form: BlockFormat) -> None:
        """Open the folder, or create it, for blocks of this format; ForeignFormat where it holds others."""
        with self._lock, self._counted():
            if self._opened is not None and self.form is not None:
                form.require(self.form, str(self.path))
                return
            if self._closed or self._forked:
                raise TierError(f"the tier of {self.path} is {self._state}")
            self._opened = open_folder(self.path, form, self.size, readonly=self.readonly, sync=self.sync)
            self.form = form

    def close(self) -> None:
        """Wait for what other threads read and write, note what was used, and close the files."""
        with self._lock:
            opened, self._opened = self._opened, None
            self._closed = True
            self._lock.wait_for(lambda: not self._busy)
            if opened is None:
                return
            try:
                if opened.writer is not None:
                    with contextlib.suppress(TierError):
                        opened.writer.save_use()
            finally:
                opened.close()

    def __del__(self) -> None:
        """Free the folder, if nobody has closed the tier."""
        opened = getattr(self, "_opened", None)  # what __init__ refused has none
        if opened is not None:
            with contextlib.suppress(Exception):
                opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _state(self) -> str:
        if self._forked:
            return "its parent process's: open one of your own"
        return "closed" if self._closed else "not bound to a format yet: bind(form) comes first"

    def _ready(self) -> Opened:
        """The files, inside the lock."""
        if self._opened is None:
            raise TierError(f"the tier of {self.path} is {self._state}")
        return self._opened

    def _writing(self) -> Writer:
        """What the writer has, inside the lock."""
        writer = self._ready().writer
        if writer is None:
            raise TierError(f"the tier of {self.path} is open for reading only")
        return writer

    @contextlib.contextmanager
    def _using(self) -> Iterator[Opened | None]:
        """Hold the lock; None in a forked child, which finds nothing."""
        with self._lock:
            yield None if self._forked else self._ready()

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Let other threads in; the lock must be held once. The files stay open."""
        self._busy += 1
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._busy -= 1
            self._lock.notify_all()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count errors of the medium; inside the lock."""
        try:
            yield
        except OSError:
            self._stats.errors += 1
            raise

    def _leave_to_parent(self) -> None:
        """In a forked child: let go of the parent's files without touching its database or its lock."""
        self._lock = threading.Condition(threading.RLock())  # a thread of the parent may have held it
        self._busy = 0
        self._forked = True
        opened, self._opened = self._opened, None
        if opened is not None:
            _KEPT.append(opened)  # SQLite must not close here what the parent goes on using
            opened.abandon()


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()
_KEPT: list[Opened] = []


def _after_fork() -> None:
    for session in list(_SESSIONS):
        session._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
