"""From the cache to sinks: whoever follows always converges to what the cache would find."""

import pytest

pytest.importorskip("msgspec")

from kv_follower import AllBlocksCleared, Follower, Workload, decoded

from pagedcache.monitoring import KVEventExporter


class Sink:
    """Takes batches into a follower, unless told not to."""

    def __init__(self):
        self.ready, self.follower, self.batches = True, Follower(), []

    def publish(self, payload):
        if self.ready:
            self.follower.take(payload)
            self.batches.append(decoded(payload).events)
        return self.ready


@pytest.mark.parametrize("seed", range(6))
def test_a_follower_finds_what_the_cache_finds(seed):
    work, sink = Workload(seed), Sink()
    exporter = KVEventExporter(work.cache, sink)
    for _ in range(200):
        for _ in range(work.rng.integers(1, 6)):
            work.act()
        exporter.export()
        assert work.agrees(sink.follower)
    assert sum(AllBlocksCleared() in batch for batch in sink.batches) == 1, "only at the start"
    work.cache.check()


def test_what_was_there_before_is_told_first():
    work, sink = Workload(0), Sink()
    work.store([1] * 9)
    work.cache.events()
    assert KVEventExporter(work.cache, sink).export() == 1 and work.agrees(sink.follower)
    assert sink.batches[0][0] == AllBlocksCleared()


def test_no_news_is_no_batch():
    work, sink = Workload(0), Sink()
    exporter = KVEventExporter(work.cache, sink)
    assert [exporter.export(), exporter.export()] == [1, 0]
    assert exporter.export(anew=True) == 1 and work.agrees(sink.follower)


@pytest.mark.parametrize("seed", range(3))
def test_after_a_dropped_batch_everything_is_told_anew(seed):
    work, sink = Workload(seed), Sink()
    exporter = KVEventExporter(work.cache, sink)
    cleared = 0
    for turn in range(100):
        sink.ready = turn % 10 not in (3, 4, 7)
        for _ in range(3):
            work.act()
        exporter.export()
        assert not sink.ready or work.agrees(sink.follower)
    cleared = sum(AllBlocksCleared() in batch for batch in sink.batches)
    assert 10 < cleared <= 21, "the start, and once for each time that batches were dropped"


def test_after_the_log_ran_over_everything_is_told_anew():
    work, sink = Workload(1), Sink()
    exporter = KVEventExporter(work.cache, sink)
    exporter.export()
    for k in range(2500):
        work.cache.release([work.store([k] * 5)])
    exporter.export()
    assert sink.batches[1][0] == AllBlocksCleared() and work.agrees(sink.follower)


def test_a_sink_that_raises_costs_nobody_an_event():
    class Fragile(Sink):
        broken = False

        def publish(self, payload):
            if self.broken:
                raise OSError("gone")
            return super().publish(payload)

    work, fragile, sink = Workload(0), Fragile(), Sink()
    exporter = KVEventExporter(work.cache, {"a": fragile, None: sink})
    exporter.export()
    work.store([1] * 9)
    work.store([1] * 9, namespace="a")
    fragile.broken = True
    with pytest.raises(OSError, match="gone"):
        exporter.export()
    fragile.broken = False
    assert exporter.export() == 2
    assert len(sink.follower.place) == len(fragile.follower.place) == 2


def test_who_is_behind_stays_so_until_everything_was_told():
    """It takes a batch again in the moment after it was asked whether it would."""
    work, sink = Workload(0), Sink()
    exporter = KVEventExporter(work.cache, sink)
    exporter.export()
    sink.ready = False
    work.store([1] * 9)
    exporter.export()
    sink.publish, publish = lambda payload: True, sink.publish
    work.store([2] * 9)
    exporter.export()
    sink.ready, sink.publish = True, publish
    exporter.export()
    assert work.agrees(sink.follower)


def test_each_namespace_has_a_sink_of_its_own():
    work, ours, theirs = Workload(0), Sink(), Sink()
    exporter = KVEventExporter(work.cache, {None: ours, "a": theirs})
    exporter.export()
    work.store([1] * 9)
    work.store([2] * 9, namespace="a")
    work.store([3] * 9, namespace="nobody's")
    assert exporter.export() == 2
    assert {token for _, tokens in ours.follower.children for token in tokens} == {1}
    assert {token for _, tokens in theirs.follower.children for token in tokens} == {2}


def test_one_that_is_behind_does_not_disturb_the_others():
    work, ours, theirs = Workload(0), Sink(), Sink()
    exporter = KVEventExporter(work.cache, {None: ours, "a": theirs})
    exporter.export()
    theirs.ready = False
    for k in range(5):
        work.store([k] * 5)
        work.store([k] * 5, namespace="a")
        exporter.export()
    assert [AllBlocksCleared() in batch for batch in ours.batches] == [True] + [False] * 5
    theirs.ready = True
    exporter.export()
    assert len(theirs.follower.place) == len(ours.follower.place) == 5


def test_a_border_is_not_shared():
    sink = Sink()
    with pytest.raises(ValueError, match="a sink of its own"):
        KVEventExporter(Workload(0).cache, {None: sink, "a": sink})
    with pytest.raises(ValueError, match="a sink of its own"):
        KVEventExporter(Workload(0).cache, {None: sink, "": Sink()})


def test_a_cache_without_events_is_refused():
    with pytest.raises(ValueError, match="events="):
        KVEventExporter(Workload(0, events=None).cache, Sink())
