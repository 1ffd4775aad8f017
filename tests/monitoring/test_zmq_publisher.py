"""Batches over ZeroMQ: numbered without a gap, replayed on request, never in the engine's way, gone when closed."""

import os
import subprocess
import sys
import threading

import pytest

zmq = pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from kv_follower import Follower, Workload  # noqa: E402

from pagedcache.monitoring import KVEventExporter, ZmqPublisher  # noqa: E402

END = b"\xff" * 8
WAIT = 10_000  # milliseconds after which a test fails that would hang


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def subscribe(context):
    """``subscribe(publisher, topic=b"")``: a Subscriber, closed at the end."""
    made = []

    def make(publisher, topic=b""):
        made.append(Subscriber(context, publisher, topic))
        return made[-1]

    yield make
    for subscriber in made:
        subscriber.live.close(0)
        subscriber.asked.close(0)


class Subscriber:
    """Subscribes, sees gaps, and asks for what it missed."""

    def __init__(self, context, publisher, topic):
        self.live, self.asked = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.live.rcvtimeo = self.asked.rcvtimeo = WAIT
        self.live.subscribe(topic)
        self.live.connect(publisher.endpoint)
        self.follower, self.wanted, self.gaps = Follower(), 0, 0
        if publisher.replay is not None:
            self.asked.connect(publisher.replay)

    def replay(self, first):
        """What the publisher has kept from a number on: [(topic, number, payload)]."""
        self.asked.send_multipart([b"", first.to_bytes(8, "big")])
        return self.replies()

    def replies(self):
        replies = []
        while True:
            empty, topic, number, payload = self.asked.recv_multipart()
            assert empty == b""
            if number == END:
                assert (topic, payload) == (b"", b"")
                return replies
            replies.append((topic, int.from_bytes(number, "big"), payload))

    def take(self, number, payload):
        if number == self.wanted:
            self.follower.take(payload)
            self.wanted += 1

    def follow(self, last, lossy=None):
        """Read up to batch number `last`; `lossy` draws which messages are lost on the way."""
        while self.wanted <= last:
            _, number, payload = self.live.recv_multipart()
            number = int.from_bytes(number, "big")
            if lossy is not None and number < last and lossy():
                continue
            if number > self.wanted:
                self.gaps += 1
                for _, kept, batch in self.replay(self.wanted):
                    self.take(kept, batch)
            self.take(number, payload)


def settled(publisher, sent):
    """Wait until the thread has sent so many batches."""
    for _ in range(WAIT):
        if publisher.sent == sent:
            return
        threading.Event().wait(0.001)
    pytest.fail(f"{publisher.sent} of {sent} batches were sent")


@pytest.mark.parametrize("endpoint", ["inproc://events", "tcp://127.0.0.1:*"], ids=["inproc", "tcp"])
@pytest.mark.parametrize("lossy", [False, True], ids=["all arrive", "some are lost"])
def test_a_subscriber_rebuilds_the_index(context, subscribe, endpoint, lossy):
    work = Workload(3)
    with ZmqPublisher(endpoint, replay=endpoint.replace("events", "replay"), context=context) as publisher:
        exporter, subscriber, handed = KVEventExporter(work.cache, publisher), subscribe(publisher), 0
        while not subscriber.live.poll(10):  # until its subscription is known; what it misses is replayed
            handed += exporter.export(anew=True)
        for _ in range(20):
            for _ in range(10):
                work.act()
                handed += exporter.export()
            settled(publisher, handed)
            subscriber.follow(handed - 1, (lambda: work.rng.random() < 0.3) if lossy else None)
            assert work.agrees(subscriber.follower)
        assert publisher.dropped == 0 and (subscriber.gaps > 5 or not lossy)


def test_frames_are_topic_number_payload(context, subscribe):
    with ZmqPublisher("inproc://events", replay="inproc://replay", topic="kv@pod@model", context=context) as publisher:
        subscriber, sent = subscribe(publisher, topic=b"kv@"), 0
        while not subscriber.live.poll(10):
            assert publisher.publish(b"first")
            sent += 1
        topic, number, payload = subscriber.live.recv_multipart()
        assert (topic, payload) == (b"kv@pod@model", b"first") and len(number) == 8
        publisher.publish(b"last")
        settled(publisher, sent + 1)
        assert subscriber.replay(sent) == [(b"kv@pod@model", sent, b"last")]
        assert subscriber.replay(sent + 1) == []
        assert len(subscriber.replay(0)) == sent + 1


def test_only_the_last_batches_are_kept(context, subscribe):
    with ZmqPublisher("inproc://events", replay="inproc://replay", keep=3, context=context) as publisher:
        for k in range(10):
            publisher.publish(b"%d" % k)
        settled(publisher, 10)
        subscriber = subscribe(publisher)
        assert subscriber.replay(0) == [(b"", 7, b"7"), (b"", 8, b"8"), (b"", 9, b"9")]


def test_a_replay_is_whole_however_slowly_it_is_read(context, subscribe):
    with ZmqPublisher("inproc://events", replay="inproc://replay", queue=5000, context=context) as publisher:
        for _ in range(3000):
            publisher.publish(b"x")
        settled(publisher, 3000)
        subscriber = subscribe(publisher)
        subscriber.asked.send_multipart([b"", bytes(8)])
        assert subscriber.asked.poll(WAIT)
        publisher.publish(b"y")
        settled(publisher, 3001)  # the thread has answered before it sends again
        assert len(subscriber.replies()) == 3000


@pytest.mark.parametrize("request_", [[b"", b"x"], [b"", b"0" * 9], [b"0" * 8], [b"", b"", b"0" * 8], [b"x", b"0" * 8]])
def test_requests_that_are_none_are_ignored(context, subscribe, request_):
    with ZmqPublisher("inproc://events", replay="inproc://replay", context=context) as publisher:
        publisher.publish(b"batch")
        settled(publisher, 1)
        subscriber = subscribe(publisher)
        subscriber.asked.send_multipart(request_)
        assert subscriber.replay(0) == [(b"", 0, b"batch")]


def test_the_engine_never_waits(context, monkeypatch):
    """A thread that is stuck costs batches, which are counted and get no number."""
    stuck, entered, go_on = (
        ZmqPublisher("inproc://events", queue=2, context=context),
        *(threading.Event() for _ in "ab"),
    )
    send = stuck._send
    monkeypatch.setattr(stuck, "_send", lambda *args: (entered.set(), go_on.wait(10), send(*args)))
    with stuck as publisher:
        assert publisher.publish(b"0") and entered.wait(10)
        assert [publisher.publish(b"%d" % k) for k in range(1, 5)] == [True, True, False, False]
        assert not publisher.ready and publisher.dropped == 2
        go_on.set()
        settled(publisher, 3)
        assert publisher.ready and publisher.publish(b"3")
        settled(publisher, 4)
    assert [payload for _, payload in publisher._kept] == [b"0", b"1", b"2", b"3"]


def test_what_was_published_goes_out_before_it_closes(context):
    publisher = ZmqPublisher("inproc://events", context=context).start()
    for k in range(500):
        assert publisher.publish(b"%d" % k)
    publisher.close()
    publisher.close()
    assert publisher.sent == 500 and not publisher.running
    assert not publisher.publish(b"late") and publisher.dropped == 1


def test_nothing_runs_before_it_is_started():
    before = threading.active_count()
    publisher = ZmqPublisher("inproc://events")
    assert not publisher.publish(b"x") and not publisher.running and publisher.dropped == 1
    publisher.close()
    assert threading.active_count() == before


def test_it_is_started_once(context):
    with (
        ZmqPublisher("inproc://events", context=context) as publisher,
        pytest.raises(RuntimeError, match="make a new one"),
    ):
        publisher.start()
    with pytest.raises(RuntimeError, match="make a new one"):
        publisher.start()


@pytest.mark.parametrize(("events", "replay"), [("inproc://taken", None), ("inproc://a", "inproc://taken")])
def test_an_endpoint_that_is_taken_is_an_error_at_start(context, events, replay):
    with ZmqPublisher("inproc://taken", context=context):
        publisher = ZmqPublisher(events, replay=replay, context=context)
        with pytest.raises(zmq.ZMQError):
            publisher.start()
        assert not publisher.running
        assert not publisher.publish(b"x")


def test_it_may_connect_to_a_subscriber(context, subscribe):
    with context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.bind("inproc://central")
        with ZmqPublisher("inproc://central", connect=True, context=context) as publisher:
            while not subscriber.poll(10):
                publisher.publish(b"x")
        assert subscriber.recv_multipart()[2] == b"x"


def test_it_ends_with_its_context():
    context = zmq.Context()
    publisher = ZmqPublisher("inproc://events", replay="inproc://replay", context=context).start()
    assert publisher.publish(b"x")
    settled(publisher, 1)
    context.term()
    publisher._thread.join(10)
    assert not publisher.running and not publisher.publish(b"y")
    publisher.close()


def test_threads_may_publish_at_once(context):
    with ZmqPublisher("inproc://events", replay="inproc://replay", queue=10_000, context=context) as publisher:
        batches = [[b"%d %d" % (thread, k) for k in range(300)] for thread in range(4)]
        threads = [threading.Thread(target=lambda mine=mine: [*map(publisher.publish, mine)]) for mine in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(publisher, 1200)
        assert publisher.dropped == 0 and [number for number, _ in publisher._kept] == list(range(1200))
        sent = [payload for _, payload in publisher._kept]
        assert [[p for p in sent if p in mine] for mine in map(set, batches)] == batches, "each thread's own, in order"


@pytest.mark.parametrize("bound", ["queue", "keep", "pending"])
def test_bounds(bound):
    with pytest.raises(ValueError, match=f"{bound} is 0"):
        ZmqPublisher("inproc://events", **{bound: 0})


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ImportError, match=r"pagedcache\[events\]"):
        ZmqPublisher("inproc://events").start()


FORK = """
import os, signal
from pagedcache.monitoring import ZmqPublisher

with ZmqPublisher("tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*") as publisher:
    assert publisher.publish(b"before")
    child = os.fork()
    if child == 0:
        signal.alarm(30)    # a child that hangs fails the test, not the run
        assert not publisher.running and not publisher.publish(b"in the child")
        publisher.close()
        with ZmqPublisher("tcp://127.0.0.1:*") as its_own:
            assert its_own.publish(b"x")
        assert its_own.sent == 1
        del publisher, its_own
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert publisher.running and publisher.publish(b"after")
assert publisher.sent == 2 and publisher.dropped == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_in_a_forked_child_nothing_runs():
    done = subprocess.run([sys.executable, "-P", "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_that_forgets_to_close_ends():
    code = "from pagedcache.monitoring import ZmqPublisher as P; p = P('tcp://127.0.0.1:*').start(); p.publish(b'x')"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
