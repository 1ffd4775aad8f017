"""Which hypotheses a beam search keeps, on logits from a table: no model, no cache."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_beams import plain_beam_search

from pagedcache.serving._beams import Beams


def search(logits_of, *, beams, n, max_tokens, ends, length_penalty):
    """Run Beams as `beam_search` does; the hypotheses, and how many turns it took."""
    found = Beams(width=beams, keep=n, limit=max_tokens, length_penalty=length_penalty, ends=ends)
    found.advance(np.array(logits_of([[]])))
    turns = 1
    while not found.done:
        texts = [list(each.tokens) for each in found.live]
        parents = found.advance(np.array(logits_of(texts)))
        assert [list(each.tokens[:-1]) for each in found.live] == [texts[parent] for parent in parents]
        turns += 1
    return found.best(), turns


@st.composite
def problems(draw):
    vocab = draw(st.integers(3, 7))
    ends = draw(st.frozensets(st.integers(0, vocab - 1), max_size=vocab - 2))
    beams = draw(st.integers(1, vocab - len(ends)))
    n = draw(st.integers(1, beams))
    penalty = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    options = {"beams": beams, "n": n, "max_tokens": draw(st.integers(1, 6)), "ends": ends, "length_penalty": penalty}
    return vocab, draw(st.integers(0, 2**32 - 1)), options


@given(problems())
def test_equal_to_the_plain_search(problem):
    """Which goes on to the limit, where this one stops when nothing better can come."""
    vocab, seed, options = problem
    table = 3 * np.random.default_rng(seed).standard_normal((options["max_tokens"], vocab + 1, vocab))

    def logits_of(texts):
        return [table[len(text), text[-1] if text else vocab].tolist() for text in texts]

    found, _ = search(logits_of, **options)
    expected = plain_beam_search(logits_of, [], **options)
    assert [(list(each.tokens), each.ended) for each in found] == [(tokens, ended) for _, tokens, ended in expected]
    assert [each.score for each in found] == pytest.approx([score for score, _, _ in expected])


@pytest.mark.parametrize(("length_penalty", "turns"), [(0.0, 2), (1.0, 4)])
def test_the_search_stops_when_nothing_better_can_come(length_penalty, turns):
    """Token 0 ends a text, and is likely from the second token on. A long text may make up for a loss by its length."""

    def logits_of(texts):
        return [np.log([0.7, 0.15, 0.15] if text else [0.01, 0.5, 0.49]).tolist() for text in texts]

    options = {"beams": 2, "n": 2, "max_tokens": 9, "ends": frozenset([0]), "length_penalty": length_penalty}
    found, took = search(logits_of, **options)
    assert [each.tokens for each in found] == [(1,), (2,)]
    assert took == turns


def test_ties_go_to_the_better_parent_and_the_lower_token():
    beams = Beams(width=3, keep=3, limit=2, length_penalty=1.0, ends=frozenset())
    assert beams.advance(np.zeros((1, 6))) == [0, 0, 0]
    assert [each.tokens for each in beams.live] == [(0,), (1,), (2,)]
    logits = np.zeros((3, 6))
    logits[2, 4] = 1
    assert beams.advance(logits) == [2, 0, 0]
    assert [each.tokens for each in beams.best()] == [(2, 4), (0, 0), (0, 1)]


def test_an_ending_counts_where_it_comes_before_the_last_that_lives_on():
    beams = Beams(width=1, keep=1, limit=2, length_penalty=0.0, ends=frozenset([0]))
    beams.advance(np.log([[0.4, 0.6]]))
    assert [each.tokens for each in beams.best()] == [(1,)], "the ending came second"
    beams.advance(np.log([[0.9, 0.1]]))
    assert [(each.tokens, each.ended) for each in beams.best()] == [((1,), True)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value):
    beams = Beams(width=1, keep=1, limit=2, length_penalty=0.0, ends=frozenset())
    with pytest.raises(ValueError, match=f"the logit of token 1 is {value}; it must be finite"):
        beams.advance(np.array([[0, value, 0]]))
    assert [each.tokens for each in beams.live] == [()]
