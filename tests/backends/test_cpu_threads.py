"""Backend "cpu": results do not depend on the number of threads, and threads, children and callers go well together."""

import os
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, Step
from pagedcache.backends.cpu import CpuBackend, _native
from pagedcache.errors import UnsupportedByBackend
from pagedcache.testing import make_scene

DTYPES = ["float32", "float16", "bfloat16", "int8", "float8_e4m3"]
SCENES = {  # (q_len, kv_len) of each sequence: more than what one thread does while another wakes up
    "decode": {"lengths": [(1, 2000), (1, 700), (1, 9), (1, 3000)]},
    "prefill": {"lengths": [(150, 150), (1, 400), (70, 333)]},
    "cascade": {"lengths": [(1, 900), (3, 850), (1, 820), (2, 40)], "shared": [(0, 3, 50)]},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("isa", _native.supported())
def test_results_do_not_depend_on_the_number_of_threads(name, dtype, isa):  # contract 6
    before = _native.current()
    _native.use(isa)
    try:
        scene = make_scene(CpuBackend(1), CacheSpec(1, 4, 64, dtype=dtype), q_heads=8, **SCENES[name])
        found = set()
        for threads in (1, 2, 5, 5):
            scene.backend = CpuBackend(threads)
            found.add(tuple(array.tobytes() for array in scene.attend()))
    finally:
        _native.use(before)
    assert len(found) == 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_a_number_of_threads_is_one_or_more(threads):
    with pytest.raises(ValueError, match=rf"threads is {threads!r}.*1 or more"):
        CpuBackend(threads)
    with pytest.raises(ValueError, match="1 or more"):
        KVCache(CacheSpec(1, 1, 4), num_blocks=2, threads=threads)


def test_threads_of_a_cache_are_its_own():
    spec = CacheSpec(1, 1, 4)
    with KVCache(spec, num_blocks=2, threads=3) as cache, KVCache(spec, num_blocks=2) as other:
        assert cache.backend.threads == 3 and other.backend.threads == CpuBackend().threads
        assert cache.backend is not other.backend


def test_a_backend_without_threads_refuses_them():
    with pytest.raises(UnsupportedByBackend, match=r"threads is 2; backend 'numpy' has none.*threadpoolctl"):
        KVCache(CacheSpec(1, 1, 4), num_blocks=2, backend="numpy", threads=2)


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("", len(os.sched_getaffinity(0)))])
def test_a_variable_sets_the_default(monkeypatch, value, expected):
    monkeypatch.setenv("PAGEDCACHE_NUM_THREADS", value)
    assert CpuBackend().threads == expected and CpuBackend(2).threads == 2


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5"])
def test_a_variable_that_is_no_number_is_refused(monkeypatch, value):
    monkeypatch.setenv("PAGEDCACHE_NUM_THREADS", value)
    with pytest.raises(ValueError, match=rf"PAGEDCACHE_NUM_THREADS is '{value}'.*1 or more"):
        CpuBackend()


def run_python(code):
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=False)


FORK = """
import os, signal, threading
import numpy as np
from pagedcache import CacheSpec
from pagedcache.backends.cpu import CpuBackend
from pagedcache.testing import make_scene

def native_threads():
    return len(os.listdir("/proc/self/task"))

before = native_threads()
scene = make_scene(CpuBackend(4), CacheSpec(1, 4, 64), [(1, 4000), (64, 3000)], q_heads=8)
expected = scene.attend()[0].tobytes()
started = native_threads()
assert before == 1 and started > 1, (before, started)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)    # a child that hangs fails the test, not the run
        assert native_threads() == 1
        assert scene.attend()[0].tobytes() == expected
        assert native_threads() == started
        os._exit(0)
    children.append(child)
assert scene.attend()[0].tobytes() == expected
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux does")
def test_the_child_of_a_fork_after_use_has_a_team_of_its_own():  # contract 13
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr


def in_threads(work, count=8):
    """Run work(i) in so many threads at once; what they raised is raised here."""
    failures, barrier = [], threading.Barrier(count)

    def run(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def generate(cache, number, turn=None):
    """Prefill and two decode steps of one sequence, then the last again, only read; attention's results as bytes."""
    rng, out = np.random.default_rng(number), []
    sid = cache.admit([[number] * 700], namespace=str(number)).ids
    for count in (700, 1, 1):
        q, k, v = (rng.standard_normal((count, heads, 64), np.float32) for heads in (8, 4, 4))
        with turn or nullcontext():
            step = cache.extend(sid, count)
            out.append(cache.attend(0, q, k, v, step).tobytes())
            cache.commit(step, [number] * count)
    table = cache.sequence(sid[0]).block_table
    for _ in range(5):
        reading = Step.from_arrays(table[None], [702], [0, 1], block_size=cache.spec.block_size)
        out.append(cache.attend(0, q, None, None, reading).tobytes())
    cache.release(sid)
    return out


@pytest.fixture(scope="module")
def expected():
    """What each of eight sequences must give, computed by one thread, each in a cache of its own."""
    spec, found = CacheSpec(1, 4, 64), []
    for number in range(8):
        with KVCache(spec, num_blocks=48, threads=1) as cache:
            found.append(generate(cache, number))
            assert set(found[-1][3:]) == {found[-1][2]}
    return found


def test_eight_threads_on_eight_caches(expected):
    """One of them at a time has the team; the others work alone meanwhile, and get the same bits."""
    caches = [KVCache(CacheSpec(1, 4, 64), num_blocks=48, threads=4) for _ in range(8)]
    found = {}
    in_threads(lambda number: found.update({number: generate(caches[number], number)}))
    assert [found[number] for number in range(8)] == expected
    for cache in caches:
        cache.check()
        cache.close()


def test_eight_threads_on_one_cache(expected):
    """Calls run one after the other; a step's three verbs are kept together by the callers, as it is one at a time."""
    with KVCache(CacheSpec(1, 4, 64), num_blocks=8 * 48, threads=4) as cache:
        found, turn = {}, threading.Lock()
        in_threads(lambda number: found.update({number: generate(cache, number, turn)}))
        assert [found[number] for number in range(8)] == expected
        cache.check()
