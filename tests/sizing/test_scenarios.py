"""Scenarios hold what their lengths need, and less than the contiguous cache."""

import pytest

from pagedcache.sizing import SCENARIOS, measure, measure_beams

BEAMS = next(scenario for scenario in SCENARIOS if scenario.beams > 1)
OTHERS = [scenario for scenario in SCENARIOS if scenario.beams == 1]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_lengths_make_the_contiguous_side_the_tutorials(scenario):
    assert round(measure(scenario).contiguous_percent) == scenario.claimed[0]


@pytest.mark.parametrize("scenario", OTHERS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_sequences_hold_their_blocks(scenario, block_size):
    held = measure(scenario, block_size=block_size)
    assert held.blocks == sum(-(-(prompt + new) // block_size) for prompt, new in scenario.lengths)
    assert held.copies == 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_saved_is_near_the_tutorials(scenario):
    assert measure(scenario).saved_percent == pytest.approx(scenario.claimed[2], abs=2)


def test_beams_share_all_but_their_ends():
    """Random parents: all beams soon go back to one, so that each has a few blocks of its own."""
    ((prompt, new),) = BEAMS.lengths
    alone = -(-(prompt + new) // 16)
    held = measure(BEAMS)
    assert alone + BEAMS.beams - 1 <= held.blocks <= alone + 4 * BEAMS.beams
    assert held.copies > 0
    assert measure(BEAMS) == held
    assert {measure(BEAMS, seed=seed).copies for seed in range(3)} != {held.copies}


def test_beams_without_a_common_token_after_the_prompt():
    """What a block size of the whole text leaves: nothing but copies."""
    assert measure(BEAMS, block_size=512).blocks == BEAMS.beams


def test_workloads_are_stated():
    assert [scenario.workload for scenario in SCENARIOS] == [
        "1 sequence of 2005 tokens; 2048 reserved for each",
        "10 sequences of 70 to 250 tokens; 512 reserved for each",
        "4 beams, prompt 224 + 231 new tokens; each beam has a copy",
        "6 sequences of 640, 680, 730, 770, 1990, 2015 tokens; 2048 reserved for each",
    ]


@pytest.mark.slow
def test_beams_of_a_real_model(smollm2):
    ((prompt, new),) = BEAMS.lengths
    held = measure_beams(BEAMS, *smollm2, name="SmolLM2")
    assert held.parents.startswith("beams of SmolLM2")
    assert -(-(prompt + new) // 16) < held.blocks < BEAMS.beams * -(-(prompt + new) // 16)
    assert held.copies > 0


def test_a_model_that_is_too_small(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    import tiny_llama

    from pagedcache.serving.models import load_model

    with pytest.raises(ValueError, match=r"the scenario has 224 \+ 231 tokens; the model takes 256"):
        measure_beams(BEAMS, *load_model(tiny_llama.write(tmp_path / "tiny.gguf")))
