"""The ``pagedcache`` command: what it prints where, and how it ends."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")
pytest.importorskip("threadpoolctl")
pytest.importorskip("tokenizers")

from pagedcache.serving.models import fetch


def generate(command, model, *arguments):
    return command("generate", "--model", model, "--raw", "--max-tokens", 5, "--memory", "1MiB", *arguments)


def test_text_goes_to_output_and_the_report_to_error(command, model):
    status, out, err = generate(command, model, "the and")
    assert status == 0
    assert out
    for word in ("prompts", "texts", "speed", "stored", "blocks", "memory", "contiguous"):
        assert word in err
        assert word not in out


def test_quiet_prints_the_text_alone(command, model):
    _, out, _ = generate(command, model, "the and")
    assert generate(command, model, "the and", "--quiet") == (0, out, "")


def test_several_texts_are_told_apart(command, model):
    _, out, _ = generate(command, model, "the", "an  and", "--n", 2)
    heads = [line for line in out.splitlines() if line.startswith("──")]
    assert heads == ["── the (1 of 2)", "── the (2 of 2)", "── an and (1 of 2)", "── an and (2 of 2)"]


def test_json_is_one_object_and_nothing_else(command, model):
    status, out, err = generate(command, model, "the", "the", "--n", 2, "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["model"] == "tiny.gguf"
    assert result["prompts"] == ["the", "the"]
    assert [(each["prompt"], each["sample"]) for each in result["completions"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(each["tokens"]) == 5 for each in result["completions"])
    assert result["report"]["new_tokens"] == 20
    assert result["report"]["peak"]["sequences"] == 4
    assert result["report"]["block_size"] == 16


def test_sampling_is_repeatable(command, model):
    options = ("the", "--temperature", 1, "--top-k", 50, "--top-p", 0.9, "--n", 3, "--quiet")
    first, again = (generate(command, model, *options, "--seed", 1) for _ in range(2))
    assert first == again
    assert generate(command, model, *options, "--seed", 2) != first


def test_prompt_from_standard_input(command, model, monkeypatch):
    import io

    expected = generate(command, model, "the and", "--quiet")
    monkeypatch.setattr(sys, "stdin", io.StringIO("the and"))
    assert generate(command, model, "-", "--quiet") == expected


def test_chat_is_the_default_where_the_model_knows_it(command, model):
    options = ("generate", "--model", model, "--json", "--max-tokens", 1, "the")
    raw, chat, default = (json.loads(command(*options, *kind)[1]) for kind in (["--raw"], ["--chat"], []))
    assert default["report"]["prompt_tokens"] == chat["report"]["prompt_tokens"] > raw["report"]["prompt_tokens"]
    with_system = json.loads(command(*options, "--system", "and")[1])
    assert with_system["report"]["prompt_tokens"] > chat["report"]["prompt_tokens"]


def test_every_backend_and_dtype_can_be_named(command, model):
    expected = generate(command, model, "the", "--quiet")
    assert generate(command, model, "the", "--quiet", "--backend", "numpy", "--dtype", "float32") == expected
    assert generate(command, model, "the", "--dtype", "float16", "--block-size", 7)[0] == 0


def blas_threads():
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize(("options", "expected"), [([], None), (["--threads", 1], 1), (["--threads", 2], 2)])
def test_threads_of_blas_while_the_model_runs(command, model, monkeypatch, options, expected):
    from pagedcache import serving

    before, seen = blas_threads(), []
    if not before:
        pytest.skip("this NumPy's BLAS is none that threadpoolctl knows")
    original = serving.generate
    monkeypatch.setattr(serving, "generate", lambda *a, **k: seen.append(blas_threads()) or original(*a, **k))
    text = generate(command, model, "the", "--quiet")
    assert generate(command, model, "the", "--quiet", *options) == text
    assert seen[1] == (before if expected is None else [expected] * len(before))
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["generate"], 2, "Missing argument 'PROMPT...'"),
        (["generate", "x", "--n", "0"], 2, "0 is not in the range"),
        (["generate", "x", "--max-tokens", "many"], 2, "'many' is not a valid integer"),
        (["generate", "x", "--temperature", "-1"], 2, "-1.0 is not in the range"),
        (["generate", "x", "--temperature", "nan", "--model", "{model}"], 1, "temperature is nan"),
        (["generate", "x", "--top-p", "0"], 2, "0.0 is not in the range"),
        (["generate", "x", "--block-size", "2000"], 2, "1<=x<=1024"),
        (["generate", "x", "--threads", "0"], 2, "0 is not in the range"),
        (["generate", "x", "--memory", "much"], 2, "'much' is not a size in bytes"),
        (["generate", "x", "--model", "/no/such/file"], 2, "does not exist"),
        (["generate", "x", "--model", __file__], 1, "not a GGUF file"),
        (["generate", "x", "--model", "{model}", "--memory", "1kB"], 1, "the smallest pool"),
        (["generate", "x", "--model", "{model}", "--dtype", "float64"], 1, "dtype is 'float64'; it must be one of"),
        (["generate", "x", "--model", "{model}", "--backend", "abacus"], 1, "abacus"),
        (["generate", "", "--raw", "--model", "{model}"], 1, "prompt 0 has 0 tokens"),
        (
            ["generate", "x" * 300, "--raw", "--model", "{model}"],
            1,
            "prompt 0 has 300 tokens; the model takes 1 to 255",
        ),
        (["generate", "x" * 99, "--model", "{model}", "--memory", "20kB"], 1, "give the cache more memory"),
        (["plan"], 2, "give either --model"),
        (["plan", "--layers", "3"], 2, "give either --model"),
        (["plan", "--layers", "3", "--kv-heads", "1", "--head-dim", "8", "--model", "{model}"], 2, "give either"),
        (["plan", "--layers", "3", "--kv-heads", "1", "--head-dim", "8", "--memory", "1"], 1, "the smallest pool"),
        (["unknown"], 2, "No such command 'unknown'"),
        (["--unknown"], 2, "No such option"),
    ],
)
def test_errors_are_short_and_have_a_status(command, model, arguments, status, message):
    got, out, err = command(*(argument.format(model=model) for argument in arguments))
    assert got == status
    assert message in err
    assert out == ""
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 4


def test_model_that_cannot_be_fetched(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEDCACHE_MODEL_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(fetch, "MODULE", "not_installed_in_this_test")
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    status, out, err = command("generate", "x")
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in err
    assert "--model FILE.gguf" in err


def test_interrupt(command, model, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("pagedcache.cli.loading.load_model", interrupt)
    assert generate(command, model, "x")[0] == 130


def test_plan_for_a_shape(command):
    status, out, err = command("plan", "--layers", 30, "--kv-heads", 3, "--head-dim", 64, "--memory", "512 MiB")
    assert (status, err) == (0, "")
    assert "727 usable blocks" in out
    assert "5 sequences of 2048 tokens, 128 blocks each" in out


def test_plan_for_a_model(command, model):
    status, out, _ = command("plan", "--model", model, "--length", 100, "--dtype", "float16", "--block-size", 4)
    assert status == 0
    assert "96 B a token, 384 B a block of 4 tokens" in out
    assert "sequences of 100 tokens, 25 blocks each" in out


def test_version_and_help(command):
    status, out, _ = command("--version")
    assert status == 0
    assert out.startswith("pagedcache ")
    for arguments in (["-h"], ["generate", "--help"], ["plan", "-h"]):
        status, out, _ = command(*arguments)
        assert status == 0
        assert out.startswith("Usage: pagedcache")


def test_no_command_shows_help(command):
    status, out, err = command()
    assert "generate" in out + err
    assert status in (0, 2)


@pytest.mark.parametrize("missing", ["click", "rich", "threadpoolctl", "gguf", "tokenizers"])
def test_missing_extras_are_named(missing, model):
    code = f"import sys; sys.modules[{missing!r}] = None; from pagedcache.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "generate", "the", "--model", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f'pagedcache: {missing} is not installed: pip install "pagedcache[cli,models]"\n'


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "pagedcache", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("pagedcache ")


def test_closed_pipe_ends_quietly(model):
    """As in ``pagedcache generate ... | head``."""
    command = [sys.executable, "-m", "pagedcache", "generate", "the", "--raw", "--model", model, "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    _, err = process.communicate()
    assert "Traceback" not in err
