"""The conformance suite that every backend has to pass, for ours and for those of others.

In a test module of your own::

    import pytest
    from pagedcache.testing import BackendConformance

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self):
            return MyBackend()

What the backend's capabilities leave out (dtypes, layouts, sizes, variants) is skipped, except that asking
for it must raise UnsupportedByBackend; everything else has to hold. Where `synchronous` is False, each
check calls `synchronize` before it looks at a result. Arguments and results are NumPy arrays.

`DelayedBackend` is a backend whose work is done on command, for tests of what waits for it.
"""

import pytest

pytest.register_assert_rewrite(
    "pagedcache.testing._attention_checks",
    "pagedcache.testing._cascade_checks",
    "pagedcache.testing._mixtures",
    "pagedcache.testing._quantised_checks",
    "pagedcache.testing._refusal_checks",
    "pagedcache.testing._stability_checks",
    "pagedcache.testing._storage_checks",
    "pagedcache.testing._variant_checks",
    "pagedcache.testing._variant_refusal_checks",
    "pagedcache.testing.scenes",
)

from pagedcache.testing.conformance import BackendConformance  # noqa: E402
from pagedcache.testing.delayed import DelayedBackend, Work  # noqa: E402
from pagedcache.testing.oracle import reference_attention, rounded, visible  # noqa: E402
from pagedcache.testing.scenes import Scene, make_scene, make_step, packed_masks  # noqa: E402

__all__ = [
    "BackendConformance",
    "DelayedBackend",
    "Scene",
    "Work",
    "make_scene",
    "make_step",
    "packed_masks",
    "reference_attention",
    "rounded",
    "visible",
]
