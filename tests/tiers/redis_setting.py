"""Redis servers, real and false, and blocks to keep on them."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from pagedcache import CacheSpec
from pagedcache.tiers import BlockFormat, Places, RedisTier

SPEC = CacheSpec(layers=3, kv_heads=2, head_dim=8, v_head_dim=4, dtype="int8", block_size=4, fingerprint=b"model")
FORM = BlockFormat.of(SPEC)
RANDOM = np.random.default_rng(8)


class RedisServer:
    """A redis-server of our own, on a free loopback port and a Unix socket; it keeps nothing on disk."""

    def __init__(self, *options):
        self.folder = Path(tempfile.mkdtemp(prefix="pcredis"))
        self.options = options
        self.port = free_port()
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self):
        return f"unix://{self.folder / 'sock'}"

    def start(self):
        """Start it and wait until it answers."""
        fixed = ["--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), "--unixsocket", "sock"]
        command = ["redis-server", "--port", str(self.port), *fixed, *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self.process.poll() is None and time.monotonic() < until, "redis-server does not start"
            time.sleep(0.01)

    def kill(self):
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def close(self):
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, **arguments):
        """Return redis-py's client, to look and to do harm."""
        import redis

        return redis.Redis.from_url(self.url, **arguments)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class FakeServer:
    """A loopback socket that treats each connection as `behave(connection)` does, in a thread."""

    def __init__(self, behave):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.behave = behave
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        self.accepted = 0
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.accepted += 1
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    self.behave(connection)

    def close(self):
        """Accept no more, and wait for the last connection to end."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


def keys_of(count):
    """Return that many keys."""
    return [RANDOM.bytes(32) for _ in range(count)]


def random_places(form, count, rows=None):
    """Return the places of blocks of random bytes: a piece each of K, V and scales, in arrays with rows to spare."""
    rows = np.arange(count) if rows is None else np.asarray(rows)
    fewest = int(rows.max(initial=0)) + 2
    layers = [
        tuple(RANDOM.integers(0, 256, (fewest, width), np.uint8) for width in form.piece_nbytes)
        for _ in range(form.layers)
    ]
    return Places(layers, rows)


def empty_places(form, count):
    """Return places for blocks, as records."""
    return Places.of_records(np.zeros((count, form.layers, form.record_nbytes), np.uint8))


def records(form, places, count=None):
    """Return the bytes at some places, uint8 [blocks, layers, record]."""
    rows = places.rows[:count]
    return np.stack([np.concatenate([piece[rows] for piece in layer], axis=1) for layer in places.layers], axis=1)


def tier_at(url, form=FORM, **arguments):
    """Return a bound tier that waits long enough for a busy machine."""
    tier = RedisTier(url, **{"timeout": 5.0} | arguments)
    tier.bind(form)
    return tier


def put(tier, keys, places):
    """Store blocks; how many became visible."""
    store = tier.prepare_store(keys)
    tier.store(store, places[store.wanted])
    return tier.complete_store(store)


def got(tier, form, keys):
    """Load all layers of the leading blocks; their bytes."""
    load = tier.prepare_load(keys)
    places = empty_places(form, load.count)
    right = tier.load(load, range(form.layers), places)
    tier.complete_load(load)
    return records(form, places, right)
