"""The same requests under the same memory for K and V: reserved for the longest text each, or paged.

A cache with a single block per sequence, as large as the longest text may be, is one that reserves contiguous memory
for every sequence. So all ways of serving run on the same code, and differ in nothing but what is compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from pagedcache.backends import Backend
from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks, UnsupportedModel
from pagedcache.serving._checks import check_numbers
from pagedcache.serving.engine import Engine
from pagedcache.serving.models import Model
from pagedcache.spec import MAX_BLOCK_SIZE

__all__ = ["WAYS", "ServingRun", "compare_serving"]

WAYS = {  # name: (contiguous, static batches, prefixes shared)
    "contiguous, static batches": (True, True, False),
    "contiguous, continuous batching": (True, False, False),
    "paged, nothing shared": (False, False, False),
    "paged": (False, False, True),
}


@dataclass(frozen=True, slots=True)
class ServingRun:
    """What one way of serving did with the requests."""

    way: str
    sequences: int  # that may be in its cache at once; of a paged one, as many as there are requests
    seconds: float
    prompt_tokens: int
    found_tokens: int  # of these, in the prefix cache
    new_tokens: int
    utilisation: float  # share of the slots for K and V that hold a token, over time
    batch: float  # sequences that run, over time
    preemptions: int
    first_token_seconds: float  # from the start to a request's first token, median

    @property
    def tokens_per_second(self) -> float:
        """New tokens, over the time that it all took."""
        return self.new_tokens / self.seconds


def compare_serving(
    model: Model,
    requests: Sequence[tuple[Sequence[int], int]],
    *,
    memory: int,
    max_length: int = 1024,
    block_size: int = 16,
    dtype: str = "float32",
    backend: str | Backend = "cpu",
    step_tokens: int = 256,
    ways: Sequence[str] = tuple(WAYS),
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[ServingRun]:
    """Serve the same requests, which all come at once, in several ways.

    Parameters
    ----------
    model : Model
    requests : sequence of (sequence of int, int)
        Prompts as token ids, and how many tokens follow each; end tokens end nothing.
    memory : int
        Bytes for K and V.
    max_length : int
        Tokens that a contiguous cache reserves for every sequence.
    block_size : int
        Tokens per block of the paged cache.
    dtype, backend
        As in `KVCache`.
    step_tokens : int
        Most prompt tokens in one step.
    ways : sequence of str
        Keys of `WAYS`.
    on_progress : callable, optional
        Called with the way, the requests that are done, and all there are.

    Returns
    -------
    list of ServingRun

    Raises
    ------
    ValueError
        An argument out of range, or a request longer than `max_length`.
    OutOfBlocks
        Not even one sequence fits.
    UnsupportedModel
        The model's cache has several layer groups.

    Examples
    --------
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, _ = load_model(find_model())                                # doctest: +SKIP
    >>> requests = [(range(100 + 10 * k), 50) for k in range(20)]          # doctest: +SKIP
    >>> runs = compare_serving(model, requests, memory=64 << 20)           # doctest: +SKIP
    >>> runs[-1].tokens_per_second / runs[0].tokens_per_second             # doctest: +SKIP
    2.6
    """
    check_numbers(max_length=max_length, block_size=block_size)
    if (groups := model.cache_spec().num_groups) > 1:
        raise UnsupportedModel(
            f"this model's cache has {groups} layer groups, some with a window; contiguous caches of one are compared"
        )
    if max_length > MAX_BLOCK_SIZE:
        raise ValueError(f"max_length is {max_length}; a contiguous cache of at most {MAX_BLOCK_SIZE} can be compared")
    for index, (prompt, count) in enumerate(requests):
        check_numbers(**{f"the number of tokens after prompt {index}": count})
        if len(prompt) + count > max_length:
            raise ValueError(f"request {index} has {len(prompt)} + {count} tokens; max_length is {max_length}")
    for way in ways:
        if way not in WAYS:
            raise ValueError(f"there is no way {way!r}; there are {', '.join(map(repr, WAYS))}")
    return [
        _serve(
            way,
            model,
            requests,
            memory,
            max_length if WAYS[way][0] else block_size,
            dtype,
            backend,
            step_tokens,
            on_progress,
        )
        for way in ways
    ]


def _serve(
    way: str,
    model: Model,
    requests: Sequence[tuple[Sequence[int], int]],
    memory: int,
    block_size: int,
    dtype: str,
    backend: str | Backend,
    step_tokens: int,
    on_progress: Callable[[str, int, int], None] | None,
) -> ServingRun:
    contiguous, static, share = WAYS[way]
    spec = model.cache_spec(dtype=dtype, block_size=block_size)
    num_blocks = memory // spec.bytes_per_block  # the zero block comes on top: reserving contiguous memory needs none
    if not num_blocks:
        raise OutOfBlocks(f"{way}: a sequence takes {spec.bytes_per_block} bytes, the memory is {memory}")
    sequences = min(num_blocks if contiguous else len(requests), max(len(requests), 1))
    stored = ran = 0.0
    with KVCache(spec, num_blocks=num_blocks, max_sequences=sequences, backend=backend) as cache:
        engine = Engine(model, cache, step_tokens=step_tokens, static=static, share_prefixes=share)
        began = perf_counter()
        submitted = [engine.submit(prompt, max_tokens=count, ignore_ends=True) for prompt, count in requests]
        before, done = perf_counter(), 0
        while not engine.idle:
            done += len(engine.step())
            now = perf_counter()
            if not engine.idle:
                stored += (now - before) * engine.num_tokens
                ran += (now - before) * engine.num_running
            before = now
            if on_progress is not None:
                on_progress(way, done, len(requests))
        seconds = perf_counter() - began
        firsts = [request.first_token - began for request in submitted if request.first_token is not None]
        return ServingRun(
            way=way,
            sequences=sequences,
            seconds=seconds,
            prompt_tokens=engine.report.prompt_tokens,
            found_tokens=engine.report.reused_tokens,
            new_tokens=engine.report.new_tokens,
            utilisation=stored / seconds / (num_blocks * block_size),
            batch=ran / seconds,
            preemptions=sum(request.preemptions for request in submitted),
            first_token_seconds=median(firsts) if firsts else 0.0,
        )
