"""Wrong arguments raise an error that names value and limit, and change nothing."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pagedcache.backends.protocol import Backend, Storage
from pagedcache.spec import CacheSpec
from pagedcache.testing._storage_checks import SPEC, buffers_for, contents, filled
from pagedcache.testing.scenes import make_step

__all__ = ["RefusalChecks", "refuses_to_attend"]

K, V = np.ones((2, 3, 5), np.float32), np.ones((2, 3, 4), np.float32)
Q = np.ones((2, 6, 5), np.float32)
STEP = make_step([[1, 2], [3]], [(1, 6), (1, 4)], block_size=4)
BYTES = SPEC.record_nbytes(0)
STEP_ARRAYS = ("block_tables", "qo_indptr", "kv_lens", "kv_pads", "kv_starts", "positions")


def beyond_int32(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return integers of which int32 would keep the right lower half."""
    return np.full_like(array, 2**32 + 1, np.int64)


def refuses_to_attend(backend: Backend, error: type[Exception], message: str, *arguments: Any, **options: Any) -> None:
    """Assert that attend refuses these arguments, and check_attend too, where the backend has it."""
    for verb in ("check_attend", "attend"):
        if hasattr(backend, verb):
            with pytest.raises(error, match=message):
                getattr(backend, verb)(*arguments, **options)


class RefusalChecks:
    """Calls that must fail."""

    @pytest.fixture
    def storage(self, backend: Backend) -> Iterator[Storage]:
        """A pool of 6 blocks of 4 tokens, which must not change."""
        storage = filled(backend)
        before = contents(backend, storage)
        yield storage
        np.testing.assert_array_equal(contents(backend, storage), before)

    @pytest.mark.parametrize(
        ("k", "v", "slots", "error", "message"),
        [
            (K[:1], V, [4, 5], ValueError, r"k has shape \(1, 3, 5\).*\(2, 3, 5\)"),
            (K, K, [4, 5], ValueError, r"v has shape .*\(2, 3, 4\)"),
            (K[0], V, [4, 5], ValueError, "k has shape"),
            (K.astype(int), V, [4, 5], TypeError, "k is int64"),
            (K, V.astype(np.float64), [4, 5], TypeError, "v is float64.*float32"),
            (K.astype(complex), V, [4, 5], TypeError, "k is complex128"),
            (K.astype(object), V, [4, 5], TypeError, "k is object"),
            (K.view(np.uint32), V, [4, 5], TypeError, "k is uint32"),
            (K, V, [4], ValueError, "k has shape"),
            (K, V, [4, -1], ValueError, "slot -1"),  # I13
            (K, V, [4, 3], ValueError, "slot 3.*reserved"),
            (K, V, [4, 28], ValueError, "slot 28.*4 to 27"),
            (K, V, [4, 2**31], ValueError, "slot 2147483648"),  # I07
            (K, V, np.array([4, 2**64 - 1], np.uint64), ValueError, "18446744073709551615"),
            (K, V, [4.0, 5.0], TypeError, "slots has dtype float64"),
            (K, V, [True, False], TypeError, "slots has dtype bool"),
            (K, V, [[4, 5]], ValueError, r"slots has shape \(1, 2\)"),
        ],
    )
    def test_refused_write(
        self, backend: Backend, storage: Storage, k: Any, v: Any, slots: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            backend.write(storage, 0, k, v, np.asarray(slots))

    @pytest.mark.parametrize("layer", [-1, 2, 2**40])
    def test_refused_layer(self, backend: Backend, storage: Storage, layer: int) -> None:
        with pytest.raises(ValueError, match=str(layer)):
            backend.write(storage, layer, K, V, [4, 5])
        refuses_to_attend(backend, ValueError, str(layer), storage, layer, Q, STEP)
        with pytest.raises(ValueError, match=str(layer)):
            backend.read_blocks(storage, [1], layers=[layer])
        with pytest.raises(ValueError, match=str(layer)):
            storage.view(layer)

    @pytest.mark.parametrize(
        ("q", "error", "message"),
        [
            (Q[0], ValueError, r"q has shape \(6, 5\)"),
            (Q[..., :4], ValueError, r"q has shape .*5\]"),
            (Q[:1], ValueError, "qo_indptr"),
            (Q[:, :4], ValueError, "q has 4 heads.*kv_heads=3"),  # W28
            (Q[:, :0], ValueError, "q has 0 heads"),
            (Q.astype(np.float64), TypeError, "q is float64"),
            (Q.astype(np.int8), TypeError, "q is int8"),
        ],
    )
    def test_refused_queries(
        self, backend: Backend, storage: Storage, q: Any, error: type[Exception], message: str
    ) -> None:
        refuses_to_attend(backend, error, message, storage, 0, q, STEP)

    def test_checking_attend_alone_does_nothing(self, backend: Backend, storage: Storage) -> None:
        if not hasattr(backend, "check_attend"):
            pytest.skip("a backend may do without")
        out, lse = np.full((2, 6, 4), 9, np.float32), np.full((2, 6), 9, np.float32)
        backend.check_attend(storage, 1, Q, STEP, scale=0.5, out=out, lse=lse)
        assert (out == 9).all()
        assert (lse == 9).all()

    @pytest.mark.parametrize(("q_heads", "kv_heads"), [(3, 2), (33, 2)])
    def test_heads_that_do_not_divide(self, backend: Backend, q_heads: int, kv_heads: int) -> None:  # W28
        storage = filled(backend, CacheSpec(1, kv_heads, 5, block_size=4))
        refuses_to_attend(
            backend,
            ValueError,
            f"{q_heads} heads.*kv_heads={kv_heads}",
            storage,
            0,
            np.ones((2, q_heads, 5), np.float32),
            STEP,
        )

    @pytest.mark.parametrize("block", [0, 7, 2**31 - 1])
    def test_blocks_that_are_not_there(self, backend: Backend, storage: Storage, block: int) -> None:  # I13
        step = make_step([[1, 2], [block]], [(1, 6), (1, 4)], block_size=4)
        out = np.full((2, 6, 4), 9, np.float32)
        refuses_to_attend(
            backend, ValueError, rf"block_tables\[1, 0\] is {block}.*1 to 6", storage, 0, Q, step, out=out
        )
        assert (out == 9).all()

    @pytest.mark.parametrize(
        ("name", "change", "error", "message"),
        [
            *((name, np.float64, TypeError, f"{name} has dtype float64") for name in STEP_ARRAYS),
            *((name, np.bool_, TypeError, f"{name} has dtype bool") for name in STEP_ARRAYS),
            *((name, beyond_int32, ValueError, f"{name} holds 4294967297") for name in STEP_ARRAYS[:-1]),
            ("kv_pads", lambda array: array[:1], ValueError, r"kv_pads \(1,\)"),
            ("kv_starts", lambda array: array[:1], ValueError, r"kv_starts \(1,\)"),
            ("qo_indptr", np.flip, ValueError, r"qo_indptr must rise"),
            ("positions", lambda array: array - 2**62, ValueError, r"positions holds -46116.*-2\*\*61"),
            ("qo_indptr", np.atleast_2d, ValueError, r"qo_indptr has shape \(1, 3\)"),
            ("block_tables", np.ravel, ValueError, r"block_tables has shape"),
        ],
    )
    def test_arrays_of_a_step_that_no_step_has(
        self, backend: Backend, storage: Storage, name: str, change: Any, error: type[Exception], message: str
    ) -> None:
        step = SimpleNamespace(**{each: getattr(STEP, each) for each in dir(STEP) if not each.startswith("_")})
        setattr(step, name, change(np.asarray(getattr(STEP, name))))
        refuses_to_attend(backend, error, message, storage, 0, Q, step)

    def test_step_of_another_block_size(self, backend: Backend, storage: Storage) -> None:
        step = make_step([[1, 2], [3]], [(1, 6), (1, 4)], block_size=5)
        refuses_to_attend(backend, ValueError, r"block_size 5.* 4", storage, 0, Q, step)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"out": np.ones((2, 6, 5), np.float32)}, ValueError, r"out is float32 \(2, 6, 5\).*\(2, 6, 4\)"),
            ({"out": np.ones((2, 6, 4), np.float64)}, ValueError, "out is float64"),
            ({"out": np.broadcast_to(np.float32(0), (2, 6, 4))}, ValueError, "out is .*read-only"),
            ({"lse": np.ones((2, 6), np.float16)}, ValueError, "lse is float16"),
            ({"lse": np.ones((2, 3), np.float32)}, ValueError, r"lse is float32 \(2, 3\)"),
            ({"scale": float("nan")}, ValueError, "scale is nan"),
            ({"scale": -1e39}, ValueError, r"scale is -1e\+39"),  # -inf in float32
            ({"precision": "fast"}, ValueError, "precision is 'fast'"),
        ],
    )
    def test_refused_options(
        self, backend: Backend, storage: Storage, options: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        refuses_to_attend(backend, error, message, storage, 0, Q, STEP, **options)

    @pytest.mark.parametrize(
        ("pairs", "message"),
        [
            ([(1, 2), (2, 1)], "block .* both"),  # W34
            ([(1, 2), (2, 3)], "block 2 .* both"),
            ([(1, 1)], "block 1 .* both"),
            ([(1, 3), (2, 3)], "block 3 twice"),
            ([(1, 0)], "block 0"),
            ([(1, 7)], "block 7.*1 to 6"),
            ([(-1, 2)], "block -1"),
            ([(1, 2, 3)], r"\(1, 3\)"),
        ],
    )
    def test_refused_copy_blocks(self, backend: Backend, storage: Storage, pairs: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            backend.copy_blocks(storage, pairs)

    @pytest.mark.parametrize(
        ("src", "dst", "message"),
        [
            ([4, 5], [6, 6], "slot 6 twice"),
            ([4], [3], "slot 3.*reserved"),
            ([4], [28], "slot 28"),
            ([-1], [4], "slot -1"),
            ([4, 5], [6], "2 slots.* 1"),
        ],
    )
    def test_refused_copy_slots(self, backend: Backend, storage: Storage, src: Any, dst: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            backend.copy_slots(storage, src, dst)

    def test_refused_records(self, backend: Backend, storage: Storage) -> None:
        records = np.zeros((2, 2, BYTES), np.uint8)
        for ids, data, message in (
            ([1, 1], records, "block 1 twice"),
            ([0, 1], records, "block 0"),
            ([1, 7], records, "block 7"),
            ([1, 2], records[:1], r"data is uint8 \(1, 2, "),
            ([1, 2], records[..., 1:], "data is"),
            ([1, 2], records.view(np.int8), "data is int8"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.write_blocks(storage, ids, data)
        with pytest.raises(ValueError, match="twice"):
            backend.write_blocks(storage, [1, 2], records, layers=[1, 1])
        with pytest.raises(ValueError, match="block -1"):
            backend.read_blocks(storage, [-1])
        with pytest.raises(ValueError, match="into is"):
            backend.read_blocks(storage, [1], into=records)
        with pytest.raises(ValueError, match="read-only"):
            backend.read_blocks(storage, [1, 2], into=np.broadcast_to(np.uint8(0), records.shape))

    def test_buffers_that_do_not_fit(self, backend: Backend) -> None:  # W33
        good = buffers_for(SPEC, 6, fill=1)
        wide = np.ones((*SPEC.key_shape(6)[:3], 10), np.float32)
        locked = good[0][0].copy()
        locked.flags.writeable = False
        odd = np.frombuffer(bytearray(good[0][0].nbytes + 1), np.uint8)[1:].view(np.float32).reshape(SPEC.key_shape(6))
        for bad, message in (
            (good[:1], "1 entries.*2 planes"),
            ([good[0][:1], good[1]], r"buffers\[0\] has 1 arrays"),
            ([(good[0][0][1:], good[0][1]), good[1]], r"K of buffers\[0\] has shape"),
            ([(good[0][0].astype(np.float16), good[0][1]), good[1]], "dtype float16"),
            ([(wide[..., ::2], good[0][1]), good[1]], "contiguous"),
            ([(locked, good[0][1]), good[1]], "writable"),
            ([(odd, good[0][1]), good[1]], "aligned"),
            ([good[0], good[0]], "overlap"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.allocate(SPEC, 6, buffers=bad)
        with pytest.raises(TypeError, match="K of buffers"):
            backend.allocate(SPEC, 6, buffers=[("no", "no"), good[1]])
        assert all((array == 1).all() for plane in good for array in plane)

    @pytest.mark.parametrize("num_blocks", [0, -1, 2**31])
    def test_number_of_blocks(self, backend: Backend, num_blocks: int) -> None:
        with pytest.raises(ValueError, match=str(num_blocks)):
            backend.allocate(SPEC, num_blocks)

    def test_refused_merge(self, backend: Backend) -> None:
        outs, lses = np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 3, 4), np.float32)
        for bad_outs, bad_lses in ((outs, lses[:1]), (outs[0], lses), (outs[:0], lses[:0]), (outs, lses.astype(int))):
            with pytest.raises(ValueError, match=r"outs is .* lses"):
                backend.merge(bad_outs, bad_lses)
