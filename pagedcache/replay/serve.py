"""Traces served by the real engine, its scheduler, cache and index, with a model that only takes time or a real one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks
from pagedcache.replay.simulated import NEW, SimulatedModel
from pagedcache.replay.trace import Trace
from pagedcache.serving import Engine, Finish, Request
from pagedcache.serving.models import Runner

__all__ = ["Served", "replay_serve"]

FIRST = NEW + 1  # the lowest token that marks a block of a prompt: one that a simulated model never writes
SAMPLES = 4096  # of a run's course at most


@dataclass(frozen=True, eq=False)
class Served:
    """What became of a trace's requests. Times are in seconds of the model's clock, from a request's arrival on."""

    requests: int
    refused: int  # could never fit
    seconds: float  # from the first arrival to the last answer
    prompt_tokens: int
    found_tokens: int  # of these, in the prefix cache
    new_tokens: int
    preemptions: int
    steps: int
    first_token: NDArray[np.float64]  # [served], until the first token
    per_token: NDArray[np.float64]  # [served with two tokens and more], from the first to the last token, for each
    course: NDArray[np.float64] = field(repr=False)  # [samples, 4]: time, share of slots with a token, running, waiting

    @property
    def utilisation(self) -> float:
        """Share of the slots that held a token of a running sequence, over time; one that is shared counts for each."""
        return self._over_time(1)

    @property
    def batch(self) -> float:
        """Sequences that ran, over time."""
        return self._over_time(2)

    @property
    def tokens_per_second(self) -> float:
        """New tokens, over the time from the first arrival to the last answer."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the numbers that tell a run, with medians and 99th percentiles of what requests waited."""
        figures: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("requests", "refused", "seconds", "prompt_tokens", "found_tokens", "new_tokens", "preemptions"),
                *("steps", "utilisation", "batch", "tokens_per_second"),
            )
        }
        for what in ("first_token", "per_token"):
            times = getattr(self, what)
            quantiles = np.percentile(times, [50, 90, 99]).tolist() if len(times) else [None] * 3
            figures |= {f"{what}_p{q}": value for q, value in zip((50, 90, 99), quantiles, strict=True)}
        return figures

    def _over_time(self, column: int) -> float:
        spans = np.diff(self.course[:, 0], prepend=0.0)
        return float((spans * self.course[:, column]).sum() / spans.sum()) if spans.sum() else 0.0


def replay_serve(
    trace: Trace,
    model: Runner,
    cache: KVCache,
    *,
    clock: Callable[[], float] | None = None,
    speed: float = 1.0,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Served:
    """Submit the requests of a trace when they come, and serve them.

    Parameters
    ----------
    trace : Trace
        Requests without an answer are served one token. Where it has no arrivals, all come at once; where it does not
        tell which blocks are alike, no two prompts are.
    model : Runner
        A `SimulatedModel`, whose clock then goes on only when something happens, or a real one.
    cache : KVCache
        For a simulated model metadata is enough.
    clock : callable, optional
        Seconds; the simulated model's own if not given, and needed of a real one.
    speed : float
        How many times faster requests come than in the trace.
    progress : callable, optional
        Called with the number of requests that are done.
    **options
        Of `Engine`.

    Returns
    -------
    Served

    Raises
    ------
    ValueError
        `speed` is not above 0, or a real model has no clock.

    Examples
    --------
    >>> from pagedcache import CacheSpec
    >>> trace = Trace("three", np.array([30, 30, 9]), np.array([4, 4, 4]), np.array([0.0, 1.0, 1.0]))
    >>> with KVCache(CacheSpec(2, 2, 8), num_blocks=8, storage="metadata") as cache:
    ...     served = replay_serve(trace, SimulatedModel(100, 10**9, 256), cache)
    >>> served.new_tokens, served.steps, served.seconds > 1
    (12, 8, True)
    """
    if not speed > 0:
        raise ValueError(f"speed is {speed}; it must be above 0")
    if clock is None:
        if not isinstance(model, SimulatedModel):
            raise ValueError("a real model needs a clock, such as time.perf_counter")
        clock = _ClockOf(model)
    engine = Engine(model, cache, clock=clock, **options)
    began = clock()
    arrivals = [began] * len(trace) if trace.arrivals is None else (began + trace.arrivals / speed).tolist()
    prompts = _prompts(trace, model.config.vocab)
    course = _Course(cache)
    waits: list[float] = []
    paces: list[float] = []
    due: dict[int, float] = {}  # when requests that are not done came
    refused = steps = preemptions = coming = 0
    while coming < len(trace) or not engine.idle:
        if engine.idle and arrivals[coming] > (now := clock()):
            if isinstance(model, SimulatedModel):
                model.now = arrivals[coming]
            else:
                sleep(arrivals[coming] - now)
        while coming < len(trace) and arrivals[coming] <= clock():
            try:
                request = engine.submit(next(prompts), max_tokens=max(1, int(trace.outputs[coming])), ignore_ends=True)
                due[request.number] = arrivals[coming]
            except (OutOfBlocks, ValueError):  # longer than the cache, or than the model's context
                refused += 1
            coming += 1
        for request in engine.step():
            came = due.pop(request.number)
            preemptions += request.preemptions
            if request.first_token is None or request.completions[0].finish is Finish.REFUSED:
                refused += 1
                continue
            waits.append(request.first_token - came)
            paces += _pace(request)
        steps += 1
        course.note(clock() - began, engine)
        if progress is not None:
            progress(coming - len(due))
    report = engine.report
    return Served(
        requests=len(trace),
        refused=refused,
        seconds=clock() - began,
        prompt_tokens=report.prompt_tokens,
        found_tokens=report.reused_tokens,
        new_tokens=report.new_tokens,
        preemptions=preemptions,
        steps=steps,
        first_token=np.array(waits),
        per_token=np.array(paces),
        course=course.samples(),
    )


class _ClockOf:
    """The clock of a simulated model."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    def __call__(self) -> float:
        return self._model.now


class _Course:
    """Samples of a run, ever fewer a second the longer it takes: neighbours are averaged when there are too many."""

    def __init__(self, cache: KVCache) -> None:
        self._slots = cache.num_blocks * cache.spec.block_size
        self._kept: list[list[float]] = []  # end, and integrals over time since the one before
        self._last, self._every, self._pending = 0.0, 1, [0.0] * 3
        self._count = 0

    def note(self, now: float, engine: Engine) -> None:
        """Take down what held since the last call."""
        span = now - self._last
        values = (engine.num_tokens / self._slots, engine.num_running, engine.num_waiting)
        self._pending = [sum_ + span * value for sum_, value in zip(self._pending, values, strict=True)]
        self._last = now
        self._count += 1
        if self._count % self._every == 0:
            self._kept.append([now, *self._pending])
            self._pending = [0.0] * 3
            if len(self._kept) == 2 * SAMPLES:
                self._every *= 2
                self._kept = [
                    [b[0], *(x + y for x, y in zip(a[1:], b[1:], strict=True))]
                    for a, b in zip(self._kept[::2], self._kept[1::2], strict=True)
                ]

    def samples(self) -> NDArray[np.float64]:
        """Return time, share of slots, running and waiting."""
        if any(self._pending):
            self._kept.append([self._last, *self._pending])
        kept = np.array(self._kept, np.float64).reshape(-1, 4)
        spans = np.diff(kept[:, 0], prepend=0.0)[:, None]
        kept[:, 1:] = np.divide(kept[:, 1:], spans, out=np.zeros_like(kept[:, 1:]), where=spans > 0)
        return kept


def _pace(request: Request) -> list[float]:
    """Return the time that each token after the first took, if there is one."""
    count = len(request.completions[0].tokens)
    if count < 2 or request.finished is None or request.first_token is None:
        return []
    return [(request.finished - request.first_token) / (count - 1)]


def _prompts(trace: Trace, vocab: int) -> Iterator[NDArray[np.int32]]:
    """Make prompts that are alike where the trace says so.

    The first token of a block tells which one it is. Where the vocabulary is too small for that, blocks are random,
    the same each time.
    """
    size = trace.block_size or 1
    own = trace.num_blocks  # what tells prompts apart of which the trace says nothing
    marks = FIRST + own + len(trace) < vocab
    for i, length in enumerate(trace.prompts.tolist()):
        ids = trace.blocks[i] if trace.blocks is not None else np.array([own + i])
        width = size if trace.blocks is not None else length
        if marks:
            prompt = np.zeros(length, np.int32)
            prompt[::width] = FIRST + ids[: -(-length // width)]
        else:
            blocks = [np.random.default_rng(int(number)).integers(0, vocab, width, np.int32) for number in ids]
            prompt = np.concatenate(blocks)[:length]
        yield prompt
