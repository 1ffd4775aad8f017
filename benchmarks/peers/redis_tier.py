"""Loads of a RedisTier against redis-py's own get, from one redis-server in one run: a table of ratios.

    pip install "pagedcache[redis]"; apt-get install redis-server
    python benchmarks/peers/redis_tier.py            # seconds; --rounds for more

It starts a redis-server on a free loopback port and ends it. The sides take turns, a round of all blocks each; figures
are medians of rounds, per block. redis-py gives bytes objects, one `get` after the other, and checks nothing; a load
brings the same bytes into rows of K and V per layer, verified. redis-py's `set` sends one value again and again; a
store removes what was there, computes checksums and renames. Also shown: redis-py's pipeline, and a copy in memory.
The exit status is 1 where bytes differ, or where the bar, 1.5 times redis-py's get for blocks of 2 MiB, is missed.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from statistics import median

import numpy as np
import redis

from pagedcache import CacheSpec
from pagedcache.tiers import BlockFormat, Places, RedisTier
from pagedcache.tiers.frame import Frame

BAR = 1.5
LAYERS = 32
SIZES = {"128 KiB": 1, "512 KiB": 4, "2 MiB": 16}  # tokens of a block of 8 K/V heads of 64, float32


@contextmanager
def own_server():
    """Yield the port of a redis-server that keeps nothing on disk."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    folder = tempfile.mkdtemp()
    options = ["--bind", "127.0.0.1", "--save", "", "--dir", folder]
    process = subprocess.Popen(["redis-server", "--port", str(port), *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


class Sides:
    """Blocks of one size on the server, and the ways to bring them here and there."""

    def __init__(self, port, tokens, count):
        self.form = BlockFormat.of(CacheSpec(LAYERS, 8, 64, dtype="float32", block_size=tokens, fingerprint=b"bench"))
        self.digests = [os.urandom(32) for _ in range(count)]
        self.tier = RedisTier(f"redis://127.0.0.1:{port}/0", timeout=5)
        self.tier.bind(self.form)
        self.client = redis.Redis(port=port)
        self.names = [f"pagedcache:{Frame(self.form).format_id}:{digest.hex()}" for digest in self.digests]
        rng = np.random.default_rng(0)
        self.given = self.places(lambda shape: rng.integers(0, 256, shape, np.uint8))
        self.taken = self.places(lambda shape: np.ones(shape, np.uint8))
        self.ways = {
            "redis-py, get": self.get,
            "redis-py, pipeline of gets": self.pipeline,
            "RedisTier, load": self.load,
            "RedisTier, layer by layer": lambda: self.load(1),
            "memcpy": self.copy,
            "redis-py, set": lambda: [self.client.set(b"x" + name.encode(), self.value) for name in self.names],
            "RedisTier, store": self.store,
        }
        self.store()
        self.value = self.client.get(self.names[0])

    def places(self, make):
        """Return places in new arrays, which `make` makes."""
        count = len(self.digests)
        layers = [tuple(make((count, width)) for width in self.form.piece_nbytes) for _ in range(LAYERS)]
        return Places(layers, np.arange(count))

    def get(self):
        for name in self.names:
            self.client.get(name)  # and let go: to keep all would cost fresh memory for each

    def pipeline(self):
        with self.client.pipeline(transaction=False) as pipeline:
            for name in self.names:
                pipeline.get(name)
            pipeline.execute()

    def load(self, step=LAYERS):
        load = self.tier.prepare_load(self.digests)
        for first in range(0, LAYERS, step):
            right = self.tier.load(load, range(first, first + step), self.taken)
            assert right == len(self.digests), self.tier.stats()
        self.tier.complete_load(load)

    def store(self):
        self.tier.remove(self.digests)
        store = self.tier.prepare_store(self.digests)
        self.tier.store(store, self.given)
        assert self.tier.complete_store(store) == len(self.digests), self.tier.stats()

    def copy(self):
        for given, taken in self.pairs():
            np.copyto(taken, given)

    def pairs(self):
        """Yield the arrays that went and those that came."""
        for given, taken in zip(self.given.layers, self.taken.layers, strict=True):
            yield from zip(given, taken, strict=True)

    def measure(self, rounds):
        """Return milliseconds per block of each way: medians of rounds in which they take turns."""
        seconds = {name: [] for name in self.ways}
        for _ in range(rounds):
            for name, way in self.ways.items():
                began = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - began)
        return {name: 1e3 * median(each) / len(self.digests) for name, each in seconds.items()}

    def same(self):
        """Whether a load brings what was stored, into arrays that held something else."""
        for _, taken in self.pairs():
            taken.fill(1)
        self.load()
        return all(np.array_equal(given, taken) for given, taken in self.pairs())

    def close(self):
        self.client.flushall()
        self.client.close()
        self.tier.close()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side (default 15)")
    parser.add_argument("--quick", action="store_true", help="one round, no bar: does it run, not how fast")
    arguments = parser.parse_args(argv)
    failed = False
    print(f"redis-py {redis.__version__}; ms per block, and how many times as fast as redis-py's get or set")
    with own_server() as port:
        for size, tokens in SIZES.items():
            sides = Sides(port, tokens, 32)
            figures = sides.measure(1 if arguments.quick else arguments.rounds)
            print(f"blocks of {size}" + ("" if sides.same() else "    BYTES DIFFER"))
            failed = failed or not sides.same()
            for name, each in figures.items():
                ratio = figures["redis-py, set" if name.endswith(("set", "store")) else "redis-py, get"] / each
                line = f"  {name:<30}{each:>8.3f} ms{ratio:>8.2f}x"
                if size == "2 MiB" and name == "RedisTier, load" and not arguments.quick:
                    line += f"  >= {BAR:g}x  {'ok' if ratio >= BAR else 'MISSED'}"
                    failed = failed or ratio < BAR
                print(line)
            sides.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
