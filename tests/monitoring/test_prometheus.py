"""What a scrape says: the cache's own numbers, read by Prometheus's own parser."""

import sys

import pytest

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from pagedcache import CacheSpec, KVCache  # noqa: E402
from pagedcache.monitoring import CacheMetrics  # noqa: E402


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return CacheMetrics(registry)


def make_cache():
    return KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=4, block_size=4), num_blocks=8, storage="metadata")


def store(cache, prompt):
    [handle], [cached], _ = cache.admit([prompt])
    cache.commit(cache.extend([handle], len(prompt) - cached), prompt[cached:])
    return handle


def scraped(registry):
    """{(name, cache): (type, value)} of the text that Prometheus would get."""
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name.removeprefix("pagedcache:"), sample.labels["cache"]): (family.type, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_says_what_stats_say(registry, metrics):
    cache = make_cache()
    metrics.add(cache, "main", model="tiny")
    cache.release([store(cache, [1] * 9)])
    store(cache, [1] * 9)
    stats = cache.stats()
    assert scraped(registry) == {
        ("kv_cache_usage_perc", "main"): ("gauge", stats.used / 8),
        ("kv_cache_blocks", "main"): ("gauge", 8),
        ("kv_cache_blocks_used", "main"): ("gauge", 3),
        ("kv_cache_blocks_cached", "main"): ("gauge", 0),
        ("kv_cache_blocks_published", "main"): ("gauge", 2),
        ("kv_cache_blocks_shared", "main"): ("gauge", 0),
        ("kv_cache_blocks_pinned", "main"): ("gauge", 0),
        ("kv_cache_blocks_swapped", "main"): ("gauge", 0),
        ("kv_cache_sequences", "main"): ("gauge", 1),
        ("kv_cache_tokens", "main"): ("gauge", 9),
        ("prefix_cache_queries_total", "main"): ("counter", 18),
        ("prefix_cache_hits_total", "main"): ("counter", 8),
        ("kv_cache_evictions_total", "main"): ("counter", 0),
        ("kv_cache_copies_total", "main"): ("counter", 0),
        ("kv_cache_adopted_total", "main"): ("counter", 0),
    }


def test_labels_name_model_and_cache(registry, metrics):
    cache = make_cache()
    metrics.add(cache, 'a "quoted"\nname', model="m\\")
    labels = {"model_name": "m\\", "cache": 'a "quoted"\nname'}
    assert registry.get_sample_value("pagedcache:kv_cache_blocks", labels) == 8
    families = text_string_to_metric_families(prometheus_client.generate_latest(registry).decode())
    assert labels in [sample.labels for family in families for sample in family.samples]


def test_several_caches_are_told_apart(registry, metrics):
    first, second = make_cache(), make_cache()
    metrics.add(first, "first")
    metrics.add(second, "second")
    store(second, [1] * 9)
    told = scraped(registry)
    assert (told["kv_cache_blocks_used", "first"][1], told["kv_cache_blocks_used", "second"][1]) == (0, 3)


def test_two_caches_of_one_name_are_refused(metrics):
    first, second = make_cache(), make_cache()
    metrics.add(first, "main")
    with pytest.raises(ValueError, match="'main' is watched already"):
        metrics.add(second, "main")
    metrics.remove("main")
    metrics.add(second, "main")
    metrics.remove("nobody")


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_a_cache_that_is_no_more_is_not_told(registry, metrics, how):
    cache, other = make_cache(), make_cache()
    metrics.add(cache, "main")
    metrics.add(other, "other")
    if how == "closed":
        cache.close()
    else:
        del cache
    assert {name for _, name in scraped(registry)} == {"other"}
    metrics.add(other, "main")  # the name is free


def test_nothing_is_read_between_scrapes(registry, metrics, monkeypatch):
    cache, calls = make_cache(), []
    stats = cache.stats
    monkeypatch.setattr(cache, "stats", lambda: calls.append(0) or stats())
    metrics.add(cache, "main")
    store(cache, [1] * 9)
    assert calls == []
    scraped(registry)
    assert len(calls) == 1


def test_a_registry_takes_one_collector(registry, metrics):
    with pytest.raises(ValueError, match="Duplicated"):
        CacheMetrics(registry)


def test_a_missing_extra_is_named(monkeypatch, registry):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ImportError, match=r"pagedcache\[metrics\]"):
        CacheMetrics(registry)
