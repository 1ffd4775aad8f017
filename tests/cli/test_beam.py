"""``pagedcache generate --beam``."""

import json

import pytest


def generate(command, model, *arguments):
    return command("generate", "--model", model, "--raw", "--max-tokens", 5, "--memory", "1MiB", *arguments)


def test_the_best_texts_best_first(command, model):
    status, out, err = generate(command, model, "the and", "--beam", 4, "--n", 2, "--quiet")
    assert (status, err) == (0, "")
    heads = [line for line in out.splitlines() if line.startswith("──")]
    assert heads == ["── the and (1 of 2)", "── the and (2 of 2)"]
    assert generate(command, model, "the and", "--beam", 4, "--n", 2, "--quiet") == (0, out, ""), "it repeats"


def test_one_beam_is_greedy(command, model):
    assert generate(command, model, "the and", "--beam", 1, "--quiet") == generate(command, model, "the and", "--quiet")


def test_json_has_scores(command, model):
    status, out, _ = generate(command, model, "the", "an", "--beam", 3, "--n", 3, "--json", "--length-penalty", 0)
    assert status == 0
    found = json.loads(out)["completions"]
    assert [(each["prompt"], each["sample"]) for each in found] == [(i, k) for i in range(2) for k in range(3)]
    scores = [each["score"] for each in found]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    mean = json.loads(generate(command, model, "the", "--beam", 3, "--json")[1])["completions"][0]["score"]
    assert scores[0] < mean < 0


def test_the_report_says_what_beams_take(command, model):
    """12 prompt tokens and 4 stored ones, in blocks of 2: 6 are shared, and each beam may have 2."""
    _, _, err = generate(command, model, "x" * 12, "--beam", 4, "--block-size", 2)
    percent = int(err.partition(" % of what one of the 4 beams takes alone")[0].rpartition(" ")[2])
    assert 100 < percent <= 100 * (6 + 4 * 2) / 8
    assert "beams" not in generate(command, model, "x")[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "0 is not in the range"),
        (["--beam", "2", "--n", "3"], "--beam 2 finds 2 texts, and --n asks for 3"),
        (["--beam", "2", "--temperature", "1"], "--beam draws nothing"),
        (["--beam", "2", "--seed", "1"], "--beam draws nothing"),
        (["--length-penalty", "1"], "give --beam too"),
        (["--beam", "2", "--length-penalty", "11"], "11.0 is not in the range"),
    ],
)
def test_wrong_usage(command, model, options, message):
    status, out, err = generate(command, model, "x", *options)
    assert (status, out) == (2, "")
    assert message in err


def test_more_beams_than_tokens(command, model):
    status, _, err = generate(command, model, "x", "--beam", 999)
    assert status == 1
    assert err.startswith("pagedcache: beams is 999;")
