"""What an engine tells Prometheus: who runs and waits, who gave way, tokens."""

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from pagedcache.monitoring import CacheMetrics  # noqa: E402


def test_a_scrape_says_what_the_engine_does(engine_of, cache_of):
    cache, registry = cache_of(num_blocks=12), prometheus_client.CollectorRegistry()
    engine = engine_of(cache)
    CacheMetrics(registry).add(cache, "main", model="tiny", engine=engine)

    def told(name):
        return registry.get_sample_value(f"pagedcache:{name}", {"model_name": "tiny", "cache": "main"})

    for start in range(4):
        engine.submit(list(range(start, start + 9)), max_tokens=12)
    assert (told("num_requests_running"), told("num_requests_waiting")) == (0, 4)
    while not engine.report.preemptions:
        engine.step()
    assert (told("num_requests_running"), told("num_requests_waiting")) == (engine.num_running, engine.num_waiting)
    assert told("num_requests_running") + told("num_requests_waiting") == 4
    engine.run()
    assert (told("num_requests_running"), told("num_requests_waiting")) == (0, 0)
    assert told("num_preemptions_total") == engine.report.preemptions > 0
    assert (told("prompt_tokens_total"), told("generation_tokens_total")) == (36, 48)
