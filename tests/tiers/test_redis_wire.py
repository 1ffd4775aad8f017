"""The Redis protocol, as spoken to the other end of a socket pair."""

import socket
import threading

import numpy as np
import pytest

from pagedcache.tiers.redis.wire import BadReply, Refused, Wire, command


@pytest.fixture
def ends():
    """A wire that waits 0.2 s, and the server's end."""
    ours, theirs = socket.socketpair()
    wire = Wire(ours, 0.2)
    yield wire, theirs
    wire.close()
    theirs.close()


def pieces_of(*sizes):
    return [np.zeros(size, np.uint8) for size in sizes]


def test_small_replies(ends):
    wire, server = ends
    wire.send([command(b"PING")], 6)
    server.sendall(b":12\r\n:-1\r\n+OK\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no\r\n")
    assert wire.replies(6, 3) == [12, -1, b"OK", b"a\r\n", None, "ERR no"]
    assert wire.reusable and server.recv(100) == b"*1\r\n$4\r\nPING\r\n"


def test_a_refusal_is_no_bulk(ends):
    wire, server = ends
    server.sendall(b"-x\r\n$1\r\nx\r\n")
    refused, said = wire.replies(2, 1)
    assert isinstance(refused, Refused) and not isinstance(said, Refused)


def test_replies_in_single_bytes(ends):
    wire, server = ends
    data = b":7\r\n$2\r\nab\r\n"
    thread = threading.Thread(target=lambda: [server.sendall(data[i : i + 1]) for i in range(len(data))])
    thread.start()
    assert wire.replies(2, 2) == [7, b"ab"]
    thread.join()


# Hostile lengths are refused before memory is taken.
@pytest.mark.parametrize(
    "reply",
    [
        b"$4\r\nabcd\r\n",
        b"$99999999999999\r\n",
        b"$" + b"9" * 5000 + b"\r\n",
        b"$-2\r\n",
        b"$1x\r\n",
        b"$\xb2\r\n",
        b"$+1\r\n",
        b"$ 1\r\n",
        b":\r\n",
        b"*3\r\n:1\r\n",
        b"%1\r\n",
        b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$3\r\nabcde",
        b"x" * 2000,
    ],
)
def test_what_redis_would_not_say_is_refused(ends, reply):
    wire, server = ends
    wire.send([command(b"GET", b"k")], 1)
    server.sendall(reply)
    with pytest.raises(BadReply):
        wire.replies(1, 3)
    assert not wire.reusable


@pytest.mark.parametrize(("size", "portion"), [(50, 1), (50, 3), (200_000, 100), (200_000, 70_000)])
def test_bulks_arrive_in_any_portions(ends, size, portion):
    wire, server = ends
    content = np.random.default_rng(portion).integers(0, 256, size, np.uint8)
    data = b"$%d\r\n%b\r\n" % (size, content.tobytes())
    parts = pieces_of(0, 10, size // 2, size - size // 2 - 10)
    send = [data[i : i + portion] for i in range(0, len(data), portion)]
    thread = threading.Thread(target=lambda: [server.sendall(each) for each in send])
    wire.send([command(b"GET", b"k")], 1)
    wire.expect(100 << 20)
    thread.start()
    assert wire.bulk_into(parts, size) and wire.reusable
    assert (np.concatenate(parts) == content).all()
    thread.join()


def test_more_pieces_than_a_system_call_takes(ends):
    wire, server = ends
    content = np.arange(3000, dtype=np.uint8)
    server.sendall(b"$3000\r\n" + content.tobytes() + b"\r\n:1\r\n")
    parts = pieces_of(*[1] * 3000)
    wire.expect(3000)
    assert wire.bulk_into(parts, 3000) and (np.concatenate(parts) == content).all()
    assert wire.replies(1) == [1]
    wire.send(parts, 0)
    assert server.recv(3000, socket.MSG_WAITALL) == content.tobytes()


@pytest.mark.parametrize("reply", [b"$0\r\n\r\n", b"$-1\r\n", b"$99\r\n", b"$1000\r\n"])
def test_a_bulk_of_another_size_ends_reading_at_once(ends, reply):
    wire, server = ends
    wire.send([command(b"GET", b"k")], 1)
    server.sendall(reply)
    wire.expect(100)
    assert wire.bulk_into(pieces_of(100), 100) is False
    assert not wire.reusable


@pytest.mark.parametrize("reply", [b"-LOADING\r\n", b":1\r\n", b"garbage", b"$100\r\n" + b"x" * 104])
def test_no_bulk_at_all_raises(ends, reply):
    wire, server = ends
    server.sendall(reply)
    wire.expect(100)
    with pytest.raises(BadReply):
        wire.bulk_into(pieces_of(100), 100)


def test_bytes_that_nobody_asked_for_are_not_taken_for_a_bulk(ends):
    wire, server = ends
    server.sendall(b":1\r\n$1\r\nx\r\n")
    assert wire.replies(1) == [1]
    with pytest.raises(BadReply, match="unasked"):
        wire.bulk_into(pieces_of(1), 1)


def test_silence_ends(ends):
    wire, _ = ends
    with pytest.raises(OSError):
        wire.replies(1)


def test_an_end_is_no_reply(ends):
    wire, server = ends
    server.sendall(b"$5\r\nab")
    server.close()
    with pytest.raises(ConnectionResetError):
        wire.replies(1, 5)


def test_a_peer_that_reads_nothing_ends_a_send(ends):
    wire, _ = ends
    with pytest.raises(OSError):
        wire.send([bytes(4 << 20)], 1)


def test_a_drip_ends_when_its_time_is_over(ends):
    wire, server = ends
    stop = threading.Event()

    def drip():
        while not stop.wait(0.02):
            server.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError, match="too slow"):
        wire.replies(1)
    stop.set()
    thread.join()
