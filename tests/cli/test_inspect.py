"""``pagedcache inspect``: snapshots and saved files, as text, JSON and pictures."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache import CacheSpec, KVCache
from pagedcache.inspection import Snapshot

PROMPT = list(range(10))


@pytest.fixture
def cache():
    """Two sequences that share ten tokens, one of which goes on; a third one's blocks are cached."""
    spec = CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4, fingerprint=b"tiny")
    with KVCache(spec, num_blocks=12) as cache:
        ids = cache.admit([PROMPT]).ids
        cache.commit(cache.extend(ids, [10]), PROMPT)
        [[child]] = cache.fork(ids)
        cache.commit(cache.extend([child], [3]), [7, 7, 7])
        other = cache.admit([[5] * 8]).ids
        cache.commit(cache.extend(other, [8]), [5] * 8)
        cache.release(other)
        yield cache


@pytest.fixture(params=["snapshot", "saved"])
def file(cache, request, tmp_path):
    path = tmp_path / "file"
    if request.param == "snapshot":
        Snapshot.of(cache).write(path)
    else:
        cache.save(path, cache.sequences.handles())
    return path


def test_text(command, file):
    status, out, err = command("inspect", file)
    assert (status, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert "sequences    2" in lines
    assert any(line.startswith("└── 2 blocks (") and "of 2 sequences: " in line for line in lines)
    assert any("1 block (" in line and line.endswith(", 10 tokens") for line in lines)
    assert any("2 blocks (" in line and line.endswith(", 13 tokens") for line in lines)


def test_json(command, file):
    status, out, _ = command("inspect", file, "--json")
    told = json.loads(out)
    assert status == 0 and told["counts"]["shared"] == 2 and told["counts"]["used"] == 5
    assert [(run["first"], len(run["blocks"]), run["parent"]) for run in told["runs"]] in (
        [(0, 2, None), (2, 1, 0), (2, 2, 0)],
        [(0, 2, None), (2, 2, 0), (2, 1, 0)],
    )


def test_map_of_a_live_cache(command, cache, tmp_path):
    Snapshot.of(cache).write(tmp_path / "file")
    _, out, _ = command("inspect", tmp_path / "file")
    letters = next(line for line in out.splitlines() if len(line) == 12 and set(line) <= set(".c12"))
    assert sorted(letters) == sorted("22" + "111" + "cc" + "." * 5)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(command, file, tmp_path, ending):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"picture.{ending}"
    assert command("inspect", file, "--plot", picture)[0] == 0
    assert picture.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_an_empty_cache(command, tmp_path):
    pytest.importorskip("matplotlib")
    with KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8), num_blocks=3) as cache:
        Snapshot.of(cache).write(tmp_path / "file")
    status, out, _ = command("inspect", tmp_path / "file", "--plot", tmp_path / "picture.png")
    assert status == 0 and "..." in out.splitlines()


def test_another_file_is_refused(command, tmp_path):
    (tmp_path / "file").write_bytes(b"something else")
    status, _, err = command("inspect", tmp_path / "file")
    assert status == 1 and "file" in err
