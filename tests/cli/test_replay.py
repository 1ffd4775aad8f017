"""``pagedcache replay``: tables, files, and what is said when something is wrong."""

import gzip
import json
import subprocess
import sys

import pytest

for extra in ("click", "rich", "gguf", "threadpoolctl", "tokenizers"):
    pytest.importorskip(extra)


def memory(command, *arguments):
    return command("replay", "memory", "--requests", 300, *arguments)


def prefix(command, *arguments):
    return command("replay", "prefix", "mooncake-synthetic", "--requests", 200, *arguments)


def table(out):
    """Rows of the table below the facts: first cell -> the others."""
    lines = [line for line in out.partition("\n\n")[2].splitlines() if line]
    del lines[1]  # the rule below the names
    return {line.split("  ")[0]: line.replace(" %", "").split()[-(len(lines[0].split()) - 1) :] for line in lines}


def test_memory_prints_a_table(command):
    status, out, err = memory(command, "--memory", "4 GiB", "--block-size", 16, "--block-size", 64)
    assert (status, err) == (0, "")
    rows = table(out)
    names = ["system", "Orca-Max", "Orca-Pow2", "Orca-Oracle", "Pow2, first fit", "Oracle, first fit"]
    assert list(rows) == [*names, "paged-16", "paged-64"]
    assert rows["system"] == "stored reserved internal rounding external in-use batch preempted tokens/s".split()
    assert float(rows["paged-16"][0]) > 85 > 30 > float(rows["Orca-Max"][0])
    assert "300 of 14,906 in sharegpt, seed 0" in out
    assert "4.00 GiB: 5,242 slots of 819,200 bytes (float16)" in out


def test_memory_is_repeatable(command):
    first, again, other = (memory(command, "--memory", "4GiB", "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


def test_memory_as_json(command):
    status, out, err = memory(command, "--memory", "4 GiB", "--json")
    result = json.loads(out)
    assert (status, err) == (0, "")
    assert result["trace"]["requests"] == 300
    assert (result["max_length"], result["bytes_per_token"], result["seed"]) == (2048, 819_200, 0)
    systems = {system["system"]: system for system in result["systems"]}
    for name, row in table(memory(command, "--memory", "4 GiB")[1]).items():
        if name != "system":
            assert f"{100 * systems[name]['stored']:.1f}" == row[0]
            assert f"{systems[name]['tokens_per_second']:.0f}" == row[-1]


def test_shape_and_machine(command, model):
    _, out, _ = memory(command, "--memory", "1 MiB", "--model", model, "--dtype", "int8", "--bandwidth", "2 TB")
    assert "13,107 slots of 80 bytes (int8)" in out
    assert "0.0 GB of weights, 2.000 TB/s" in out
    shape = ("--layers", 1, "--kv-heads", 1, "--head-dim", 8, "--weights", "3 GB")
    _, out, _ = memory(command, "--memory", "100 kB", *shape)
    assert "3,125 slots of 32 bytes (float16)" in out
    assert "3.0 GB of weights, 1.244 TB/s" in out


def test_requests_of_a_file_are_taken_in_order(command, tmp_path):
    file = tmp_path / "trace.gz"
    rows = "\n".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02},{100 + i},{20 + i}" for i in range(60))
    file.write_bytes(gzip.compress(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode()))
    status, out, _ = command("replay", "memory", file, "--memory", "1 GiB", "--max-length", 200, "--requests", 30)
    assert status == 0
    assert "30 of 60 in trace.gz\n" in out
    assert "prompts 114 and answers 34 on average" in out
    assert "200 tokens" in out


def test_prefix_prints_a_table(command):
    status, out, err = prefix(command, "--policy", "lru", "--policy", "priority-ttl", "--policy", "belady")
    assert (status, err) == (0, "")
    rows = table(out)
    assert rows["tokens"] == ["blocks", "GiB", "lru", "priority-ttl", "belady"]
    last = list(rows.values())[-1]
    assert last[-1] == last[-2] == last[-3] > "0.0"
    for *_, lru, _, belady in list(rows.values())[1:]:
        assert lru <= belady
    assert "200 of 800 in mooncake-synthetic" in out


def test_prefix_as_json(command):
    _, out, _ = prefix(command, "--capacity", 1_000_000, "--capacity", 5120, "--skip", 0.5, "--json")
    result = json.loads(out)
    found = [(rate["policy"], rate["capacity_blocks"]) for rate in result["hit_rates"]]
    assert found == [("lru", 10), ("lru", 1953), ("belady", 10), ("belady", 1953)]
    assert result["skip"] == 0.5
    for rate in result["hit_rates"]:
        assert rate["token_rate"] == rate["hit_tokens"] / rate["tokens"]


@pytest.mark.parametrize("replay", [memory, prefix])
def test_pictures_and_report(command, tmp_path, replay):
    pytest.importorskip("matplotlib")
    small = ("--memory", "4 GiB") if replay is memory else ()
    status, _, err = replay(command, *small, "--plot", tmp_path / "a.svg", "--html", tmp_path / "a.html")
    assert (status, err) == (0, "")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == (3 if replay is memory else 1)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["memory", "/no/such/trace"], 1, "/no/such/trace is no file, and none of the traces that come with the pack"),
        (["memory", __file__], 1, "test_replay.py, line 1: columns"),
        (["memory", "--memory", "1 kB"], 1, "--memory is 1000 bytes; a token takes 819200"),
        (["memory", "--memory", "100 MB"], 1, "request 0 asks for 2048 slots in a row; the memory has 122"),
        (["memory", "--memory", "80 GiB", "--requests", "5"], 1, "give more requests or less memory"),
        (["memory", "--memory", "9000 TiB"], 1, "slots is 12079595520; it must be at most"),
        (["memory", "--max-length", "5"], 1, "none of its 14906 requests has an answer and at most 5 tokens"),
        (["memory", "--bandwidth", "0"], 2, "at least one byte a second"),
        (["memory", "--bandwidth", "fast"], 2, "'fast' is not a size in bytes"),
        (["memory", "--weights", "heavy"], 2, "'heavy' is not a size in bytes"),
        (["memory", "--block-size", "0"], 2, "0 is not in the range"),
        (["memory", "--layers", "3"], 2, "give either --model"),
        (["memory", "--dtype", "float64"], 1, "dtype is 'float64'"),
        (["memory", "--plot", "a.pdf"], 2, "--plot writes .png or .svg, not a.pdf"),
        (["prefix", "sharegpt"], 1, "sharegpt: the trace does not tell which blocks"),
        (["prefix", "--policy", "clock"], 2, "'clock' is not one of"),
        (["prefix", "--policy", "priority-ttl", "--ttl", 9, 5], 1, "no priority may expire before a lower one"),
        (["prefix", "--skip", "1"], 2, "1.0 is not in the range"),
        (["prefix", "--requests", "1", "--skip", "0.9", "--capacity", "0"], 2, "0 is not in the range"),
        (["everything"], 2, "No such command"),
    ],
)
def test_errors_are_short_and_have_a_status(command, arguments, status, message):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    got, out, err = command("replay", *arguments)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 4


def test_missing_matplotlib_is_named_before_anything_is_computed(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from pagedcache.cli import main; sys.exit(main())"
    arguments = ["replay", "memory", "/no/such/trace", "--html", str(tmp_path / "a.html")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == 'pagedcache: matplotlib is not installed: pip install "pagedcache[plot]"\n'


def test_matplotlib_is_not_imported_for_a_table():
    code = "import sys; from pagedcache.cli import main; main(); sys.exit('matplotlib' in sys.modules)"  # 1 if it is
    arguments = ["replay", "prefix", "--requests", "5"]
    assert subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False).returncode == 0
