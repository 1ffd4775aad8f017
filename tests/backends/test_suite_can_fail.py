"""The checks of the conformance suite fail where a backend is wrong: one mistake each, on purpose."""

import numpy as np
import pytest

from pagedcache.backends.reference import NumpyBackend
from pagedcache.testing import BackendConformance

SUITE = BackendConformance()


def attending(change):
    """A backend that changes the options of attend before it computes."""

    class Wrong(NumpyBackend):
        def attend(self, storage, layer, q, step, **options):
            return super().attend(storage, layer, q, step, **(options | change(options)))

    return Wrong()


def without(name, default=None):
    return attending(lambda options: {name: default} if name in options else {})


class Log2(NumpyBackend):
    def attend(self, *args, lse=None, **options):
        out = super().attend(*args, lse=lse, **options)
        if lse is not None:
            lse /= np.float32(np.log(2))
        return out


class NotMerging(NumpyBackend):
    def merge(self, outs, lses):
        return np.asarray(outs).mean(axis=0), np.asarray(lses).max(axis=0)


class ForgetsScales(NumpyBackend):
    def copy_blocks(self, storage, pairs):
        saved = [array.copy() for plane in storage.planes for array in plane[2:]]
        super().copy_blocks(storage, pairs)
        for array, before in zip((a for plane in storage.planes for a in plane[2:]), saved, strict=True):
            array[...] = before


class Jitters(NumpyBackend):
    """Depends on the number of tokens in the batch in the last bit."""

    def attend(self, storage, layer, q, step, **options):
        out = super().attend(storage, layer, q, step, **options)
        out *= np.float32(1 + 2.0**-23 * (len(q) % 2))
        return out


class ReadsUnusedSlots(NumpyBackend):
    def attend(self, storage, layer, q, step, **options):
        out = super().attend(storage, layer, q, step, **options)
        out += np.float32(0) * np.nan_to_num(storage.view(layer)[0].astype(np.float32), nan=np.nan).sum()
        return out


@pytest.mark.parametrize(
    ("backend", "check", "arguments"),
    [
        (attending(lambda o: {"window": o["window"] + 1} if o.get("window") else {}),
         SUITE.test_window_includes_the_query, (1, 4)),
        (without("sink_tokens", 0), SUITE.test_sink_tokens, (4, 1)),
        (without("sink_logits"), SUITE.test_sink_logits, (0.0,)),
        (without("softcap"), SUITE.test_softcap_comes_before_the_mask, (5.0,)),
        (without("alibi_slopes"), SUITE.test_alibi_counts_positions, ()),
        (attending(lambda o: {"mask": None, "mask_indptr": None}), SUITE.test_masks, (0,)),
        (attending(lambda o: {"scale": 1.0}), SUITE.test_mixed_batch, ("float32", "NHD")),
        (attending(lambda o: {"out": None}), SUITE.test_given_out, ()),
        (Log2(), SUITE.test_mixed_batch, ("float32", "NHD")),
        (NotMerging(), SUITE.test_merge, ()),
        (NotMerging(), SUITE.test_merge_of_nothing_visible, (2,)),
        (NotMerging(), SUITE.test_merge_of_any_number_of_parts, (7,)),
        (ForgetsScales(), SUITE.test_scales_move_with_the_values, ("int8", "NHD")),
        (Jitters(), SUITE.test_batch_mates_and_order, ("float32", "NHD", 3, 3, 64, False)),
        (ReadsUnusedSlots(), SUITE.test_unused_slots, ("float16", 0xFF, False)),
    ],
)  # fmt: skip
def test_a_wrong_backend_is_noticed(backend, check, arguments):
    check(NumpyBackend(), *arguments)
    with pytest.raises(AssertionError):
        check(backend, *arguments)
