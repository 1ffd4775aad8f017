"""Sampling: greedy, temperature, top-k, top-p, and random numbers that belong to one sequence."""

import numpy as np
import pytest

from pagedcache.serving import Sampler, Sampling

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3]))


def draw(sampling, logits=LOGITS, n=4000, stream=0):
    sampler = Sampler(sampling, stream)
    return np.bincount([sampler(logits) for _ in range(n)], minlength=logits.size) / n


def test_greedy_takes_the_first_of_the_best():
    assert Sampler(Sampling())(np.array([1, 3, 3, 2], np.float32)) == 1


def test_temperature_one_follows_the_probabilities():
    assert np.abs(draw(Sampling(temperature=1.0, seed=0)) - [0.1, 0.4, 0.2, 0.3]).max() < 0.03


def test_temperature_sharpens_and_flattens():
    expected = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    assert np.abs(draw(Sampling(temperature=0.5, seed=0)) - expected / expected.sum()).max() < 0.03
    assert np.abs(draw(Sampling(temperature=1e6, seed=0)) - 0.25).max() < 0.03


def test_tiny_temperature_is_greedy():
    assert draw(Sampling(temperature=1e-300, seed=0), n=50)[1] == 1


def test_top_k():
    assert np.abs(draw(Sampling(temperature=1.0, top_k=2, seed=0)) - [0, 4 / 7, 0, 3 / 7]).max() < 0.03
    assert draw(Sampling(temperature=1.0, top_k=1, seed=0), n=50)[1] == 1
    assert (draw(Sampling(temperature=1.0, top_k=99, seed=0)) > 0).all()


def test_top_p_takes_the_fewest_that_reach_it():
    assert np.abs(draw(Sampling(temperature=1.0, top_p=0.69, seed=0)) - [0, 4 / 7, 0, 3 / 7]).max() < 0.03
    assert (draw(Sampling(temperature=1.0, top_p=0.71, seed=0)) > 0).sum() == 3
    assert draw(Sampling(temperature=1.0, top_p=1e-9, seed=0), n=50)[1] == 1
    assert (draw(Sampling(temperature=1.0, top_p=1.0, seed=0)) > 0).all()


def test_top_p_counts_within_top_k():
    assert (draw(Sampling(temperature=1.0, top_k=2, top_p=0.5, seed=0)) > 0).sum() == 1


def test_minus_infinity_is_never_drawn():
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    assert draw(Sampling(temperature=5.0, seed=0), logits)[1] == 0


def test_same_seed_same_tokens_other_stream_others():
    def tokens(*stream):
        return Sampler(Sampling(temperature=1.0, seed=3), *stream)(np.zeros(10**6))

    assert tokens(0, 0) == tokens(0, 0)
    assert len({tokens(0, 0), tokens(0, 1), tokens(1, 0)}) == 3


def test_without_a_seed_runs_differ():
    runs = {tuple(Sampler(Sampling(temperature=1.0))(np.zeros(10**6)) for _ in range(2)) for _ in range(3)}
    assert len(runs) == 3


def test_a_sequence_does_not_depend_on_its_mates():
    """Interleaved with another sampler, and alone."""
    sampling = Sampling(temperature=1.0, seed=1)
    alone, mixed, other = (Sampler(sampling, stream) for stream in (0, 0, 1))
    expected = [alone(LOGITS) for _ in range(20)]
    got = []
    for _ in range(20):
        other(LOGITS)
        got.append(mixed(LOGITS))
    assert got == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad, temperature):
    logits = np.array([0.0, bad, 1.0], np.float32)
    with pytest.raises(ValueError, match=f"the largest of 3 logits is {bad}, of token 1"):
        Sampler(Sampling(temperature=temperature))(logits)


def test_no_finite_logit_is_refused():
    with pytest.raises(ValueError, match="largest of 2 logits is -inf"):
        Sampler(Sampling())(np.full(2, -np.inf))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1; it must be above 0 and at most 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_out_of_range_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Sampling(**options)
