"""Putting Gemma's file together from installed packages, of which this test wrote some small ones."""

import dataclasses
import hashlib
import os
import stat

import pytest

from pagedcache.serving.models import find_model, gemma_file

MODEL = bytes(range(256)) * 20
PARTS = tuple(f"gemma_of_this_test_part{number}" for number in range(1, 4))


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """A small model with its own hash, an empty folder to keep it in, and no package."""
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path / "models"))
    small = dataclasses.replace(gemma_file.GEMMA, sha256=hashlib.sha256(MODEL).hexdigest(), nbytes=len(MODEL))
    monkeypatch.setattr(gemma_file, "GEMMA", small)
    monkeypatch.setattr(gemma_file, "PARTS", PARTS)
    monkeypatch.setattr(gemma_file, "CHUNK", 1000)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.fixture
def install(tmp_path):
    """Write packages with these parts."""

    def write(*contents):
        for number, content in enumerate(contents):
            folder = tmp_path / "site" / PARTS[number]
            (folder / "data").mkdir(parents=True)
            (folder / "__init__.py").write_text("raise SystemExit('imported')")
            (folder / "data" / f"{gemma_file.GEMMA.name}.part{number:02}").write_bytes(content)

    return write


def test_parts_are_put_together_once(tmp_path, install):
    install(MODEL[:2500], MODEL[2500:2501], MODEL[2501:])
    path = find_model("gemma-3-270m")
    assert path == tmp_path / "models" / gemma_file.GEMMA.name
    assert path.read_bytes() == MODEL
    assert os.listdir(path.parent) == [path.name]
    (tmp_path / "site" / PARTS[0] / "data" / f"{path.name}.part00").write_bytes(b"")
    assert find_model("gemma-3-270m") == path


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_the_file_is_private(install):
    install(MODEL[:10], MODEL[10:20], MODEL[20:])
    path = find_model("gemma-3-270m")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_damaged_file_is_made_anew(tmp_path, install):
    install(MODEL[:10], MODEL[10:20], MODEL[20:])
    (tmp_path / "models").mkdir(mode=0o700)
    (tmp_path / "models" / gemma_file.GEMMA.name).write_bytes(MODEL[:-1] + b"x")
    assert find_model("gemma-3-270m").read_bytes() == MODEL


@pytest.mark.parametrize("parts", [(), (MODEL[:10], MODEL[10:])], ids=["none", "not all"])
def test_without_the_packages_the_message_says_what_to_do(tmp_path, install, parts):
    install(*parts)
    with pytest.raises(FileNotFoundError) as caught:
        find_model("gemma-3-270m")
    for words in ('pip install "pagedcache[gemma]"', "terms of use", str(tmp_path / "models")):
        assert words in str(caught.value)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    "parts",
    [
        (MODEL[:10], MODEL[10:20], MODEL[20:-1] + b"x"),
        (MODEL[:10], MODEL[10:20], MODEL[20:-1]),
        (MODEL[10:20], MODEL[:10], MODEL[20:]),
    ],
    ids=["flipped", "shorter", "in another order"],
)
def test_other_parts_are_refused_and_not_kept(tmp_path, install, parts):
    install(*parts)
    with pytest.raises(FileNotFoundError, match="the installed packages hold another file"):
        find_model("gemma-3-270m")
    assert os.listdir(tmp_path / "models") == []


def test_no_more_is_written_than_the_file_has(tmp_path, install):
    """What follows the known bytes is never read."""
    install(MODEL[:10], MODEL[10:20], MODEL[20:] + bytes(100_000))
    assert find_model("gemma-3-270m").read_bytes() == MODEL


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_folder_open_to_others_is_refused(tmp_path, install):
    install(MODEL[:10], MODEL[10:20], MODEL[20:])
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o777)
    with pytest.raises(PermissionError, match="writable by every user"):
        find_model("gemma-3-270m")
