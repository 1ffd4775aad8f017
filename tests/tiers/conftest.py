"""What tests of tiers share: a redis-server."""

import shutil

import pytest


@pytest.fixture(scope="session")
def redis_session():
    """One redis-server for the whole run; skips where none is installed."""
    pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server is installed")
    from redis_setting import RedisServer

    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_server(redis_session):
    """The server, empty."""
    with redis_session.client() as client:
        client.flushall()
    return redis_session


@pytest.fixture
def own_server(redis_session):
    """A function that starts a server with options; they end with the test."""
    from redis_setting import RedisServer

    servers = []

    def start(*options):
        servers.append(RedisServer(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def fake_server():
    """A function that starts a FakeServer; they end with the test."""
    pytest.importorskip("redis")
    from redis_setting import FakeServer

    servers = []

    def start(behave):
        servers.append(FakeServer(behave))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
