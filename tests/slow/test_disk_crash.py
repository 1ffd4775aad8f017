"""The disk tier after crashes: 200 processes killed at random moments, and power cuts that lose what was not synced.

Every time the folder opens without repair, no wrong byte is served, and nothing is missing whose complete_store had
returned. What a block holds follows from its number (`disk_blocks`), so `get` sees any wrong byte.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import power_cut
import pytest
from disk_blocks import get, key, opened, put, there

pytestmark = [pytest.mark.slow, pytest.mark.thread_unsafe]
KILLS = 100
HERE = Path(__file__).resolve().parents[1]


def store_until_killed(path, size, first, tell, evict):
    """In a child: store groups of blocks, and tell of each group that is complete."""
    chance = random.Random(first)
    with opened(path, size) as tier:
        number = first
        while True:
            group = list(range(number, number + chance.randint(1, 12)))
            put(tier, group)
            os.write(tell, b"".join(b"%d\n" % each for each in group))
            number = group[-1] + 1
            if chance.random() < 0.2:
                get(tier, [chance.randint(0, number)])
            if evict and chance.random() < 0.3:
                tier.remove([key(chance.randint(max(0, number - 100), number))])


def killed(path, size, first, chance, *, evict):
    """Kill a child while it opens the folder, or at work; the numbers that it told of."""
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store_until_killed(path, size, first, tell, evict)
        finally:
            os._exit(1)
    os.close(tell)
    heard = os.read(hear, 10**6) if chance.random() < 0.8 else b""  # until the first group is complete
    time.sleep(chance.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == -signal.SIGKILL, "the child failed by itself"
    with os.fdopen(hear, "rb") as pipe:
        return [int(line) for line in (heard + pipe.read()).split(b"\n") if line]


def test_killed_at_random_moments(tmp_path):
    """No block is lost that was told of, in any of the lives before."""
    chance, told, first = random.Random(1), [], 0
    for _ in range(KILLS):
        new = killed(tmp_path / "tier", "256 MiB", first, chance, evict=False)
        told += new
        with opened(tmp_path / "tier", "256 MiB") as tier:
            assert get(tier, told) == len(told)
            unasked = range(max(told, default=-1) + 1, max(told, default=-1) + 40)
            extra = there(tier, unasked)  # may be complete without having been told of; `there` compares the bytes
            assert tier.stats().corrupt == 0
        first = max([*told, *extra, -1]) + 1
    assert len(told) > KILLS / 2


def test_killed_while_blocks_come_and_go(tmp_path):
    """With evictions and removals, no wrong byte is served and nothing is found corrupt."""
    chance, first, served = random.Random(2), 0, 0
    for _ in range(KILLS):
        told = killed(tmp_path / "tier", "1 MiB", first, chance, evict=True)
        with opened(tmp_path / "tier", "1 MiB") as tier:
            served += len(there(tier, range(max(0, first - 200), first + 300)))
            assert tier.stats().corrupt == 0
            assert sum(file.stat().st_size for file in tier.path.iterdir()) <= 1 << 20
        first = max([*told, first]) + 20
    assert served > KILLS


WORK = """
import os, random, sys
from disk_blocks import *
path, acks, first = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), 0
chance = random.Random(first)
for size in sys.argv[3:]:
    with opened(path, size) as tier:
        for _ in range(25):
            group = list(range(first, first + chance.randint(1, 8)))
            first = group[-1] + 1
            put(tier, group)
            if size == "64 MiB":
                os.write(acks, b"".join(b"%d\\n" % each for each in group))
            elif chance.random() < 0.1:
                tier.pin([key(group[0])], "kept")
                os.write(acks, b"%d\\n" % group[0])
            if size != "64 MiB" and chance.random() < 0.3:
                tier.remove([key(group[-1])] if len(group) > 1 else [])
            get(tier, [chance.randint(0, first)])
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return power_cut.shim(tmp_path_factory.mktemp("shim"))


def recorded(shim, folder, sizes):
    """Run the work under the shim, with a size for each life; the log's records."""
    (folder / "acks").write_bytes(b"")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        "LD_PRELOAD": str(shim),
        "POWERCUT_FOLDER": str(folder / "tier"),
        "POWERCUT_LOG": str(folder / "log"),
    }
    command = [sys.executable, "-c", WORK, folder / "tier", folder / "acks", *sizes]
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(power_cut.records(folder / "log"))


@pytest.mark.parametrize("sizes", [["64 MiB"] * 3, ["1 MiB"] * 3, ["2 MiB", "2 MiB", "1 MiB"]], ids=" ".join)
def test_power_cuts(shim, tmp_path, sizes):
    """Without evictions everything told of is there; with them, and when the folder shrinks, what is pinned."""
    log = recorded(shim, tmp_path, sizes)
    chance, disk, size = random.Random(" ".join(sizes)), power_cut.Disk(), sizes[0]
    cuts = dict.fromkeys(chance.sample(range(len(log)), min(len(log), 250)), 2)
    served = 0
    for at, record in enumerate(log):
        for again in range(cuts.get(at, 0)):
            folder = tmp_path / f"cut-{at}-{again}"
            disk.cut(folder, chance)
            told = [int(line) for line in disk.marks.split(b"\n") if line]
            with opened(folder, size) as tier:
                assert get(tier, told) == len(told), f"cut {at}.{again} lost what was complete"
                last = max(told, default=0)
                served += len(there(tier, range(max(0, last - 100), last + 60)))
                assert tier.stats().corrupt == 0, f"cut {at}.{again}: a slot was written before its row was gone"
                put(tier, [10**6, 10**6 + 1])
                assert get(tier, [10**6, 10**6 + 1]) == 2
            subprocess.run(["rm", "-r", str(folder)], check=True)
        disk.take(record)
    assert served > len(cuts)


def test_the_shim_sees_the_databases_writes(shim, tmp_path):
    """Both the slab and SQLite go through it: or the test above would prove nothing."""
    log = recorded(shim, tmp_path, ["1 MiB"] * 3)
    names = {file: name for what, file, _, name, _ in log if what == "o"}
    seen = {(what, names.get(file, name)) for what, file, _, name, _ in log}
    for name in ("blocks", "index.sqlite", "index.sqlite-wal"):
        assert {("w", name), ("s", name)} <= seen
    assert {("r", "blocks.new/blocks"), ("u", "index.sqlite-wal")} <= seen
    disk = power_cut.Disk()
    for record in log:
        disk.take(record)
    for name, file in disk.names_now().items():  # what the records say is what is there
        if not name.endswith(("-shm", "-wal")):
            disk.files[file].sync()
            assert disk.files[file].durable == (tmp_path / "tier" / name).read_bytes(), name


def test_a_tier_that_does_not_sync_would_be_caught(shim, tmp_path, monkeypatch):
    """The cuts do lose what is not synced: the same test fails where the syncs of the slab are left out."""
    log = recorded(shim, tmp_path, ["64 MiB"] * 3)
    slab = {file for what, file, _, name, _ in log if what == "o" and name == "blocks"}
    chance, disk, lost, syncs = random.Random(3), power_cut.Disk(), 0, 0
    for at, record in enumerate(log):
        if at % 40 == 39:
            folder = tmp_path / f"cut-{at}"
            disk.cut(folder, chance)
            told = [int(line) for line in disk.marks.split(b"\n") if line]
            with opened(folder, "64 MiB") as tier:
                lost += get(tier, told) < len(told)
        syncs += record[0] == "s" and record[1] in slab
        if not (record[0] == "s" and record[1] in slab and syncs > 1):  # the first is that of its header
            disk.take(record)
    assert lost > 5
