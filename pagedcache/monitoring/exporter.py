"""From a cache to those who follow it: drains its events and hands each namespace its own."""

from collections.abc import Mapping
from time import time
from typing import Literal, Protocol

from pagedcache.cache import KVCache
from pagedcache.keys import Namespace
from pagedcache.monitoring.kv_events import encode_events

__all__ = ["EventSink", "KVEventExporter"]

Border = Namespace | bytes | str | None


class EventSink(Protocol):
    """What takes encoded batches, such as a `ZmqPublisher`."""

    @property
    def ready(self) -> bool:
        """Whether `publish` would take a batch now."""
        ...

    def publish(self, payload: bytes) -> bool:
        """Take a batch, without waiting; False where it was dropped."""
        ...


class KVEventExporter:
    """Tells routers what a cache holds.

    It is the one reader of the cache's events. What it tells first is everything; the same after a batch was dropped,
    or when the cache's log ran over: who follows always converges.

    Parameters
    ----------
    cache : KVCache
        Made with ``events="tokens"``, or ``"digests"`` where no token ids are to leave the process.
    sinks : EventSink, or mapping of namespace to EventSink
        Where batches go. One alone is told of the default namespace. Namespaces that are not named are told to nobody:
        a namespace is a border, so each has a sink, that is an endpoint, of its own. A ZeroMQ topic is none: whoever
        connects may subscribe to all of them.
    rank, form, hashes, medium
        As in `encode_events`.

    Raises
    ------
    ValueError
        The cache records no events, or two namespaces share a sink.

    Notes
    -----
    Call `export` after a step, or from time to time: what happened in between waits in the cache. Not for use by
    several threads at once.

    Examples
    --------
    >>> from pagedcache import CacheSpec, KVCache
    >>> cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8), num_blocks=8, events="tokens")
    >>> with ZmqPublisher("inproc://events") as publisher:                            # doctest: +SKIP
    ...     KVEventExporter(cache, publisher).export()
    1
    """

    def __init__(
        self,
        cache: KVCache,
        sinks: EventSink | Mapping[Border, EventSink],
        *,
        rank: int = 0,
        form: Literal["map", "array"] = "map",
        hashes: Literal["int", "bytes"] = "int",
        medium: str | None = None,
    ) -> None:
        named = sinks if isinstance(sinks, Mapping) else {None: sinks}
        self._sinks = {Namespace.of(name).name: sink for name, sink in named.items()}
        if len({id(sink) for sink in self._sinks.values()}) < len(named):
            raise ValueError("two namespaces share a sink, or are the same: give each a sink of its own")
        self._cache, self._rank, self._form, self._hashes, self._medium = cache, rank, form, hashes, medium
        self._behind = set(self._sinks)  # who has to be told everything
        cache.events()  # raises where there are none; what it returns is told anew

    def export(self, *, anew: bool = False) -> int:
        """Tell what happened since the last call.

        Parameters
        ----------
        anew : bool
            Tell everything, after an AllBlocksCleared: for those who came late.

        Returns
        -------
        int
            Batches handed over: at most one for each sink.

        Raises
        ------
        ImportError
            The extra ``events`` is not installed.
        """
        anew = anew or any(self._sinks[name].ready for name in self._behind)
        still, self._behind = self._behind, set(self._sinks)  # where this is cut short, all are told anew
        events = self._cache.events(anew=anew)
        handed = 0
        for name, sink in self._sinks.items():
            payload = encode_events(
                events,
                self._cache.spec.block_size,
                time=time(),
                namespace=name,
                rank=self._rank,
                form=self._form,
                hashes=self._hashes,
                medium=self._medium,
            )
            if payload is None:
                continue
            if not sink.publish(payload):
                still.add(name)
            else:
                handed += 1
                if anew:
                    still.discard(name)
        self._behind = still
        return handed
