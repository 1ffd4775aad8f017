"""Prompt lookup: what is guessed, and when nothing is."""

import numpy as np
import pytest

from pagedcache.serving import PromptLookup


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        ([], {}, []),
        ([1], {}, []),
        ([1, 2, 3, 4], {}, []),
        ([1, 2, 9, 2], {"shortest": 2}, []),
        ([1, 2, 9, 2], {"shortest": 1}, [9, 2]),
        ([5, 1, 2, 7, 8, 1, 2], {"count": 2}, [7, 8]),
        ([4, 1, 2, 7, 3, 1, 2, 8, 4, 1, 2], {"count": 2}, [7, 3]),  # three tokens alike before two
        ([4, 1, 2, 7, 3, 1, 2, 8, 4, 1, 2], {"count": 2, "longest": 2}, [8, 4]),  # else the latest
        ([1, 1, 1, 1, 1, 1, 1], {"count": 3}, [1, 1, 1]),
        ([1, 1, 1], {"count": 3}, [1]),  # two of the three tokens occurred before, and one followed
        ([1, 2] * 5, {"count": 4}, [1, 2, 1, 2]),
    ],
)
def test_guesses(tokens, options, expected):
    assert PromptLookup(**options)(np.array(tokens, np.int32)).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_guess_is_what_followed_some_equal_tokens(seed):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 3, 40).astype(np.int32)
    lookup = PromptLookup(count=4, longest=3, shortest=2)
    guess = lookup(tokens).tolist()
    text = tokens.tolist()
    places = {n: [i for i in range(n, 40) if text[i - n : i] == text[-n:]] for n in (2, 3)}
    longest = 3 if places[3] else 2
    assert guess in [text[i : i + 4] for i in places[longest]] + [[]]
    assert bool(guess) == bool(places[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"shortest": 4}, "shortest is 4 and longest 3"),
        ({"shortest": 0}, "shortest is 0 and longest 3"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        PromptLookup(**options)
