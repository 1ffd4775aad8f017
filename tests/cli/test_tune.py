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
    status, out, err = command("tune", *SHAPE, "--no-speed", "--lengths", lengths)
    assert (status, err) == (0, "")
    assert "2 prompts of 200 tokens with answers of 56, on average" in out
    unused = dict(re.findall(r"│ +(\d+) │ +(\d+\.\d) % │", out))
    assert (unused["128"], unused["256"]) == ("0.0", "33.3")
    assert "not measured" in out
    assert "Block size 64 is the largest whose memory overhead and lost reuse are at most 5 % each" in out


def test_json_with_speed(command, lengths, monkeypatch):
    monkeypatch.setattr(decode_speed, "NBYTES", 1 << 18)
    status, out, err = command("tune", *SHAPE, "--query-heads", 3, "--seconds", 0, "--lengths", lengths, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["query_heads"], report["pairs"]) == (3, 2)
    assert [cost["block_size"] for cost in report["block_sizes"]] == [2**n for n in range(9)]
    speeds = [cost["speed"] for cost in report["block_sizes"]]
    assert max(speeds) == 1 and min(speeds) > 0
    fast = [cost for cost in report["block_sizes"] if cost["speed"] >= 1 - max(0.03, report["speed_noise"])]
    assert report["advice"]["block_size"] == fast[0]["block_size"]


def test_the_models_query_heads(command, model):
    report = json.loads(command("tune", "--model", model, "--no-speed", "--json")[1])
    assert (report["query_heads"], report["kv_heads"], report["pairs"]) == (4, 2, 256)


def test_llama_3_8b_if_nothing_is_given(command):
    assert "32 layers, 32 query heads over 8 of K and V, 128 wide" in command("tune", "--no-speed")[1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--layers", 2), 2, "give either --model"),
        (("--system", -1), 2, "-1 is not in the range"),
        (("--lengths", "no/such/file"), 2, "does not exist"),
        (("--dtype", "float64"), 1, "dtype is 'float64'"),
        ((*SHAPE, "--lengths", __file__), 1, "line 1 of test_tune.py is"),
    ],
)
def test_errors(command, arguments, status, message):
    got, out, err = command("tune", "--no-speed", *arguments)
    assert (got, out) == (status, "")
    assert message in err
