"""Backend "numpy" reads what it needs and nothing else, and what nobody sees spoils nothing."""

import subprocess
import sys

import numpy as np
import pytest

from pagedcache import backends
from pagedcache.backends.reference._reader import LayerReader
from pagedcache.spec import CacheSpec
from pagedcache.testing import make_scene

BACKEND = backends.get("numpy")


@pytest.fixture
def tokens_read(monkeypatch):
    """A list of how many tokens each gather was for."""
    counts = []
    read = LayerReader.read

    def counted(self, rows, size):
        counts.append(rows.shape[-1])
        return read(self, rows, size)

    monkeypatch.setattr(LayerReader, "read", counted)
    return counts


@pytest.mark.parametrize("length", [2000, 32000])
def test_a_window_reads_its_own_tokens_only(tokens_read, length):  # S10
    scene = make_scene(BACKEND, CacheSpec(1, 1, 8), [(1, length)], q_heads=1)
    scene.attend(window=1024)
    assert sum(tokens_read) == 1024
    tokens_read.clear()
    scene.attend(window=1024, sink_tokens=4)
    assert sum(tokens_read) == 1028


def test_a_shared_prefix_is_read_once(tokens_read):
    lengths = [(1, 85), (1, 90), (2, 82), (1, 81), (1, 30)]
    scene = make_scene(BACKEND, CacheSpec(1, 2, 8, block_size=4), lengths, q_heads=4, shared=[(0, 4, 20)])
    scene.attend()
    assert sum(tokens_read) == 80 + (5 + 10 + 2 + 1) + 30
    tokens_read.clear()
    scene.shared = None
    scene.attend()
    assert sum(tokens_read) == 85 + 90 + 82 + 81 + 30


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"window": 4}, {"softcap": 2.0, "sink_logits": np.zeros(4, np.float32)}])
def test_a_token_that_is_not_finite_spoils_only_who_sees_it(bad, options):
    spec = CacheSpec(1, 2, 8, v_head_dim=5, block_size=4)
    scene = make_scene(BACKEND, spec, [(9, 20)], q_heads=4)
    before, before_lse = scene.attend(**options)
    k, v = scene.keys[0][16:17].copy(), scene.values[0][16:17].copy()  # query 5 stands there
    k[0, 1], v[0, 1, 2] = bad, bad
    BACKEND.write(scene.storage, 0, k, v, scene.slots(0)[16:17])
    out, lse = scene.attend(**options)
    assert out[:5].tobytes() == before[:5].tobytes(), "queries before it have changed"
    assert lse[:5].tobytes() == before_lse[:5].tobytes()
    assert out[:, :2].tobytes() == before[:, :2].tobytes(), "another head has changed"
    assert not np.isfinite(out[5, 2:]).any(), "the token's own query sees it"


@pytest.mark.parametrize(("bad", "seen"), [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, -np.inf)])
def test_values_that_are_not_finite_are_seen_as_they_are(bad, seen):
    scene = make_scene(BACKEND, CacheSpec(1, 1, 8, block_size=4), [(4, 10)], q_heads=1)
    v = scene.values[0].copy()
    v[7, 0, 3] = bad
    BACKEND.write(scene.storage, 0, scene.keys[0], v, scene.slots(0))
    before = scene.expected()[0]
    out = scene.attend()[0]
    np.testing.assert_array_equal(out[1:, 0, 3], np.full(3, seen, np.float32))
    out[1:, 0, 3] = before[1:, 0, 3]
    np.testing.assert_allclose(out, before, atol=1e-6)


def test_bfloat16_and_fp8_without_ml_dtypes():
    code = """
import sys
sys.modules["ml_dtypes"] = None  # importing it fails
import numpy as np
from pagedcache import backends
from pagedcache.spec import CacheSpec
from pagedcache.testing import make_scene
backend = backends.get("numpy")
for dtype, bits in (("bfloat16", np.uint16), ("float8_e4m3", np.uint8)):
    for layout in ("NHD", "HND"):
        scene = make_scene(backend, CacheSpec(1, 2, 8, dtype=dtype, layout=layout), [(1, 40), (9, 20)], q_heads=4)
        assert scene.storage.view(0)[0].dtype == bits
        scene.check()
        scene.check(window=7, sink_tokens=2)
print("done")
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "done\n", run.stderr
