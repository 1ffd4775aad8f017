"""How long blocks on a Redis server live, and who may come to them."""

import multiprocessing
import subprocess
import threading

import pytest
from redis_setting import FORM, free_port, got, keys_of, put, random_places, records, tier_at

from pagedcache.tiers import Places


def lives(server, tier, keys):
    """Seconds that each key has, None for no end."""
    with server.client() as client:
        seconds = [client.ttl(name) for name in tier._names(keys)]
    return [None if each == -1 else each for each in seconds]


@pytest.fixture
def brief(redis_server):
    """A tier whose blocks live for 1000 s."""
    tier = tier_at(redis_server.url, ttl=1000)
    yield tier
    tier.close()


def test_without_ttl_blocks_have_no_end(redis_server):
    tier, keys = tier_at(redis_server.url), keys_of(2)
    put(tier, keys, random_places(FORM, 2))
    tier.touch(keys)
    assert lives(redis_server, tier, keys) == [None, None]
    tier.close()


def test_use_begins_the_time_anew(redis_server, brief):
    keys = keys_of(3)
    put(brief, keys, random_places(FORM, 3))
    assert all(990 < each <= 1000 for each in lives(redis_server, brief, keys))
    with redis_server.client() as client:
        for name in brief._names(keys):
            client.expire(name, 500)
    got(brief, FORM, keys[:1])
    brief.touch(keys[1:2])
    assert [each > 990 for each in lives(redis_server, brief, keys)] == [True, True, False]


def test_pinned_blocks_have_no_end(redis_server, brief):
    keys = keys_of(3)
    put(brief, keys[:2], random_places(FORM, 2))
    assert brief.pin(keys, "prompt") == 2 and brief.pin(keys[:1], "other") == 1
    brief.touch(keys)
    got(brief, FORM, keys)
    assert lives(redis_server, brief, keys[:2]) == [None, None]
    assert brief.unpin("prompt") == 2
    first, second = lives(redis_server, brief, keys[:2])
    assert first is None and 990 < second <= 1000
    assert brief.unpin("other") == 1 and brief.unpin("other") == 0
    assert lives(redis_server, brief, keys[:1])[0] > 990


def test_removing_ends_pins(redis_server, brief):
    keys = keys_of(1)
    put(brief, keys, random_places(FORM, 1))
    brief.pin(keys, "prompt")
    assert brief.remove(keys) == 1 and brief.unpin("prompt") == 0


def test_a_password_is_needed_and_given(own_server):
    server, keys = own_server("--requirepass", "s3 cret"), keys_of(1)
    url = f"127.0.0.1:{server.port}/2"
    right, wrong, none = (tier_at(f"redis://{who}{url}") for who in (":s3%20cret@", ":guess@", ""))
    assert put(right, keys, random_places(FORM, 1)) == 1 == right.longest_prefix(keys)
    for stranger in (wrong, none):
        assert stranger.longest_prefix(keys) == 0 and stranger.stats().errors == 1
    for tier in (right, wrong, none):
        tier.close()


def test_users_have_passwords(own_server):
    server, keys = own_server("--user", *"cache on >secret ~pagedcache:* +@all".split()), keys_of(1)
    inside, outside = (
        tier_at(f"redis://cache:secret@127.0.0.1:{server.port}", prefix=prefix) for prefix in ("pagedcache", "other")
    )
    assert put(inside, keys, random_places(FORM, 1)) == 1
    assert put(outside, keys, random_places(FORM, 1)) == 0 and outside.stats().errors == 1
    inside.close()
    outside.close()


def test_tls(own_server, tmp_path):
    key, certificate, port = tmp_path / "key", tmp_path / "certificate", free_port()
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes", "-x509"]
    request = ["openssl", "req", "-newkey", "rsa:2048", *subject, "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(request, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl makes a certificate")
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    own_server("--tls-port", str(port), *files)
    tier = tier_at(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
    keys, places = keys_of(20), random_places(FORM, 20)
    assert put(tier, keys, places) == 20
    assert (got(tier, FORM, keys) == records(FORM, places)).all()
    stranger = tier_at(f"rediss://127.0.0.1:{port}")
    assert stranger.longest_prefix(keys) == 0 and stranger.stats().errors == 1
    tier.close()
    stranger.close()


def serve(url, keys, content, into):
    """Another process: what it finds, and what it adds."""
    tier = tier_at(url)
    found = (got(tier, FORM, keys) == content).all()
    added = put(tier, into, random_places(FORM, len(into)))
    into_sight = tier.longest_prefix(into)
    tier.close()
    raise SystemExit(0 if found and added == into_sight == len(into) else 1)


@pytest.mark.thread_unsafe
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_share_blocks(redis_server, method):
    tier, keys, theirs, places = tier_at(redis_server.url), keys_of(3), keys_of(2), random_places(FORM, 3)
    put(tier, keys, places)
    context = multiprocessing.get_context(method)
    other = context.Process(target=serve, args=(redis_server.url, keys, records(FORM, places), theirs))
    other.start()
    other.join(60)
    assert other.exitcode == 0
    assert tier.longest_prefix(theirs) == 2
    tier.close()


@pytest.mark.thread_unsafe
def test_a_forked_tier_makes_connections_of_its_own(redis_server):
    tier, keys = tier_at(redis_server.url), keys_of(3)
    put(tier, keys, random_places(FORM, 3))

    def count():
        raise SystemExit(0 if tier.longest_prefix(keys) == 3 and tier.stats().more["connections"] == 2 else 1)

    other = multiprocessing.get_context("fork").Process(target=count)
    other.start()
    other.join(60)
    assert other.exitcode == 0 and tier.longest_prefix(keys) == 3
    assert tier.stats().errors == 0
    tier.close()


# T09: threads that share a tier get the bytes that they asked for.
def test_t09_threads_share_a_tier(redis_server):
    tier, keys, places = tier_at(redis_server.url), keys_of(40), random_places(FORM, 40)
    content, wrong = records(FORM, places), []

    def work(seed):
        for i in range(20):
            at = (7 * seed + 3 * i) % 36
            if i % 5 == seed % 5:
                tier.remove(keys[at : at + 1])
            rows = Places(places.layers, places.rows[at : at + 4])
            put(tier, keys[at : at + 4], rows)
            found = got(tier, FORM, keys[at : at + 4])
            if not (found == content[at : at + len(found)]).all():
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and tier.stats().errors == 0 and tier.stats().hits > 0
    tier.close()
