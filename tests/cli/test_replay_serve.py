"""``pagedcache replay serve``: its table, its JSON, its picture; simulated, and on a model."""

import json
import re

import pytest

SMALL = ("--requests", 40, "--layers", 2, "--kv-heads", 2, "--head-dim", 16, "--weights", "1 GB")


def test_json_of_a_trace_with_blocks(command):
    options = ("--memory", "200 MiB", "--max-length", 60_000, "--requests", 100, "--json")
    status, out, err = command("replay", "serve", "mooncake-synthetic", *SMALL, *options)
    assert (status, err) == (0, "")
    runs = json.loads(out)["runs"]
    assert list(runs) == ["prefixes shared", "prefixes apart"]
    shared, apart = runs.values()
    assert shared["found_tokens"] > 0 == apart["found_tokens"]
    assert shared["new_tokens"] == apart["new_tokens"]
    assert shared["first_token_p50"] <= apart["first_token_p50"]


def test_table_of_a_trace_without_blocks(command):
    status, out, _ = command("replay", "serve", *SMALL, "--memory", "4 MiB", "--speed", 100, "--tflops", 0.5)
    assert status == 0
    assert "40 of 3,000 in azure-conversation, 100 times as fast as they came" in out
    assert re.search(r"^paged +40 ", out, re.MULTILINE)


@pytest.mark.parametrize("kind", ["plot", "html"])
def test_pictures(command, tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / ("report.html" if kind == "html" else "picture.svg")
    status, _, _ = command("replay", "serve", "mooncake-synthetic", *SMALL, "--memory", "20 MiB", f"--{kind}", path)
    assert status == 0
    text = path.read_text(encoding="utf-8")
    assert "prefixes apart" in text and "<svg" in text


def test_on_a_real_model(command, model, tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("20,30\n60,10\n5,80\n300,90\n", encoding="utf-8")
    options = ("--real", "--model", model, "--memory", "1 MiB", "--dtype", "float32", "--threads", 1, "--json")
    status, out, err = command("replay", "serve", path, *options)
    assert (status, err) == (0, "")
    (run,) = json.loads(out)["runs"].values()
    assert (run["requests"], run["new_tokens"], run["refused"]) == (3, 120, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--real", "--layers", 2), "--real takes its sizes from the model"),
        (("--bandwidth", "0"), "at least one byte a second"),
        (("--max-length", 2), "has an answer and at most 2 tokens"),
        (("--memory", "1 KiB"), "memory"),
    ],
)
def test_what_cannot_be(command, options, message):
    status, out, err = command("replay", "serve", *options)
    assert (status != 0, out) == (True, "")
    assert message in err
