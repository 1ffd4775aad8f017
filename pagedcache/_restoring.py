"""A saved file's contents into a cache: room first, bytes next, and only then anything that can be found.

Full blocks whose tokens are known are adopted by the prefix cache. Then each sequence comes in as one that was swapped
out: it shares what is published, and gets blocks of its own for the rest.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._saved_blocks import format_of, groups_of
from pagedcache._saved_origins import Origin, namespaces_of, origins_of, require_groups
from pagedcache.errors import OutOfSequences
from pagedcache.saved._manifest import SavedPath
from pagedcache.saved.conversion import converted, require_convertible
from pagedcache.saved.saved_file import SavedFile

if TYPE_CHECKING:
    from pagedcache._residency import Residency

__all__ = ["Restoration"]

Int32 = NDArray[np.int32]


class Restoration:
    """One restore, under the cache's lock.

    Parameters
    ----------
    cache : Residency
        With storage.
    saved : SavedFile
    namespace, convert
        As in `KVCache.restore`.
    """

    def __init__(self, cache: "Residency", saved: SavedFile, namespace: Any, convert: bool) -> None:
        self._cache, self._table, self._saved = cache, cache.sequences, saved
        self._groups = saved.manifest.groups
        self._form = format_of(cache.spec)
        expected = replace(self._form, dtype=saved.form.dtype) if convert else self._form
        expected.require(saved.form, saved.where)
        require_convertible(saved.form, self._form, saved.where)
        require_groups(groups_of(cache.spec), self._groups, saved.where)
        self._owners = namespaces_of(saved, namespace)
        self._origins = origins_of(saved.manifest.paths)
        self._places: dict[int, int] = {}  # record -> block of the pool that has its bytes, not yet published

    def run(self) -> NDArray[np.int64]:
        """Bring everything in; the handles."""
        paths = self._saved.manifest.paths
        self._cache.synchronize()  # so that what waits for work is usable
        self._require_room_for_rows([path for path in paths if path.is_sequence])
        wanted = self._wanted(paths)
        spare = self._own_blocks(paths)
        if len(wanted) + spare > self._table.pool.num_free - self._table.pool.num_cached:
            self._saved.verify()  # before anything is evicted for it
        known = [path for path in paths if path.known]
        holds = [self._table.hold(self._found(path)[0], **self._about(path))[0] for path in known]
        reserved = np.empty(0, np.int32)
        rows: dict[int, int] = {}
        try:
            taken = self._table.pool.allocate(len(wanted) + spare)
            self._cache._settle()  # what was evicted for them goes to the tiers while it is still there
            self._places = dict(zip(wanted.tolist(), taken.tolist(), strict=False))
            reserved = taken[len(wanted) :]
            self._write(wanted, taken[: len(wanted)])
            self._cache.synchronize()  # blocks whose bytes are on their way would wait for that when dropped
            for path in paths:
                self._adopt(path)
            self._table.pool.decref(reserved)
            reserved = reserved[:0]
            for number, origin in self._origins.items():
                parent = None if origin.parent is None else rows[origin.parent]
                if parent is not None and origin.is_whole:
                    rows[number] = int(self._table.fork([parent], 1, paths[number].position)[0, 0])
                else:
                    rows[number] = self._bring_in(paths[number], origin, parent)
            return np.array([rows[number] for number in sorted(rows)], np.int64)
        except BaseException:
            self._cache._cover()
            self._table.release(list(rows.values()))
            raise
        finally:
            self._table.pool.decref([*self._places.values(), *reserved.tolist()])
            for hold in holds:
                self._table.let_go(hold)

    # -- what is there, and what is needed --------------------------------------------------------

    def _require_room_for_rows(self, rows: list[SavedPath]) -> None:
        longest = max((row.position for row in rows), default=0)
        if longest > self._table.max_length:
            raise ValueError(
                f"{self._saved.where} has a sequence of {longest} positions; max_length is {self._table.max_length}: "
                "make the cache with a larger one, or with more blocks"
            )
        vacant = self._table.max_sequences - self._table.num_sequences
        if len(rows) > vacant:
            raise OutOfSequences(
                f"{self._saved.where} has {len(rows)} sequences, and {vacant} of {self._table.max_sequences} rows are "
                "vacant; release sequences, or make the cache with a larger max_sequences"
            )

    def _about(self, path: SavedPath) -> dict[str, Any]:
        """What a path depends on besides tokens, as arguments."""
        return {"namespace": self._owners[path.owner], "keys": path.keys or None}

    def _found(self, path: SavedPath) -> tuple[NDArray[np.int32], Int32, int]:
        """Return a known path's tokens, as many as its keys need; its published blocks; and how many of them do."""
        tokens = np.zeros(path.reach, np.int32)
        tokens[: path.position] = self._saved.tokens_of(path)
        full = path.position // self._form.block_size
        found = self._table.published_blocks(tokens, **self._about(path))[:full]
        lacking = ((found == 0) & (path.blocks[: len(found)] >= 0)).any(axis=1)
        first = int(np.argmax(lacking)) if lacking.any() else len(found)
        return tokens, found, first

    def _wanted(self, paths: list[SavedPath]) -> Int32:
        """Return the records that the prefix cache shall have and lacks."""
        wanted = [np.empty(0, np.int32)]
        for path in paths:
            if path.known:
                records = path.blocks[self._found(path)[2] : path.position // self._form.block_size]
                wanted.append(records[records >= 0])
        return np.unique(np.concatenate(wanted))

    def _own_blocks(self, paths: list[SavedPath]) -> int:
        """How many blocks the sequences need besides those that they share with the prefix cache, or each other."""
        count = 0
        for number, origin in self._origins.items():
            own = self._own(paths[number], origin)
            if paths[number].known:
                own[: paths[number].position // self._form.block_size] = False
            count += int(own.sum())
        return count

    def _own(self, path: SavedPath, origin: Origin) -> NDArray[np.bool_]:
        """Which blocks a sequence must have and does not share with its origin, [entries, groups]."""
        own = self._kept(path)
        if origin.is_whole:
            own[:] = False
        elif origin.parent is not None:
            own[: origin.shared] &= ~self._kept(self._saved.manifest.paths[origin.parent])[: origin.shared]
        return own

    def _kept(self, path: SavedPath) -> NDArray[np.bool_]:
        """Which blocks a sequence must have, [entries, groups]."""
        size = self._form.block_size
        kept = [group.kept(len(path.blocks), size, path.position, path.pad) for group in self._groups]
        return np.stack(kept, axis=1)

    # -- bringing in ------------------------------------------------------------------------------

    def _write(self, records: Int32, blocks: Int32) -> None:
        """The bytes of records into blocks of the pool."""
        into = dict(zip(records.tolist(), blocks.tolist(), strict=True))
        for numbers, data in self._saved.records(records):
            targets = np.array([into[number] for number in numbers.tolist()], np.int32)
            fitting = converted(data, self._saved.form, self._form)
            self._cache.backend.write_blocks(self._cache.storage, targets, fitting, self._cache._layers())

    def _adopt(self, path: SavedPath) -> None:
        """Have the prefix cache find a path's full blocks; the caller's references to them are given back."""
        if not path.known:
            return
        tokens, _, first = self._found(path)
        rows = []
        for records in path.blocks[first : path.position // self._form.block_size].tolist():
            if records[0] not in self._places:  # the path before had it, under other blocks
                break
            rows.append([self._places.get(record, 0) for record in records])
        if rows:
            blocks = np.array(rows, np.int32)
            blocks = blocks[:, 0] if len(self._groups) == 1 else blocks
            level = min(path.priority, self._table.pool.policy.num_levels - 1)
            self._table.adopt(tokens, blocks, first=first, priority=level, **self._about(path))
            for record in path.blocks[first : first + len(rows)].ravel().tolist():
                self._places.pop(record, None)

    def _bring_in(self, path: SavedPath, origin: Origin, parent: int | None) -> int:
        """One sequence; its handle."""
        missing = self._own(path, origin)
        tokens = None
        if path.known:
            tokens, found, _ = self._found(path)
            missing[: len(found)] &= found == 0
        level = min(path.priority, self._table.pool.policy.num_levels - 1)
        handle = self._table.admit_swapped(
            path.position, tokens, pad=path.pad, priority=level, like=parent, shared=origin.shared, **self._about(path)
        )
        try:
            blocks = self._table.begin_swap_in([handle])
            self._write(path.blocks[missing], blocks)
            self._cache._cover()
            self._table.swap_in([handle])
            self._table.publish([handle])
        except BaseException:
            self._cache._cover()
            self._table.release([handle])
            raise
        return handle
