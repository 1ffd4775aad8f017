"""Memory of pools in the host: aligned, zero, committed by use, and given back."""

import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagedcache.backends.host import HostStorage
from pagedcache.backends.host.memory import zeros
from pagedcache.errors import CacheClosed, ViewsOutstanding
from pagedcache.spec import CacheSpec

MIB = 2**20
needs_statm = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc/self/statm")


def resident():
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("nbytes", [1, 64, 4096, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 7 * MIB + 4096])
def test_arrays_are_aligned_and_zero(nbytes):  # R12
    kept = [zeros((nbytes,), np.dtype(np.uint8)) for _ in range(3)]  # neighbours: one could be aligned by chance
    for array in kept:
        assert array.ctypes.data % (2 * MIB if nbytes >= 2 * MIB else 64) == 0
        assert array.flags.c_contiguous and array.flags.writeable
        assert not array.any()
        array[[0, -1]] = 255
    assert [int(array.sum()) for array in kept] == [510 if nbytes > 1 else 255] * 3


def test_every_array_of_a_pool_is_aligned():
    storage = HostStorage(CacheSpec(3, 2, 64, dtype="int8", block_size=16), 2000)
    arrays = [array for plane in storage.planes for array in plane]
    assert [array.ctypes.data % (2 * MIB) for array in arrays if array.nbytes >= 2 * MIB] == [0] * 6
    assert [array.ctypes.data % 64 for array in arrays] == [0] * 12


@needs_statm
@pytest.mark.thread_unsafe  # what other threads take would count
def test_memory_is_touched_only_by_use():  # M15
    before = resident()
    storage = HostStorage(CacheSpec(2, 8, 128), 16384)
    assert storage.nbytes > 4 * 2**30
    assert resident() - before < 16 * MIB
    storage.planes[0][0][2**13, 0, 0, 0] = 1
    assert storage.view(0)[0][2**13].sum() == 1
    assert resident() - before < 32 * MIB


@needs_statm
@pytest.mark.thread_unsafe  # what other threads take would count
def test_memory_goes_back_when_a_pool_is_closed():
    storage = HostStorage(CacheSpec(2, 8, 128), 1024)
    for plane in storage.planes:
        for array in plane:
            array[...] = 1
    del plane, array
    before = resident()
    storage.close()
    assert before - resident() > 240 * MIB  # of 256
    storage.close()
    with pytest.raises(CacheClosed):
        storage.view(0)


def flags_of(address):
    """VmFlags of the mapping that holds an address."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(span[1], 16) <= address < int(span[2], 16)
        elif found and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping holds {address:#x}")


@pytest.mark.skipif(
    not (Path("/proc/self/smaps").exists() and Path("/sys/kernel/mm/transparent_hugepage").exists()),
    reason="no /proc/self/smaps, or a kernel without huge pages",
)
def test_huge_pages_are_asked_for_as_far_as_they_are_whole():
    array = zeros((5 * MIB,), np.dtype(np.uint8))
    wanted = ["hg" in flags_of(array.ctypes.data + at) for at in (0, 4 * MIB - 1, 4 * MIB, 5 * MIB - 1)]
    assert wanted == [True, True, False, False]


def test_a_kernel_without_huge_pages(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, *arguments):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("pagedcache.backends.host.memory.mmap.mmap", Refusing)
    array = zeros((3 * MIB,), np.dtype(np.uint8))
    assert array.ctypes.data % (2 * MIB) == 0
    assert not array.any()


def test_a_system_without_flags_and_advice(monkeypatch):
    for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_HUGEPAGE"):
        monkeypatch.delattr(f"pagedcache.backends.host.memory.mmap.{name}", raising=False)
    assert not zeros((3 * MIB,), np.dtype(np.uint8)).any()


@pytest.mark.parametrize("kv_heads", [2**10, 2**11])  # within 64 bits, and beyond
def test_more_memory_than_there_can_be(kv_heads):  # R14
    spec, num_blocks = CacheSpec(1, kv_heads, 2**10, block_size=1024), 2**31 - 2
    with pytest.raises(MemoryError, match=rf"pool of {spec.pool_nbytes(num_blocks)} bytes .*fewer blocks"):
        HostStorage(spec, num_blocks)


UNDER_A_LIMIT = """
import resource
from pagedcache.backends.host import HostStorage
from pagedcache.spec import CacheSpec

spec = CacheSpec(2, 8, 128)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, resource.RLIM_INFINITY))
try:
    HostStorage(spec, spec.blocks_for("1200 MiB"))
except MemoryError as error:
    print(error)
    HostStorage(spec, spec.blocks_for("800 MiB"))
"""


@needs_statm
def test_a_pool_beyond_the_limit_is_refused_and_leaves_room_for_a_smaller_one(tmp_path):  # R14
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spec = CacheSpec(2, 8, 128)
    num_blocks = spec.blocks_for("1200 MiB")
    assert f"no memory for a pool of {spec.pool_nbytes(num_blocks)} bytes ({num_blocks} blocks): " in done.stdout
    assert "fewer blocks, or raise the limit" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_has_its_own_copy():
    storage = HostStorage(CacheSpec(1, 1, 1), 4)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # a child that hangs fails the test, not the run
        storage.view(0)[0][...] = 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not storage.view(0)[0].any()


def test_owned_memory_goes_back_at_close(monkeypatch):  # P05, R12
    made = []

    class Watched(mmap.mmap):
        def __del__(self):
            made.remove(id(self))

    def watched(*args, **options):
        memory = Watched(*args, **options)
        made.append(id(memory))
        return memory

    monkeypatch.setattr("pagedcache.backends.host.memory.mmap.mmap", watched)
    storage = HostStorage(CacheSpec(2, 1, 8), 4)
    assert len(made) == 4
    view = storage.view(1)
    with pytest.raises(ViewsOutstanding, match="2 arrays"):
        storage.close()
    del view
    storage.close()
    assert made == []
