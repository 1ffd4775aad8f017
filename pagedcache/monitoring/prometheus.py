"""Numbers of caches and engines for Prometheus, read when they are scraped and never in between."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pagedcache.cache import KVCache
from pagedcache.core import CacheStats
from pagedcache.errors import CacheClosed
from pagedcache.monitoring._extras import needed

if TYPE_CHECKING:
    from pagedcache.serving import Engine

__all__ = ["CacheMetrics"]

LABELS = ("model_name", "cache")


class _Metric(NamedTuple):
    name: str  # after the prefix; a counter's ends in _total where it is scraped
    counts: bool  # counter or gauge
    help: str
    value: Callable[[Any], float]


OF_CACHE: tuple[_Metric, ...] = (
    _Metric(
        "kv_cache_usage_perc", False, "Share of the blocks that are held; 1 is all.", lambda s: s.used / s.num_blocks
    ),
    _Metric("kv_cache_blocks", False, "Usable blocks of the pool.", lambda s: s.num_blocks),
    _Metric("kv_cache_blocks_used", False, "Blocks held; a shared one counts once.", lambda s: s.used),
    _Metric("kv_cache_blocks_cached", False, "Idle blocks that a prefix match can find.", lambda s: s.cached),
    _Metric("kv_cache_blocks_published", False, "Blocks that a prefix match can find.", lambda s: s.published),
    _Metric("kv_cache_blocks_shared", False, "Blocks held more than once.", lambda s: s.shared),
    _Metric("kv_cache_blocks_pinned", False, "Blocks held by pins.", lambda s: s.pinned),
    _Metric("kv_cache_blocks_swapped", False, "Blocks in another tier.", lambda s: s.swapped),
    _Metric("kv_cache_sequences", False, "Live sequences.", lambda s: s.sequences),
    _Metric("kv_cache_tokens", False, "Tokens of live sequences; shared ones count for each.", lambda s: s.tokens),
    _Metric("prefix_cache_queries", True, "Prompt tokens looked up.", lambda s: s.query_tokens),
    _Metric("prefix_cache_hits", True, "Of these, tokens found.", lambda s: s.hit_tokens),
    _Metric("kv_cache_evictions", True, "Cached blocks given up for new content.", lambda s: s.evictions),
    _Metric("kv_cache_copies", True, "Blocks copied before a write.", lambda s: s.copies),
    _Metric("kv_cache_adopted", True, "Blocks given up for an equal published one.", lambda s: s.adopted),
)
OF_ENGINE: tuple[_Metric, ...] = (
    _Metric("num_requests_running", False, "Sequences in the batch.", lambda e: e.num_running),
    _Metric("num_requests_waiting", False, "Sequences that wait, preempted ones too.", lambda e: e.num_waiting),
    _Metric("num_preemptions", True, "Sequences that gave way when blocks ran out.", lambda e: e.report.preemptions),
    _Metric("prompt_tokens", True, "Prompt tokens submitted.", lambda e: e.report.prompt_tokens),
    _Metric("generation_tokens", True, "New tokens.", lambda e: e.report.new_tokens),
)


class _Watched(NamedTuple):
    model: str
    cache: "weakref.ref[KVCache]"
    engine: "weakref.ref[Engine] | None"

    def stats(self) -> CacheStats | None:
        """The cache's counters; None once it is closed or gone."""
        cache = self.cache()
        try:
            return None if cache is None else cache.stats()
        except CacheClosed:
            return None


class CacheMetrics:
    """A collector of ``prometheus_client`` for the caches of a process.

    Names are vLLM's where it has the same number, after ``pagedcache:``. Labels are ``model_name`` and ``cache``. A
    scrape calls ``cache.stats()``, which takes the cache's lock and looks at every block; between scrapes nothing is
    done.

    Parameters
    ----------
    registry : prometheus_client.CollectorRegistry, optional
        Where to register; the default one if not given. A registry takes one `CacheMetrics`.

    Raises
    ------
    ImportError
        The extra ``metrics`` is not installed.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry
    >>> from pagedcache import CacheSpec, KVCache
    >>> cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4), num_blocks=8)
    >>> ids = cache.admit([[1, 2, 3, 4, 5]]).ids
    >>> registry = CollectorRegistry()
    >>> CacheMetrics(registry).add(cache, "main", model="tiny")
    >>> registry.get_sample_value("pagedcache:kv_cache_usage_perc", {"model_name": "tiny", "cache": "main"})
    0.25
    """

    def __init__(self, registry: Any = None) -> None:
        self._client = needed("prometheus_client.core", "metrics")
        self._watched: dict[str, _Watched] = {}
        (self._client.REGISTRY if registry is None else registry).register(self)

    def add(self, cache: KVCache, name: str, *, model: str = "", engine: "Engine | None" = None) -> None:
        """Watch a cache, until it is closed or gone.

        Parameters
        ----------
        cache : KVCache
        name : str
            The label ``cache``.
        model : str
            The label ``model_name``.
        engine : Engine, optional
            What serves from the cache: who runs and waits, preemptions, tokens.

        Raises
        ------
        ValueError
            Another cache that is not closed has the name.
        """
        watched = _Watched(model, weakref.ref(cache), None if engine is None else weakref.ref(engine))
        for old, known in list(self._watched.items()):
            if known.stats() is None:
                self.remove(old)
        if self._watched.setdefault(name, watched) is not watched:
            raise ValueError(f"a cache named {name!r} is watched already: remove() it, or give this one another name")

    def remove(self, name: str) -> None:
        """Watch a cache no longer; a name that is not known is fine."""
        self._watched.pop(name, None)

    def describe(self) -> Iterable[Any]:
        """The metrics without samples, for ``prometheus_client``."""
        return [self._family(metric) for metric in (*OF_CACHE, *OF_ENGINE)]

    def collect(self) -> Iterator[Any]:
        """The metrics of all caches, for ``prometheus_client``."""
        of_caches: list[tuple[tuple[str, str], Any]] = []
        of_engines: list[tuple[tuple[str, str], Any]] = []
        for name, watched in list(self._watched.items()):
            stats = watched.stats()
            if stats is None:
                continue
            of_caches.append(((watched.model, name), stats))
            engine = None if watched.engine is None else watched.engine()
            if engine is not None:
                of_engines.append(((watched.model, name), engine))
        for metrics, sources in ((OF_CACHE, of_caches), (OF_ENGINE, of_engines)):
            for metric in metrics:
                family = self._family(metric)
                for labels, source in sources:
                    family.add_metric(labels, metric.value(source))
                yield family

    def _family(self, metric: _Metric) -> Any:
        made = self._client.CounterMetricFamily if metric.counts else self._client.GaugeMetricFamily
        return made(f"pagedcache:{metric.name}", metric.help, labels=LABELS)
