"""Servers that are away, die, hang, lie or are full: misses, and calls that come back."""

import dataclasses
import threading
import time

import pytest
from redis_setting import FORM, SPEC, empty_places, free_port, got, keys_of, put, random_places, records, tier_at

from pagedcache.tiers import BlockFormat, Places, RedisTier

BIG = BlockFormat.of(dataclasses.replace(SPEC, block_size=512))


def everything(tier, keys, places):
    """Call all that a cache calls, on a server that holds nothing."""
    assert tier.longest_prefix(keys) == 0
    assert len(got(tier, FORM, keys)) == 0
    assert put(tier, keys, places) == 0
    assert tier.pin(keys, "name") == 0 == tier.unpin("name")
    tier.touch(keys)
    assert tier.remove(keys) == 0


def calm_tier(server, **arguments):
    """A tier whose breaker tries again at once."""
    return tier_at(server.url, max_failures=1000, retry_after=0.01, **arguments)


def test_a_dead_server_is_a_miss():
    pytest.importorskip("redis")
    tier = tier_at(f"redis://127.0.0.1:{free_port()}", retry_after=1000)
    everything(tier, keys_of(2), random_places(FORM, 2))
    stats = tier.stats()
    assert stats.errors == 3 and stats.more["refused"] > 0, "the breaker opens after three"
    tier.close()


@pytest.mark.parametrize("url", ["redis://no.such.host.invalid", "unix:///no/such/socket"])
def test_a_server_that_does_not_exist_is_a_miss(url):
    pytest.importorskip("redis")
    tier = tier_at(url)
    assert tier.longest_prefix(keys_of(1)) == 0 and tier.stats().errors == 1
    tier.close()


def test_a_server_that_comes_back_is_used_again(own_server):
    server = own_server()
    tier, keys, places = calm_tier(server), keys_of(3), random_places(FORM, 3)
    put(tier, keys, places)
    server.kill()
    everything(tier, keys, places)
    server.start()
    time.sleep(0.02)
    assert tier.longest_prefix(keys) == 0
    assert put(tier, keys, places) == 3
    assert (got(tier, FORM, keys) == records(FORM, places)).all()
    tier.close()


def test_a_restart_between_calls_is_no_failure(own_server):
    server = own_server()
    tier, keys = tier_at(server.url), keys_of(1)
    assert tier.longest_prefix(keys) == 0
    server.kill()
    server.start()
    assert tier.longest_prefix(keys) == 0 and tier.stats().errors == 0
    tier.close()


def test_a_server_killed_between_layers_ends_the_load(own_server):
    server = own_server()
    tier, keys, places, there = calm_tier(server), keys_of(3), random_places(FORM, 3), empty_places(FORM, 3)
    put(tier, keys, places)
    load = tier.prepare_load(keys)
    assert tier.load(load, range(1), there) == 3
    server.kill()
    assert tier.load(load, range(1, 2), there) == 0
    server.start()
    assert tier.load(load, range(2, 3), there) == 0, "a load that failed does not come back to life"
    tier.complete_load(load)
    assert tier.stats().hits == 0
    tier.close()


@pytest.mark.parametrize("moment", ["prepared", "sent"])
def test_a_server_killed_in_a_store_loses_it(own_server, moment):
    server = own_server()
    tier, keys, places = calm_tier(server), keys_of(3), random_places(FORM, 3)
    store = tier.prepare_store(keys)
    if moment == "sent":
        tier.store(store, places)
    server.kill()
    if moment == "prepared":
        tier.store(store, places)
    server.start()
    time.sleep(0.02)
    assert tier.complete_store(store) == 0 == tier.longest_prefix(keys)
    assert put(tier, keys, places) == 3
    tier.close()


# T09: while a server dies and comes back, threads that use it get right bytes or none.
def test_t09_a_server_killed_under_load_serves_no_wrong_byte(own_server):
    server, stop, wrong, loaded = own_server(), threading.Event(), [], []
    keys, places = keys_of(64), random_places(BIG, 64)
    tier = tier_at(server.url, BIG, max_failures=3, retry_after=0.01)
    content = records(BIG, places)

    def work(first):
        while not stop.is_set():
            part = slice(first, first + 16)
            put(tier, keys[part], Places(places.layers, places.rows[part]))
            found = got(tier, BIG, keys[part])
            loaded.append(len(found))
            if not (found == content[part][: len(found)]).all():
                wrong.append(first)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 16, 32, 48)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        time.sleep(0.1)
        server.kill()
        time.sleep(0.05)
        server.start()
    until = time.monotonic() + 20
    while tier.longest_prefix(keys) < 64 and time.monotonic() < until:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and 0 in loaded and 16 in loaded
    assert (got(tier, BIG, keys) == content).all()
    tier.close()


def test_a_server_that_never_answers_costs_its_time_and_then_none(fake_server):
    server = fake_server(lambda connection: connection.recv(100_000) and time.sleep(0.5))
    tier = tier_at(server.url, timeout=0.05, max_failures=2, retry_after=1000)
    everything(tier, keys_of(2), random_places(FORM, 2))
    assert tier.stats().errors == 2 and server.accepted <= 2
    tier.close()


def half(reply):
    """Answer what comes first by some bytes, and close."""

    def behave(connection):
        connection.recv(100_000)
        connection.sendall(reply)

    return behave


# Each is sent as the answer to whatever is asked first.
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\x00" * 5000,
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"$99999999999999\r\n",
        b"$-7\r\n",
        b"*1000000000\r\n",
        b":" + b"9" * 3000,
        b"+OK\r\n" * 5000,
        b"-NOAUTH Authentication required.\r\n" * 9,
        b"-LOADING Redis is loading the dataset in memory\r\n" * 9,
    ],
)
def test_answers_without_sense_are_misses(fake_server, reply):
    server = fake_server(half(reply))
    tier = tier_at(server.url, timeout=0.5, max_failures=100)
    keys = keys_of(2)
    assert got(tier, FORM, keys).shape[0] == 0 and put(tier, keys, random_places(FORM, 2)) == 0
    assert tier.stats().corrupt == 0
    tier.close()


def test_a_server_that_sends_without_end_is_left(fake_server):
    def pour(connection):
        connection.recv(100_000)
        while True:
            connection.sendall(b":1\r\n" * 10_000)

    server = fake_server(pour)
    tier = tier_at(server.url, timeout=0.2, max_failures=100)
    load = tier.prepare_load(keys_of(2))
    assert load.count == 0 and len(got(tier, FORM, keys_of(1))) == 0
    tier.close()


def test_a_server_that_greets_wrongly_is_left(fake_server):
    tier = tier_at(fake_server(half(b"$5000000000\r\n")).url.replace("//", "//user:secret@"), timeout=0.2)
    assert tier.longest_prefix(keys_of(1)) == 0 and tier.stats().errors == 1
    tier.close()


def test_a_full_server_is_still_read(own_server):
    server = own_server("--maxmemory-policy", "noeviction")
    tier, keys, places = tier_at(server.url), keys_of(2), random_places(FORM, 2)
    put(tier, keys[:1], places)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
    for _ in range(5):
        assert put(tier, keys[1:], places[1:]) == 0
    assert tier.stats().errors == 5 and tier.stats().more["refused"] == 0
    assert (got(tier, FORM, keys) == records(FORM, places)[:1]).all()
    tier.close()


def test_a_replica_is_read(own_server):
    server = own_server()
    tier, keys, places = tier_at(server.url), keys_of(2), random_places(FORM, 2)
    put(tier, keys[:1], places)
    with server.client() as client:
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof("127.0.0.1", free_port())
    assert put(tier, keys[1:], places[1:]) == 0 == tier.remove(keys)
    tier.touch(keys)
    assert (got(tier, FORM, keys) == records(FORM, places)[:1]).all() and tier.stats().more["refused"] == 0
    tier.close()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"url": "http://localhost"}, "redis://"),
        ({"url": "redis://localhost:port"}, "ort"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"ttl": 0}, "ttl is 0"),
        ({"ttl": 1.5}, "ttl is 1.5"),
        ({"prefix": ""}, "prefix is empty"),
        ({"max_failures": 0}, "max_failures is 0"),
        ({"retry_after": 0}, "retry_after is 0"),
    ],
)
def test_arguments_without_sense_are_refused(arguments, word):
    pytest.importorskip("redis")
    with pytest.raises(ValueError, match=word):
        RedisTier(**arguments)


def test_calls_before_bind_are_refused():
    pytest.importorskip("redis")
    with pytest.raises(RuntimeError, match="call bind first"):
        RedisTier().longest_prefix(keys_of(1))
