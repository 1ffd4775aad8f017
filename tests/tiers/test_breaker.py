"""The circuit breaker, on a clock that the test moves."""

import threading

import pytest

from pagedcache.tiers.breaker import Breaker


class Clock:
    """Seconds that pass on command."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(3, 5.0, clock=clock)


def opened(breaker):
    for _ in range(breaker.max_failures):
        breaker.fail()
    return breaker


def test_it_opens_after_failures_in_a_row(breaker):
    breaker.fail()
    breaker.fail()
    breaker.succeed()
    breaker.fail()
    breaker.fail()
    assert breaker.state == "closed" and breaker.allow()
    breaker.fail()
    assert breaker.state == "open" and not breaker.allow()


def test_it_stays_open_for_its_time(breaker, clock):
    opened(breaker)
    clock.now += 4.9
    assert not breaker.allow()
    clock.now += 0.1
    assert breaker.state == "half-open" and breaker.allow()


def test_half_open_lets_one_try(breaker, clock):
    opened(breaker)
    clock.now += 5
    assert [breaker.allow() for _ in range(3)] == [True, False, False]


def test_a_trial_that_works_closes(breaker, clock):
    opened(breaker)
    clock.now += 5
    breaker.allow()
    breaker.succeed()
    assert breaker.state == "closed"
    breaker.fail()
    assert breaker.allow(), "failures before the trial are counted no more"


def test_a_trial_that_fails_opens_for_the_whole_time(breaker, clock):
    opened(breaker)
    clock.now += 5
    breaker.allow()
    clock.now += 1
    breaker.fail()
    clock.now += 4.9
    assert breaker.state == "open" and not breaker.allow()
    clock.now += 0.1
    assert breaker.allow()


def test_a_trial_that_never_reports_is_given_up(breaker, clock):
    opened(breaker)
    clock.now += 5
    assert breaker.allow()
    clock.now += 5
    assert breaker.allow()


def test_late_failures_of_calls_begun_before_change_little(breaker, clock):
    opened(breaker)
    clock.now += 4
    breaker.fail()
    assert breaker.state == "open"
    clock.now += 5
    assert breaker.allow()


def test_of_many_threads_one_is_let_through(breaker, clock):
    opened(breaker)
    clock.now += 5
    begin, allowed = threading.Barrier(8), []

    def ask():
        begin.wait()
        allowed.append(breaker.allow())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * 7 + [True]


@pytest.mark.parametrize(("arguments", "word"), [((0, 5), "max_failures"), ((3, 0), "retry_after"), ((3, -1), "retry")])
def test_settings_without_sense_are_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        Breaker(*arguments)
