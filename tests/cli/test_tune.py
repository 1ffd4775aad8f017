"""``pagedcache tune``: its table, its advice and its JSON."""

import json
import re

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache.sizing import decode_speed

SHAPE = ("--layers", 2, "--kv-heads", 1, "--head-dim", 8)


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("100,28\n300,84\n")
    return path


def test_table_and_advice(command, lengths):
    status, out, err = command("tune", *SHAPE, "--no-speed", "--trace", lengths)
    assert (status, err) == (0, "")
    assert "lengths.csv: 2 prompts of 200 tokens with answers of 56, on average" in out
    unused = dict(re.findall(r"^(\d+) +(\d+\.\d) %", out, re.MULTILINE))
    assert (unused["128"], unused["256"]) == ("0.0", "33.3")
    assert "not measured" in out
    assert "Block size 64 is the largest whose memory overhead and lost reuse are at most 5 % each" in out


def test_json_with_speed(command, lengths, monkeypatch):
    monkeypatch.setattr(decode_speed, "NBYTES", 1 << 18)
    status, out, err = command("tune", *SHAPE, "--query-heads", 3, "--seconds", 0, "--trace", lengths, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["query_heads"], report["trace"]["requests"]) == (3, 2)
    assert [cost["block_size"] for cost in report["block_sizes"]] == [2**n for n in range(9)]
    speeds = [cost["speed"] for cost in report["block_sizes"]]
    assert max(speeds) == 1 and min(speeds) > 0
    fast = [cost for cost in report["block_sizes"] if cost["speed"] >= 1 - max(0.03, report["speed_noise"])]
    assert report["advice"]["block_size"] == fast[0]["block_size"]


def test_the_models_query_heads(command, model):
    report = json.loads(command("tune", "--model", model, "--no-speed", "--json")[1])
    assert (report["query_heads"], report["kv_heads"]) == (4, 2)


def test_requests_without_an_answer_are_left_out(command, tmp_path):
    (tmp_path / "some.csv").write_text("7,0\n5,6\n")
    out = command("tune", *SHAPE, "--no-speed", "--trace", tmp_path / "some.csv")[1]
    assert "some.csv: 1 prompt of 5 tokens with answers of 6" in out


def test_llama_3_8b_if_nothing_is_given(command):
    assert "32 layers, 32 query heads over 8 of K and V, 128 wide" in command("tune", "--no-speed")[1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--layers", 2), 2, "give either --model"),
        (("--system", -1), 2, "-1 is not in the range"),
        (("--trace", "no/such/file"), 1, "no/such/file is no file, and none of the traces"),
        (("--dtype", "float64"), 1, "dtype is 'float64'"),
        ((*SHAPE, "--trace", __file__), 1, "test_tune.py, line 1: columns"),
    ],
)
def test_errors(command, arguments, status, message):
    got, out, err = command("tune", "--no-speed", *arguments)
    assert (got, out) == (status, "")
    assert message in err
