"""What a backend may have besides does what the protocol's own verbs do; whoever lacks it is not asked."""

from typing import Any

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend, HasThreads
from pagedcache.spec import CacheSpec
from pagedcache.testing._storage_checks import SPEC, contents, filled
from pagedcache.testing.scenes import make_step

__all__ = ["OptionalChecks"]

LENGTHS = [(3, 9), (1, 4)]


class OptionalChecks:
    """write_and_attend, and threads."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("override the fixture `backend`")

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    def test_write_and_attend_is_write_then_attend(self, backend: Backend, dtype: str, layout: str) -> None:
        at_once = getattr(backend, "write_and_attend", None)
        if at_once is None:
            pytest.skip("the backend has no write_and_attend")
        spec = CacheSpec(2, 3, 5, v_head_dim=4, dtype=dtype, block_size=4, layout=layout)
        storage, other = filled(backend, spec), filled(backend, spec)
        step = make_step([[5, 1, 3], [2]], LENGTHS, spec.block_size)
        rng = np.random.default_rng(2)
        q, k, v = (rng.standard_normal((4, heads, width), np.float32) for heads, width in ((6, 5), (3, 5), (3, 4)))
        cap: dict[str, Any] = {"softcap": 2.0} if "softcap" in backend.capabilities.variants else {}
        options: dict[str, Any]
        for options in ({}, {}, {"scale": 0.5}, cap):  # the second finds what the first may have left
            out, lse = at_once(storage, 1, q, k, v, step, **options), np.empty((4, 6), np.float32)
            backend.write(other, 1, k, v, step.slots)
            expected = backend.attend(other, 1, q, step, lse=lse, **options)
            backend.synchronize()
            np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))
            np.testing.assert_array_equal(contents(backend, storage), contents(backend, other))
            k, v = -k, v + 1

    @pytest.mark.parametrize("wrong", ["q", "k", "v", "softcap", "out"])
    def test_a_refused_write_and_attend_has_stored_nothing(self, backend: Backend, wrong: str) -> None:
        at_once = getattr(backend, "write_and_attend", None)
        if at_once is None:
            pytest.skip("the backend has no write_and_attend")
        storage = filled(backend)
        step = make_step([[5, 1, 3], [2]], LENGTHS, SPEC.block_size)
        arrays: dict[str, Any] = {"q": np.ones((4, 6, 5), np.float32), "k": np.ones((4, 3, 5), np.float32)}
        arrays["v"] = np.ones((4, 3, 4), np.float32)
        before = contents(backend, storage)
        for _ in range(2):  # with and without what an earlier call may have left
            given = dict(arrays)
            given[wrong] = np.ones((4, 4, 7), np.float32) if wrong != "softcap" else -1.0
            options = {name: given.pop(name) for name in ("softcap", "out") if name in given}
            with pytest.raises(ValueError, match=wrong):
                at_once(storage, 1, *given.values(), step, **options)
            np.testing.assert_array_equal(contents(backend, storage), before)
            backend.attend(storage, 1, arrays["q"], step)

    def test_another_number_of_threads_gives_the_same_bits(self, backend: Backend) -> None:
        if not isinstance(backend, HasThreads):
            pytest.skip("the backend has no threads of its own")
        found = set()
        for threads in (1, 2, 3):
            with_so_many = backend.with_threads(threads)
            assert isinstance(with_so_many, HasThreads) and with_so_many.threads == threads
            storage = filled(with_so_many, CacheSpec(2, 4, 64, block_size=64), num_blocks=60)
            step = make_step([list(range(1, 61)), [60, 3]], [(1, 3840), (2, 70)], 64)
            found.add(np.asarray(with_so_many.attend(storage, 1, np.ones((3, 8, 64), np.float32), step)).tobytes())
        assert len(found) == 1
