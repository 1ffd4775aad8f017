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
