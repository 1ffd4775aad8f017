"""The index: an SQLite database that says which slot holds which digest. What it has committed is visible.

It is trusted for nothing but where to look: who finds a slot by it compares the slot's head.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from pagedcache.digests import DIGEST_SIZE
from pagedcache.errors import CorruptFile, ForeignFormat, TierError
from pagedcache.tiers.disk._files import check_file, create_file, sync_folder

__all__ = ["Index", "NotCommitted"]

APPLICATION = 0x70634B56  # "pcKV", so that file(1) and a careful reader know whose it is
VERSION = 1
SCHEMA = {
    "blocks": "CREATE TABLE blocks (digest BLOB PRIMARY KEY, slot INTEGER NOT NULL, used INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "pins": "CREATE TABLE pins (name TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (name, digest)) WITHOUT ROWID",
}
LONGEST = 1 << 20  # bytes of any value or statement
MAX_SLOT = 2**40  # no file has as many
MAX_USE = 2**62
PATIENCE = 10.0  # seconds to wait for another connection, which holds locks for moments only

Row = tuple[bytes, int, int]


class NotCommitted(TierError):
    """Nothing was committed, for want of room or because another connection was busy; the database is in order."""


class Index:
    """The database of a tier.

    Parameters
    ----------
    path : Path
    readonly : bool
        Look only. Where the folder cannot be written at all, the database is taken as it stands.
    sync : bool
        Whether a commit is durable when it returns.
    wal_nbytes : int
        Size of the journal beyond which it is moved into the database.
    """

    def __init__(self, path: Path, *, readonly: bool, sync: bool, wal_nbytes: int) -> None:
        self.path = path
        if check_file(path) is None:
            if readonly:
                raise TierError(f"{path} is not there: only a writer creates it")
            create_file(path, sync=sync)
        for beside in ("-wal", "-shm", "-journal"):
            check_file(path.with_name(path.name + beside))
        with self._told("opening"):
            self._database = self._connect(readonly)
        try:
            with self._told("opening"):
                self._prepare(readonly, sync, wal_nbytes)
        except BaseException:
            self._database.close()
            raise

    def _connect(self, readonly: bool) -> sqlite3.Connection:
        mode = "mode=rw" if not readonly or _can_write(self.path) else "mode=ro&immutable=1"
        if "immutable" in mode and check_file(self.path.with_name(self.path.name + "-wal")):
            raise TierError(
                f"{self.path} was not closed by its last writer and the folder is read-only: open it once where it "
                "can be written, or give write permission"
            )
        return sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=PATIENCE,
        )

    def _prepare(self, readonly: bool, sync: bool, wal_nbytes: int) -> None:
        database = self._database
        database.text_factory = lambda text: text.decode(errors="replace")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("PRAGMA mmap_size = 0")
        database.execute("PRAGMA temp_store = MEMORY")
        if readonly:
            database.execute("PRAGMA query_only = ON")
        else:
            new = not self._tables() and not self._pragma("application_id")
            if new:
                self._create()
            database.execute("PRAGMA journal_mode = WAL")
            if new and sync:  # or a power cut could bring the journal back by which the creation is undone
                sync_folder(self.path.parent)
            database.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
            database.execute(f"PRAGMA wal_autocheckpoint = {max(8, wal_nbytes // 4096)}")
            database.execute(f"PRAGMA journal_size_limit = {wal_nbytes}")
        self._require_ours()

    def _create(self) -> None:
        with self.transaction():
            for statement in SCHEMA.values():
                self._database.execute(statement)
            self._database.execute(f"PRAGMA application_id = {APPLICATION}")
            self._database.execute(f"PRAGMA user_version = {VERSION}")

    def _require_ours(self) -> None:
        """Refuse a database that is not of this format: nothing in it is run."""
        if self._pragma("application_id") != APPLICATION:
            raise CorruptFile(f"{self.path} is not an index of pagedcache")
        version = self._pragma("user_version")
        if version != VERSION:
            raise ForeignFormat(f"{self.path} is of index version {version}; this release knows version {VERSION}")
        if self._tables() != SCHEMA:
            raise CorruptFile(f"{self.path} has other tables than an index of pagedcache")

    def _tables(self) -> dict[str, str]:
        """What the database says it is made of; a few entries at most are looked at."""
        rows = self._database.execute("SELECT name, sql FROM sqlite_master LIMIT 10").fetchall()
        return {str(name): str(sql) for name, sql in rows}

    def _pragma(self, name: str) -> int:
        return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

    def rows(self) -> tuple[list[bytes], NDArray[np.int64], int]:
        """Digests and slots of every row that makes sense, by last use, the oldest first; and the latest use."""
        with self._told("reading"):
            found = self._database.execute(
                "SELECT digest, slot, used FROM blocks WHERE typeof(digest) = 'blob' AND length(digest) = 32 "
                "AND typeof(slot) = 'integer' AND slot >= 0 AND slot < ? AND typeof(used) = 'integer' "
                "AND used >= 0 AND used < ?",
                (MAX_SLOT, MAX_USE),
            ).fetchall()
        if not found:
            return [], np.empty(0, np.int64), 0
        digests, slots, used = zip(*found, strict=True)
        order = np.argsort(np.array(used, np.int64), kind="stable")
        return [digests[i] for i in order.tolist()], np.array(slots, np.int64)[order], max(used)

    def pins(self) -> list[tuple[str, bytes]]:
        """Every (name, digest) that is pinned."""
        with self._told("reading"):
            return self._database.execute(
                "SELECT name, digest FROM pins WHERE typeof(name) = 'text' AND typeof(digest) = 'blob' "
                "AND length(digest) = 32"
            ).fetchall()

    def count(self) -> int:
        """Rows there are, whether they make sense or not."""
        with self._told("reading"):
            return int(self._database.execute("SELECT count(*) FROM blocks").fetchone()[0])

    def find(self, digest: bytes) -> int | None:
        """The slot of a digest, or None."""
        if len(digest) != DIGEST_SIZE:
            return None
        with self._told("reading"):
            row = self._database.execute("SELECT slot FROM blocks WHERE digest = ?", (digest,)).fetchone()
        return row[0] if row and type(row[0]) is int and 0 <= row[0] < MAX_SLOT else None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is changed inside is committed at the end, all of it or nothing."""
        with self._told("writing to"):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def insert(self, rows: Iterable[Row]) -> None:
        """Add (digest, slot, used), inside a transaction."""
        self._database.executemany("INSERT OR REPLACE INTO blocks (digest, slot, used) VALUES (?, ?, ?)", rows)

    def delete(self, digests: Iterable[bytes]) -> None:
        """Forget blocks and their pins, inside a transaction."""
        for digest in digests:
            self._database.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
            self._database.execute("DELETE FROM pins WHERE digest = ?", (digest,))

    def delete_others(self, slots: int) -> None:
        """Forget rows that make no sense or lie beyond so many slots, inside a transaction."""
        self._database.execute(
            "DELETE FROM blocks WHERE typeof(digest) != 'blob' OR length(digest) != 32 "
            "OR typeof(slot) != 'integer' OR slot < 0 OR slot >= ? OR typeof(used) != 'integer' OR used < 0 "
            "OR used >= ?",
            (slots, MAX_USE),
        )

    def use(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Note (used, digest), inside a transaction."""
        self._database.executemany("UPDATE blocks SET used = ? WHERE digest = ?", rows)

    def move(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Note that blocks are elsewhere, (slot, digest), inside a transaction."""
        self._database.executemany("UPDATE blocks SET slot = ? WHERE digest = ?", rows)

    def pin(self, name: str, digests: Iterable[bytes]) -> None:
        """Add pins, inside a transaction."""
        self._database.executemany("INSERT OR IGNORE INTO pins VALUES (?, ?)", ((name, digest) for digest in digests))

    def unpin(self, name: str) -> None:
        """Drop a name's pins, inside a transaction."""
        self._database.execute("DELETE FROM pins WHERE name = ?", (name,))

    def drop_orphans(self) -> int:
        """Drop pins of blocks that are gone, inside a transaction; how many."""
        return self._database.execute("DELETE FROM pins WHERE digest NOT IN (SELECT digest FROM blocks)").rowcount

    def compact(self) -> None:
        """Give back the room of rows that are gone."""
        with self._told("compacting"):
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def problems(self) -> list[str]:
        """What SQLite finds wrong; for a thorough look."""
        with self._told("checking"):
            found = [str(row[0]) for row in self._database.execute("PRAGMA integrity_check(20)").fetchall()]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close the database."""
        with self._told("closing"):
            self._database.close()

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            said = f"{what} {self.path} failed: {error}"
            primary = None if code is None else code & 0xFF
            if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise NotCommitted(said) from error
            if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise CorruptFile(f"{said}; delete the file to begin with an empty index") from error
            raise TierError(said) from error


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
