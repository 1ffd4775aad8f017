"""KVCache.attend refuses before it writes: whatever is wrong with a call, no byte of the pool has changed."""

import numpy as np
import pytest
from kv_drive import DIM, HEADS, Replaced, Rows, kv_of, make_cache

from pagedcache import Step, StepClosed, UnsupportedByBackend
from pagedcache.backends import get
from pagedcache.testing import DelayedBackend

Q_HEADS = 2 * HEADS
Q = np.ones((5, Q_HEADS, DIM), np.float32)  # of new tokens: 3 of one sequence, 2 of another
K, V = kv_of([7] * 5, 0)
SLOPES = np.zeros(Q_HEADS, np.float32)
INDPTR = np.array([0, 2, 3])  # 9 bits and 4
REFUSALS = {
    "layer": (ValueError, "layer 2", {"layer": 2}),
    "q of too few tokens": (ValueError, "qo_indptr", {"q": Q[:4]}),
    "q of another width": (ValueError, "q has shape", {"q": Q[..., 1:]}),
    "q of two axes": (ValueError, "q has shape", {"q": Q[0]}),
    "q heads": (ValueError, "multiple of", {"q": Q[:, :3]}),
    "q dtype": (TypeError, "q is float64", {"q": Q.astype(np.float64)}),
    "q is none": (TypeError, "q is", {"q": None}),
    "k of too few tokens": (ValueError, "k has shape", {"k": K[:4]}),
    "k dtype": (TypeError, "k is int64", {"k": K.astype(np.int64)}),
    "v of another width": (ValueError, "v has shape", {"v": V[..., 1:]}),
    "v dtype": (TypeError, "v is float64", {"v": V.astype(np.float64)}),
    "k alone": (ValueError, "both k and v", {"v": None}),
    "v alone": (ValueError, "both k and v", {"k": None}),
    "no step": (TypeError, "step must be a Step", {"step": None}),
    "step from arrays": (
        ValueError, "may only read", {"step": Step.from_arrays([[1, 2]], [5], [0, 5], block_size=4)}
    ),
    "scale": (ValueError, "scale is nan", {"scale": np.nan}),
    "sink_logits": (ValueError, "sink_logits has shape", {"sink_logits": SLOPES[1:]}),
    "softcap": (ValueError, "softcap is -1", {"softcap": -1.0}),
    "alibi_slopes": (ValueError, "alibi_slopes holds inf", {"alibi_slopes": SLOPES + np.inf}),
    "mask alone": (ValueError, "mask_indptr", {"mask": np.zeros(3, np.uint8)}),
    "mask dtype": (TypeError, "mask is bool", {"mask": np.zeros(3, bool), "mask_indptr": INDPTR}),
    "mask too short": (ValueError, "offsets", {"mask": np.zeros(2, np.uint8), "mask_indptr": INDPTR}),
    "precision": (ValueError, "precision is 'fast'", {"precision": "fast"}),
    "native precision": (UnsupportedByBackend, "native", {"precision": "native"}),
    "out shape": (ValueError, "out is", {"out": np.zeros((5, Q_HEADS, DIM + 1), np.float32)}),
    "out read-only": (ValueError, "read-only", {"out": np.broadcast_to(np.float32(0), Q.shape)}),
    "out is no array": (TypeError, "out is list", {"out": Q.tolist()}),
    "lse dtype": (ValueError, "lse is float64", {"lse": np.zeros((5, Q_HEADS))}),
}  # fmt: skip


def pool_bytes(cache):
    return b"".join(array.tobytes() for plane in cache.storage.export() for array in plane)


@pytest.fixture(params=["float32", "int8", "delayed"])
def cache(request):
    """Two sequences of 6 tokens that share their first block, and an open step."""
    delayed = request.param == "delayed"
    backend = DelayedBackend() if delayed else "numpy"
    with make_cache(dtype="float32" if delayed else request.param, backend=backend, steps_in_flight=1) as cache:
        rows = Rows(cache)
        first = rows.admit([1, 2, 3, 4, 5, 6])
        cache.extend([first, rows.fork(first)], [3, 2])
        cache.backend.synchronize()
        yield cache
        cache.abandon(cache.open_steps[0])
        cache.check()


def refuse(cache, error, message, **wrong):
    """The call of attend is refused, and has changed nothing."""
    arguments = {"layer": 0, "q": Q, "k": K, "v": V, "step": cache.open_steps[0]} | wrong
    before = pool_bytes(cache)
    with pytest.raises(error, match=message):
        cache.attend(**arguments)
    cache.backend.synchronize()
    assert pool_bytes(cache) == before


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_attend_has_written_nothing(cache, case):
    error, message, wrong = REFUSALS[case]
    refuse(cache, error, message, **wrong)


def test_a_call_that_is_right_writes(cache):
    """The refusals above are refusals of what is wrong, each with one thing put right."""
    before = pool_bytes(cache)
    cache.attend(0, Q, K, V, cache.open_steps[0], sink_logits=SLOPES, alibi_slopes=SLOPES, precision="exact")
    cache.backend.synchronize()
    assert pool_bytes(cache) != before


def test_results_are_not_touched_by_a_refused_call(cache):
    out, lse = np.full(Q.shape, 9, np.float32), np.full(Q.shape[:2], 9, np.float32)
    refuse(cache, ValueError, "softcap", out=out, lse=lse, softcap=0.0)
    assert (out == 9).all() and (lse == 9).all()


def test_values_that_no_scale_fits_are_refused_before_k_is_written():
    with make_cache(dtype="int8") as cache:
        [sid] = cache.admit([[1] * 5]).ids
        step = cache.extend([sid], 5)
        refuse(cache, ValueError, "v holds nan", v=V * np.float32("nan"))
        cache.abandon(step)


def test_a_closed_step_writes_nothing():
    with make_cache() as cache:
        [sid] = cache.admit([[1] * 5]).ids
        step = cache.extend([sid], 5)
        cache.abandon(step)
        again = cache.extend([sid], 5)
        refuse(cache, StepClosed, "step", step=step)
        cache.abandon(again)


def test_a_backend_need_not_check_alone():
    """`check_attend` is optional: without it attention works, and what write itself refuses is refused."""

    class Plain(Replaced):
        def __getattr__(self, name):
            if name == "check_attend":
                raise AttributeError(name)
            return super().__getattr__(name)

    with make_cache(backend=Plain(name="plain")) as cache:
        rows = Rows(cache)
        rows.admit([1, 2, 3, 4, 5])
        rows.verify()


def test_the_numpy_backend_and_the_delayed_one_check_alone():
    assert callable(get("numpy").check_attend) and callable(DelayedBackend().check_attend)
