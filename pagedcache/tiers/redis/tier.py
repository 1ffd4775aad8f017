"""`RedisTier`: blocks on a Redis or Valkey server, which several machines share.

One key per block, whose value is a header and the records (`pagedcache.tiers.frame`). A load first asks for the headers
alone, which tells what is there and what the records' checksums should be; then GETRANGE brings just the layers that
are wanted, straight into the caller's arrays (`transfer`). So loading layer by layer moves no byte twice, and loading
all layers is one GETRANGE per block, as cheap to the server as GET. A store puts blocks under names of its own that
expire within a minute; complete_store renames them, which is atomic.

Whatever the server does or does not do, a call comes back: with what was verified, or as if nothing was there.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pagedcache.tiers._places import require_places
from pagedcache.tiers.block_format import BlockFormat
from pagedcache.tiers.breaker import Breaker
from pagedcache.tiers.frame import Frame, Reading
from pagedcache.tiers.protocol import Load, Places, Store, TierStats
from pagedcache.tiers.redis.connections import Connections
from pagedcache.tiers.redis.server import Server
from pagedcache.tiers.redis.transfer import fetch, stage
from pagedcache.tiers.redis.wire import Wire

__all__ = ["RedisTier"]

MOST_BYTES = 500 << 20  # of a block; a server takes values of 512 MiB at most


@dataclass(eq=False, slots=True)
class _Staged:
    """Where the bytes of a store wait on the server."""

    names: dict[bytes, bytes] = field(default_factory=dict)  # key on the server: name until then


class RedisTier:
    """Blocks on a Redis or Valkey server.

    Nothing that the server does makes a method raise: a server that is away, slow, full or not what it should be holds
    nothing and takes nothing. Calls come from any thread; each has a connection to itself.

    Parameters
    ----------
    url : str
        ``redis://[user:password@]host:port/db``, ``rediss://`` for TLS, ``unix:///path?db=0``.
    prefix : str
        What the keys begin with, ``<prefix>:<format id>:<digest>``.
    timeout : float
        Seconds for each operation, and again for each 8 MiB that it moves.
    ttl : int, optional
        Seconds after which an unused block goes; stores, loads and `touch` begin them anew. None: when the server's
        ``maxmemory-policy`` says so.
    max_failures : int
        Failures in a row after which the server is left alone.
    retry_after : float
        Seconds that it is.

    Raises
    ------
    ValueError
        An argument makes no sense.
    ImportError
        redis-py is not installed.

    Notes
    -----
    The server evicts as it likes. `pin` takes the time to live from blocks, which a ``volatile-*`` policy then spares;
    an ``allkeys-*`` policy knows no pins. Bytes on the server are neither encrypted nor signed: whoever can write there
    can put K/V of their own under a key.

    Examples
    --------
    >>> tier = RedisTier("redis://localhost:1", timeout=0.1)  # where no server is
    >>> from pagedcache import CacheSpec
    >>> tier.bind(BlockFormat.of(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny")))
    >>> tier.longest_prefix([bytes(32)]), tier.stats().errors
    (0, 1)
    >>> tier.close()
    """

    name = "redis"
    writes: Literal["back", "through"] = "through"

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        prefix: str = "pagedcache",
        timeout: float = 0.5,
        ttl: int | None = None,
        max_failures: int = 3,
        retry_after: float = 5.0,
    ) -> None:
        if not 0 < timeout < threading.TIMEOUT_MAX:
            raise ValueError(f"timeout is {timeout} seconds; it must be above 0")
        if ttl is not None and not (type(ttl) is int and ttl >= 1):
            raise ValueError(f"ttl is {ttl!r}; give whole seconds, at least 1, or None")
        if not prefix:
            raise ValueError("prefix is empty: give one that no other user of the server has")
        self._server = Server(Connections(url, timeout), Breaker(max_failures, retry_after))
        self._prefix, self._ttl = prefix, ttl
        self._form: BlockFormat | None = None
        self._frame: Frame | None = None
        self._pins: dict[str, set[bytes]] = {}
        self._stats = TierStats()
        self._lock = threading.Lock()  # of the statistics and the pins

    def bind(self, form: BlockFormat) -> None:
        """From here on blocks are of this format; ForeignFormat where the tier is bound to another one already."""
        if self._form is not None:
            form.require(self._form, "this RedisTier")
        if form.block_nbytes > MOST_BYTES:
            raise ValueError(
                f"a block takes {form.block_nbytes} bytes; a Redis server takes {MOST_BYTES}: give blocks fewer tokens"
            )
        self._form, self._frame = form, Frame(form)

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are there."""
        return len(self._server.read([[b"EXISTS", name] for name in self._names(keys)], until=0))

    def prepare_load(self, keys: Sequence[bytes]) -> Load:
        """Fetch the headers of the leading blocks that are there; the server may still evict them before `load`."""
        form, frame = self._bound()
        names = self._names(keys)
        last = b"%d" % (frame.nbytes - 1)
        found = self._server.read([[b"GETRANGE", name, b"0", last] for name in names], frame.nbytes, until=b"")
        sums = [frame.checksums(reply, key) for key, reply in zip(keys, found, strict=False)]
        count = next((i for i, crcs in enumerate(sums) if crcs is None), len(sums))
        self._forget_wrong(names[count : count + (count < len(sums))])
        self._count(misses=len(keys) - count)
        table = np.array(sums[:count], np.uint32).reshape(count, form.layers)
        return Load(keys, count, Reading(names[:count], table, count))

    def load(self, load: Load, layers: range, places: Places) -> int:
        """Fill ``places.layers[i]`` for i in `layers`; of the load's blocks, how many leading ones are right."""
        form, frame = self._bound()
        reading: Reading = load.state
        require_places(form, places, layers, load.count, "into")
        wanted, right = reading.right, 0
        if not wanted or not layers:
            return wanted
        offset = frame.nbytes + layers.start * form.record_nbytes
        names, crcs = reading.names[:wanted], reading.crcs[:wanted]

        def receive(wire: Wire) -> bool:
            nonlocal right
            for right in fetch(wire, names, offset, crcs, layers, places[:wanted]):  # noqa: B007 - also where it fails
                pass
            return True

        if self._server.attempt(receive, False) and right < wanted:
            self._forget_wrong(names[right : right + 1])
        reading.right, reading.used = right, True
        return right

    def complete_load(self, load: Load) -> None:
        """Count the blocks as used."""
        reading: Reading = load.state
        if reading.used and reading.right:
            self._count(hits=reading.right)
            if self._ttl is not None:  # else reading was use enough
                self._touch(reading.names[: reading.right])
        reading.right = 0

    def prepare_store(self, keys: Sequence[bytes]) -> Store:
        """Ask which of them are not there; none are wanted where the server does not say."""
        self._bound()
        names = self._names(keys)
        found = self._server.read([[b"EXISTS", name] for name in names])
        missing = {names[i]: i for i in reversed(range(len(found))) if found[i] == 0}  # named twice, wanted once
        return Store(keys, np.array(sorted(missing.values()), np.int64), _Staged())

    def store(self, store: Store, places: Places) -> None:
        """Send the bytes of the wanted blocks, under names that last a minute."""
        form, frame = self._bound()
        require_places(form, places, range(form.layers), len(store.wanted), "from")
        if not len(store.wanted):
            return
        digests = [store.keys[i] for i in store.wanted]
        names, mark = self._names(digests), os.urandom(8).hex().encode()
        waiting = [b"%b:store-%b" % (name, mark) for name in names]
        taken: list[bool] = self._server.attempt(lambda wire: stage(wire, waiting, digests, frame, places), [])
        staged: _Staged = store.state
        staged.names.update(pair for pair, good in zip(zip(names, waiting, strict=True), taken, strict=False) if good)
        self._count(errors=taken.count(False))

    def complete_store(self, store: Store) -> int:
        """Make them visible, first to last; how many became so, rather than being there already or lost."""
        staged, store.state.names = store.state.names, {}
        replies = self._server.write([[b"RENAMENX", waiting, name] for name, waiting in staged.items()])
        stored = [name for name, reply in zip(staged, replies, strict=False) if reply == 1]
        late = [waiting for waiting, reply in zip(staged.values(), replies, strict=False) if reply == 0]
        self._set_lifetimes(stored)
        self._server.unlink(late)
        self._count(stored=len(stored))
        return len(stored)

    def abort_store(self, store: Store) -> None:
        """Take the bytes back."""
        staged, store.state.names = store.state.names, {}
        self._server.unlink(list(staged.values()))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Count these as used: for the server's eviction and, where blocks have a time to live, for that."""
        self._touch(self._names(keys))

    def pin(self, keys: Sequence[bytes], name: str) -> int:
        """Take the time to live from blocks; how many are there. The server's own eviction knows no pins (Notes)."""
        names = self._names(keys)
        found = self._server.read([[b"EXISTS", each] for each in names])
        there = [each for each, reply in zip(names, found, strict=False) if reply == 1]
        with self._lock:
            self._pins.setdefault(name, set()).update(there)
        self._set_lifetimes(there)
        return len(there)

    def unpin(self, name: str) -> int:
        """Give the blocks that no other name pins their time to live again; how many the name held."""
        with self._lock:
            held = self._pins.pop(name, set())
        self._set_lifetimes(list(held))
        return len(held)

    def remove(self, keys: Sequence[bytes]) -> int:
        """Forget these, on the server and so for all who share it; how many were there."""
        names = self._names(keys)
        with self._lock:
            for held in self._pins.values():
                held.difference_update(names)
        return self._server.unlink(names)

    def stats(self) -> TierStats:
        """A snapshot of what this object has done; the server is not asked.

        `blocks`, `nbytes`, `capacity` and `evicted` are the server's to know, and 0. ``more`` counts calls that the
        open breaker answered, ``"refused"``, and connections made.
        """
        server = self._server
        with self._lock:
            more = {"refused": server.refused, "connections": server.connections.made}
            return replace(self._stats, errors=self._stats.errors + server.errors, more=more)

    def close(self) -> None:
        """Close the connections; from then on nothing is there."""
        self._server.connections.close()

    def _bound(self) -> tuple[BlockFormat, Frame]:
        if self._form is None or self._frame is None:
            raise RuntimeError("the tier knows no format: call bind first")
        return self._form, self._frame

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the keys' names on the server."""
        return [name.encode() for name in self._bound()[1].names(self._prefix, keys)]

    def _touch(self, names: Sequence[bytes]) -> None:
        if self._ttl is None:
            self._server.write([[b"TOUCH", name] for name in names])
        else:  # XX: what is pinned, here or elsewhere, has no time to live
            self._server.write([[b"EXPIRE", name, b"%d" % self._ttl, b"XX"] for name in names])

    def _set_lifetimes(self, names: Sequence[bytes]) -> None:
        with self._lock:
            pinned = set().union(*self._pins.values())
        keep = [name for name in names if self._ttl is None or name in pinned]
        self._server.write([[b"PERSIST", name] for name in keep])
        if self._ttl is not None:
            self._server.write([[b"EXPIRE", name, b"%d" % self._ttl] for name in names if name not in pinned])

    def _forget_wrong(self, names: Sequence[bytes]) -> None:
        """Remove blocks that are not what they should be; those that have just been evicted do not count."""
        self._count(corrupt=self._server.unlink(names))

    def _count(self, **by: int) -> None:
        with self._lock:
            for name, more in by.items():
                setattr(self._stats, name, getattr(self._stats, name) + more)
