"""The C interface where processes and libraries come and go: after fork(), and after dlclose()."""

import os
import subprocess
import sys

import numpy as np
import pytest
from c_cache import CCache

SHAPE = {"num_blocks": 600, "block_size": 16, "kv_heads": 4, "head_dim": 64}
TOKENS = 1500


def decode(cache, sequence, layer=0):
    q = np.ones((1, 8, 64), np.float32)
    cache.extend([sequence], [1])
    out = cache.attend(layer, q, q[:, :4], q[:, :4])
    cache.commit()
    return out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork() beside threads
@pytest.mark.thread_unsafe
def test_a_child_goes_on():
    cache = CCache(num_layers=1, threads=2, **SHAPE)
    rng = np.random.default_rng(1)
    k = rng.standard_normal((TOKENS, 4, 64), np.float32)
    sequence = int(cache.start(1)[0])
    cache.extend([sequence], [TOKENS])
    cache.attend(0, np.repeat(k, 2, axis=1), k, k)  # enough work to start the team
    cache.commit()
    child = os.fork()
    if child == 0:
        try:
            decode(cache, sequence)
            cache.check()
            os._exit(0 if cache.length(sequence) == TOKENS + 1 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.length(sequence) == TOKENS
    k_pool = cache.arrays(0)[0]
    assert not (k_pool == 1).any(), "the child wrote into its parent's memory"
    decode(cache, sequence)
    cache.check()
    cache.close()


UNLOAD = """
import _ctypes
from pagedcache.capi import load_library

_ctypes.dlclose(load_library()._handle)
print("libpagedcache.so" in open("/proc/self/maps").read())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_stays_after_dlclose():  # threads of the team sleep in it
    done = subprocess.run([sys.executable, "-c", UNLOAD], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
