"""Faults of the first call, and of views that threads share."""

import subprocess
import sys
import threading

RACE = """
import sys, threading
from pagedcache import CacheSpec, KVCache, backends
import numpy as np

sys.setswitchinterval(1e-6)
barrier, results = threading.Barrier(8), []

def first():
    barrier.wait()
    cache = KVCache(CacheSpec(1, 1, 4, block_size=2), num_blocks=4)
    (sid,) = cache.admit([[1, 2, 3]]).ids
    ones = np.ones((3, 1, 4), np.float32)
    out = cache.attend(0, ones, ones, ones, cache.extend([sid], 3))
    results.append((cache.backend.name, float(out.sum()), backends.get("cpu").name))

assert "pagedcache.backends.cpu" not in sys.modules, "the backend is imported at first use"
threads = [threading.Thread(target=first) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert results == [("cpu", 12.0, "cpu")] * 8, results
"""


def test_c11_eight_threads_make_the_first_call_at_once():
    done = subprocess.run([sys.executable, "-P", "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_c02_threads_slice_the_same_views_and_none_stays_counted(make):
    told = make()
    sid = told.prompt([1, 2, 3, 4, 5])
    step, sums = told.write({sid: [6]}), []

    def slices(view):
        for n in range(2000):
            part = view[n % 16 :][:1]
        sums.append(int(part.size + step.block_tables[:, :2].sum()))

    threads = [threading.Thread(target=slices, args=told.cache.storage.view(0)[:1]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threads.clear()
    assert sums == [4 + int(told.cache.sequence(sid).block_table.sum())] * 8
    told.cache.commit(step, [6])
    told.cache.close()  # refuses while it counts a view as out
