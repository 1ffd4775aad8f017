"""Saving what tells equal tokens apart: keys, namespaces, secrets."""

import pytest
from kv_drive import Rows
from saved_drive import PROMPT, make_cache, rows_of

from pagedcache import KVCache, Namespace, adapter, content, salt

OURS = Namespace("ours", secret=b"at least 16 bytes")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.kv"


@pytest.mark.parametrize("namespace", [None, "theirs", OURS], ids=str)
def test_keys_and_namespaces_come_back(path, namespace):  # T08
    rows = Rows(make_cache())
    about = {"namespace": namespace, "keys": [[adapter("lora"), content("cat", 5, 9), salt("t7", 10)]]}
    sid = rows.admit(PROMPT, **about)
    rows.cache.save(path, [sid])
    again, [other] = KVCache.load(path, namespace=OURS if namespace is OURS else None)
    assert again.sequences.contents(other)[1:] == rows.cache.sequences.contents(sid)[1:]
    assert again.match([[*PROMPT, 1]], **about)[0] == 8 and again.match([PROMPT])[0] == 0
    resumed = rows_of(again, {other: PROMPT})
    resumed.run({int(other): [50]})
    assert again.match([[*PROMPT, 50, 1]], **about)[0] == 12


def test_a_secret_is_not_in_the_file_and_has_to_be_given_again(path):
    rows = Rows(make_cache())
    sid = rows.admit(PROMPT, namespace=OURS)
    rows.cache.save(path, [sid])
    assert OURS.secret not in path.read_bytes() and OURS.secret.hex().encode() not in path.read_bytes()
    for wrong in (None, Namespace("ours"), Namespace("ours", secret=b"some other secret"), Namespace("theirs")):
        with pytest.raises(ValueError, match="b'ours', which was saved with another secret"):
            KVCache.load(path, namespace=wrong)
    with pytest.raises(ValueError, match="nothing of namespace b'theirs'"):
        KVCache.load(path, namespace=[OURS, Namespace("theirs")])
    with pytest.raises(TypeError, match="must be a Namespace"):
        KVCache.load(path, namespace="ours")


def test_a_namespace_without_a_secret_gets_none(path):
    rows = Rows(make_cache())
    rows.cache.save(path, [rows.admit(PROMPT, namespace="ours")])
    with pytest.raises(ValueError, match="saved without a secret"):
        KVCache.load(path, namespace=OURS)


def test_a_sequence_within_what_its_keys_are_about_waits(path):
    cache = make_cache()
    ids = cache.admit([PROMPT], keys=[[content("cat", 2, 9)]]).ids
    cache.commit(cache.extend(ids, 6), PROMPT[:6])
    with pytest.raises(ValueError, match="stands at 6, and its keys are about tokens up to 9"):
        cache.save(path, ids)
    assert not path.exists()
