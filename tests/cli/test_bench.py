"""``pagedcache bench model``: its table and its JSON."""

import json
import re

import pytest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_json(command, model, dtype):
    options = ("--context", 20, "--steps", 3, "--batch", 2, "--threads", 1, "--dtype", dtype)
    status, out, err = command("bench", "model", "--model", model, *options, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["batch"], report["context"], len(report["steps"])) == (2, 20, 3)
    assert (report["model"], report["dtype"], report["backend"]) == ("tiny.gguf", dtype, "cpu")
    for step in report["steps"]:
        assert 0 < step["attention"] + step["bookkeeping"] < step["whole"]
    assert 0 < report["attention_share"] < report["cache_share"] < 1


def test_table(command, model):
    status, out, _ = command("bench", "model", "--model", model, "--context", 20, "--steps", 1)
    assert status == 0
    assert re.search(r"^batch +1 sequence of 20 tokens and more$", out, re.MULTILINE)
    assert re.search(r"^decode step +\d+\.\d\d ms, .* \(median of 1 step\)$", out, re.MULTILINE)
    shares = [float(number) for number in re.findall(r", (\d+\.\d) %$", out, re.MULTILINE)]
    assert len(shares) == 3 and sum(shares) == pytest.approx(100, abs=0.2)


def test_what_does_not_fit(command, model):
    status, out, err = command("bench", "model", "--model", model, "--context", 250)
    assert (status, out) == (1, "")
    assert "the model takes 256" in err


SERVE = ("bench", "serve", "--threads", 1, "--requests", 12, "--max-length", 200)


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("20,30\n60,10\n5,80\n150,90\n", encoding="utf-8")
    return path


def test_serve_json(command, model, lengths):
    options = ("--model", model, "--trace", lengths, "--memory", "150 KiB", "--shared", 32)
    status, out, err = command(*SERVE, *options, "--json")
    assert (status, err) == (0, "")
    runs = json.loads(out)["runs"]
    assert [(run["way"].partition(",")[0], run["found_tokens"] > 0) for run in runs] == [
        ("contiguous", False),
        ("contiguous", False),
        ("paged", False),
        ("paged", True),
    ]
    assert len({(run["prompt_tokens"], run["new_tokens"]) for run in runs}) == 1
    static, continuous, apart, _ = runs
    assert max(static["batch"], continuous["batch"]) <= 4 < apart["batch"]
    assert max(static["utilisation"], continuous["utilisation"]) < apart["utilisation"] <= 1
    assert static["preemptions"] == continuous["preemptions"] == 0


def test_serve_table(command, model, lengths):
    status, out, _ = command(*SERVE, "--model", model, "--trace", lengths, "--memory", "150 KiB", "--way", "paged")
    assert status == 0
    assert re.search(r"12 requests, \d+ prompt tokens and \d+ new ones; 150.00 KiB for K and V in float32", out)
    assert "1.00" in out


def test_serve_the_same_requests_each_time(command, model, lengths):
    options = ("--model", model, "--trace", lengths, "--memory", "150 KiB", "--way", "paged", "--json")
    found = [json.loads(command(*SERVE, *options, "--seed", seed)[1])["runs"][0]["prompt_tokens"] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-length", 20), "none of its 4 requests has an answer and at most 20 tokens"),
        (("--memory", "10 KiB"), "contiguous, static batches: a sequence takes 38400 bytes, the memory is 10240"),
        (("--shared", 200), "--shared 200 leaves nothing of --max-length 200"),
        (("--trace", "no/such/file"), "no/such/file is no file, and none of the traces that come with the package"),
        (("--max-length", 1025), "1025 is not in the range"),
    ],
)
def test_serve_refuses(command, model, lengths, options, message):
    status, out, err = command(*SERVE, "--model", model, "--trace", lengths, *options)
    assert (status != 0, out) == (True, "")
    assert message in err
