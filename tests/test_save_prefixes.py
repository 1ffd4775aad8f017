"""Saving the whole prefix cache, and finding it again."""

import subprocess
import sys

import numpy as np
import pytest
from kv_drive import Rows
from saved_drive import PROMPT, make_cache, rows_of, state

from pagedcache import KVCache, Namespace, content, salt

OURS = Namespace("ours", secret=b"at least 16 bytes")
IN_A_NEW_PROCESS = """
import sys, numpy as np
from pagedcache import KVCache, Namespace, salt
ours = Namespace("ours", secret=b"at least 16 bytes")
cache, ids = KVCache.load(sys.argv[1], namespace=ours)
assert len(ids) == 0
prompt = list(range(100, 111))
print(*cache.match([[*prompt, 1], [*prompt[:4], 9, 9, 9, 9, 1]]), *cache.match([prompt], namespace=ours),
      *cache.match([prompt], keys=[[salt("t7", 5)]]), cache.stats().cached)
cache.check()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.kv"


def test_the_prefix_cache_in_a_new_process(path):  # T02, T05
    rows = Rows(make_cache())
    ids = [rows.admit(PROMPT), rows.admit([*PROMPT[:4], 9, 9, 9, 9, 8]), rows.admit(PROMPT, namespace=OURS)]
    ids.append(rows.admit(PROMPT, keys=[[salt("t7", 5)]]))
    rows.release(*ids[:2])
    assert rows.cache.save(path) == rows.cache.stats().published == 6
    done = subprocess.run(
        [sys.executable, "-P", "-c", IN_A_NEW_PROCESS, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("8 8 8 8 6\n", "")


def test_the_prefix_cache_has_the_bytes(path):
    rows = Rows(make_cache())
    rows.admit([*PROMPT, 111])
    rows.admit([*PROMPT[:8], 5, 6, 7, 8, 9])
    rows.cache.save(path)
    again = rows_of(KVCache.load(path, num_blocks=9)[0], {})
    again.admit([*PROMPT, 111, 1])
    again.admit([*PROMPT[:8], 5, 6, 7, 8, 1])
    again.verify()
    assert again.cache.stats().hit_tokens == 24


def test_an_image_that_goes_on_behind_what_is_published(path):
    rows = Rows(make_cache())
    about = {"keys": [[content("cat", 6, 20)]]}
    rows.admit([*range(100, 121)], **about)
    rows.release(*rows.tokens)
    rows.cache.evict(2)
    rows.cache.save(path)
    again, _ = KVCache.load(path)
    assert again.match([[*range(100, 122)]], **about)[0] == 12


def test_it_may_be_saved_while_steps_are_open(path):
    rows = Rows(make_cache())
    sid = rows.admit(PROMPT)
    step = rows.cache.extend([sid], [1])
    assert rows.cache.save(path) == 2
    rows.cache.commit(step, [1])


def test_an_empty_one(path):
    assert make_cache().save(path) == 0
    with pytest.raises(ValueError, match="holds no blocks: say how large"):
        KVCache.load(path)
    cache, ids = KVCache.load(path, num_blocks=2)
    assert state(cache)[:5] == (2, 0, 0, 0, 0) and ids.dtype == np.int64 and len(ids) == 0
