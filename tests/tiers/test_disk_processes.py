"""One writer, several readers, forks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from disk_blocks import get, key, opened, put, there

from pagedcache.errors import TierError, TierLocked

HERE = Path(__file__).resolve().parents[1]  # where disk_blocks is


def run(source, *arguments):
    """Run Python in another process; its output."""
    source = "import sys\nfrom disk_blocks import *\n" + source
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def tier(tmp_path):
    with opened(tmp_path / "tier") as tier:
        yield tier


def test_a_second_writer_is_refused(tier):
    put(tier, [0])
    with pytest.raises(TierLocked, match=f"process {os.getpid()}.*readonly=True"):
        opened(tier.path)
    said = run(
        "from pagedcache.errors import TierLocked\n"
        "try: opened(sys.argv[1])\n"
        "except TierLocked: print('locked')",
        tier.path,
    )  # fmt: skip
    assert said == ["locked"]
    assert get(tier, [0])


def test_the_lock_goes_with_the_writer(tier):
    tier.close()
    with opened(tier.path) as again:
        assert put(again, [1])


def test_readers_see_what_becomes_visible(tier):
    put(tier, [0, 1])
    with opened(tier.path, readonly=True) as reader:
        assert there(reader, [0, 1, 2]) == [0, 1]
        put(tier, [2])
        assert get(reader, [0, 1, 2]) == 3
        assert reader.stats().blocks == 3 and reader.digests() == tier.digests()
    assert run("with opened(sys.argv[1], readonly=True) as t: print(get(t, [0, 1, 2, 3]))", tier.path) == ["3"]


def test_a_reader_that_loses_a_block_has_a_miss(tier):
    put(tier, [0, 1])
    with opened(tier.path, readonly=True) as reader:
        load = reader.prepare_load([key(0), key(1)])
        assert load.count == 2
        tier.remove([key(1)])
        put(tier, [5])  # takes the slot of 1
        assert get(reader, [0, 1]) == 1
        import numpy as np

        from pagedcache.tiers import Places

        form = reader.form
        found = np.zeros((2, form.layers, form.record_nbytes), np.uint8)
        assert reader.load(load, range(form.layers), Places.of_records(found)) == 1
        reader.complete_load(load)
        assert (reader.stats().corrupt, reader.stats().more["lost"]) == (0, 1)


def test_readers_change_nothing(tier):
    put(tier, [0])
    with opened(tier.path, readonly=True) as reader:
        assert put(reader, [1]) == 0
        reader.touch([key(0)])
        for call in (lambda: reader.pin([key(0)], "a"), lambda: reader.unpin("a"), lambda: reader.remove([key(0)])):
            with pytest.raises(TierError, match="reading only"):
                call()


def test_a_reader_needs_a_folder(tmp_path):
    with pytest.raises(TierError, match="No such file"):
        opened(tmp_path / "none", readonly=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(TierError, match="only a writer creates it"):
        opened(tmp_path / "empty", readonly=True)


def test_readers_while_a_writer_works(tier):
    """Readers in other processes, while blocks come and go: each byte is compared by `get`."""
    source = (
        "with opened(sys.argv[1], readonly=True) as t:\n"
        "    print('up', flush=True)\n"
        "    for _ in range(150): there(t, list(range(0, 400, 7)))\n"
        "    print(t.stats().corrupt)"
    )
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    start = [sys.executable, "-c", "import sys\nfrom disk_blocks import *\n" + source, str(tier.path)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as reader:
        assert reader.stdout.readline() == "up\n"
        number = 0
        while reader.poll() is None:
            put(tier, [(number + i) % 700 for i in range(20)])
            tier.remove([key((number - 200 + i) % 700) for i in range(20)])
            number += 20
        assert reader.stdout.read() == "0\n" and reader.returncode == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads
def test_a_forked_child_finds_nothing_and_harms_nothing(tier):
    put(tier, [0])
    child = os.fork()
    if child == 0:
        right = tier.longest_prefix([key(0)]) == 0 and get(tier, [0]) == 0 and put(tier, [1]) == 0
        try:
            tier.remove([key(0)])
            right = False
        except TierError as error:
            right = right and "parent" in str(error)
        tier.close()
        with opened(tier.path, readonly=True) as reader:
            right = right and get(reader, [0]) == 1
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert put(tier, [1]) and get(tier, [0, 1]) == 2
    with pytest.raises(TierLocked):
        opened(tier.path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_does_not_keep_the_lock(tier):
    """A forked worker that lives on does not lock out the next writer."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(end, 1)  # until the parent closes its side
        os._exit(0)
    os.close(end)
    tier.close()
    with opened(tier.path) as again:
        assert put(again, [3])
    os.close(begin)
    os.waitpid(child, 0)
