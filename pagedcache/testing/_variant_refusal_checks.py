"""Wrong windows, sinks, caps, slopes and masks; and right ones that a backend lacks."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pagedcache.backends.protocol import Backend, Storage
from pagedcache.errors import UnsupportedByBackend
from pagedcache.testing._mixtures import need
from pagedcache.testing._refusal_checks import refuses_to_attend
from pagedcache.testing._storage_checks import contents, filled
from pagedcache.testing.scenes import make_step

__all__ = ["VariantRefusalChecks"]

Q = np.ones((4, 6, 5), np.float32)
STEP = make_step([[1, 2], [3]], [(3, 6), (1, 4)], block_size=4)  # masks of 2 bytes and of 1
HEADS = np.zeros(6, np.float32)
MASK, INDPTR = np.array([255, 1, 1], np.uint8), np.array([0, 2, 3])


def with_one(value: float) -> Any:
    """Six numbers, one of which is this."""
    return np.array([0, 0, value, 0, 0, 0], np.float32)


class VariantRefusalChecks:
    """Calls that must fail."""

    @pytest.fixture
    def pool(self, backend: Backend) -> Iterator[Storage]:
        """A pool of 6 blocks of 4 tokens, which must not change."""
        storage = filled(backend)
        before = contents(backend, storage)
        yield storage
        np.testing.assert_array_equal(contents(backend, storage), before)

    @pytest.mark.parametrize(
        ("variant", "options"),
        [
            ("window", {"window": 4}),
            ("sink_tokens", {"sink_tokens": 2}),
            ("sink_logits", {"sink_logits": HEADS}),
            ("softcap", {"softcap": 30.0}),
            ("alibi", {"alibi_slopes": HEADS}),
            ("mask", {"mask": MASK, "mask_indptr": INDPTR}),
        ],
    )
    def test_a_variant_is_there_or_refused(
        self, backend: Backend, pool: Storage, variant: str, options: dict[str, Any]
    ) -> None:
        if variant in backend.capabilities.variants:
            backend.attend(pool, 0, Q, STEP, **options)
        else:
            refuses_to_attend(backend, UnsupportedByBackend, next(iter(options)), pool, 0, Q, STEP, **options)

    @pytest.mark.parametrize(
        ("variant", "options", "error", "message"),
        [
            ("window", {"window": 0}, ValueError, "window is 0; it must be at least 1"),  # W16
            ("window", {"window": -3}, ValueError, "window is -3"),
            ("window", {"window": 2.5}, TypeError, "window is 2.5"),
            ("window", {"window": True}, TypeError, "window is True"),
            ("sink_tokens", {"sink_tokens": -1}, ValueError, "sink_tokens is -1"),
            ("sink_tokens", {"sink_tokens": 1.0}, TypeError, "sink_tokens is 1.0"),
            ("sink_logits", {"sink_logits": HEADS[:3]}, ValueError, r"sink_logits has shape \(3,\).*\(6,\)"),
            ("sink_logits", {"sink_logits": with_one(np.nan)}, ValueError, "sink_logits holds nan"),
            ("sink_logits", {"sink_logits": with_one(np.inf)}, ValueError, "sink_logits holds inf"),
            ("sink_logits", {"sink_logits": HEADS.astype(complex)}, TypeError, "sink_logits is complex"),
            ("softcap", {"softcap": 0.0}, ValueError, "softcap is 0.0"),
            ("softcap", {"softcap": -5.0}, ValueError, "softcap is -5.0"),
            ("softcap", {"softcap": float("nan")}, ValueError, "softcap is nan"),
            ("softcap", {"softcap": float("inf")}, ValueError, "softcap is inf"),
            ("softcap", {"softcap": 1e39}, ValueError, r"softcap is 1e\+39"),  # inf in float32
            ("softcap", {"softcap": 1e-46}, ValueError, "softcap is 1e-46"),  # 0 in float32
            ("softcap", {"softcap": 1e-20, "scale": 1e20}, ValueError, "softcap is 1e-20"),
            ("alibi", {"alibi_slopes": HEADS[None]}, ValueError, r"alibi_slopes has shape \(1, 6\)"),
            ("alibi", {"alibi_slopes": with_one(-np.inf)}, ValueError, "alibi_slopes holds -inf"),
            ("alibi", {"alibi_slopes": with_one(-3e38)}, ValueError, r"alibi_slopes holds -3\S*e\+38"),
            ("mask", {"mask": MASK}, ValueError, "mask_indptr"),
            ("mask", {"mask_indptr": INDPTR}, ValueError, "mask"),
            ("mask", {"mask": MASK.astype(bool), "mask_indptr": INDPTR}, TypeError, "mask is bool"),
            ("mask", {"mask": MASK[None], "mask_indptr": INDPTR}, TypeError, r"mask is uint8 \(1, 3\)"),
            ("mask", {"mask": MASK, "mask_indptr": INDPTR[:2]}, ValueError, "3 offsets from 0 to 3"),
            ("mask", {"mask": MASK, "mask_indptr": INDPTR + 1}, ValueError, "3 offsets from 0 to 3"),
            ("mask", {"mask": MASK[:2], "mask_indptr": INDPTR}, ValueError, "3 offsets from 0 to 2"),
            ("mask", {"mask": MASK, "mask_indptr": [0, 1, 3]}, ValueError, "sequence 0 1 bytes.*3 new tokens need 2"),
            ("mask", {"mask": MASK, "mask_indptr": [0, 3, 3]}, ValueError, "sequence 0 3 bytes"),
            ("mask", {"mask": MASK, "mask_indptr": [0, 5, 3]}, ValueError, "sequence 0 5 bytes"),
            ("mask", {"mask": MASK, "mask_indptr": [0.0, 2.0, 3.0]}, TypeError, "mask_indptr has dtype float64"),
        ],
    )
    def test_refused_options_of_variants(
        self,
        backend: Backend,
        pool: Storage,
        variant: str,
        options: dict[str, Any],
        error: type[Exception],
        message: str,
    ) -> None:
        need(backend, variant)
        out, lse = np.full((4, 6, 4), 9, np.float32), np.full((4, 6), 9, np.float32)
        refuses_to_attend(backend, error, message, pool, 0, Q, STEP, out=out, lse=lse, **options)
        assert (out == 9).all()
        assert (lse == 9).all()

    def test_positions_that_do_not_fit(self, backend: Backend, pool: Storage) -> None:
        step = SimpleNamespace(**{name: getattr(STEP, name) for name in dir(STEP) if not name.startswith("_")})
        step.positions = step.positions[:-1]
        refuses_to_attend(backend, ValueError, r"positions.* \(3,\)", pool, 0, Q, step)
