"""``pagedcache scenarios``: its table and its JSON."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache.sizing import SCENARIOS, measure


def test_json(command):
    status, out, err = command("scenarios", "--json", "--block-size", 32, "--seed", 7)
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["block_size"] == 32
    for told, scenario in zip(report["scenarios"], SCENARIOS, strict=True):
        held = measure(scenario, block_size=32, seed=7)
        assert told["scenario"] == scenario.name
        assert told["workload"].startswith(scenario.workload)
        assert (told["blocks"], told["copies"], told["paged_tokens"]) == (held.blocks, held.copies, 32 * held.blocks)
        assert told["saved_percent"] == held.saved_percent
        assert tuple(told["claimed_percent"].values()) == scenario.claimed
    assert report["scenarios"][2]["workload"].endswith("random parents, seed 7")


def test_table(command):
    status, out, _ = command("scenarios")
    assert status == 0
    for scenario in SCENARIOS:
        contiguous, paged, saved = scenario.claimed
        assert scenario.name in out
        assert f"({contiguous} %)" in out and f"({paged} %)" in out and f"({saved} %)" in out
    assert "100 % is 1600 tokens stored" in out
    assert "Blocks of 16 tokens." in out


def test_beams_of_a_model_that_is_too_small(command, model):
    status, out, err = command("scenarios", "--model", model)
    assert (status, out) == (1, "")
    assert "the model takes 256" in err
