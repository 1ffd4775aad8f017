"""Kernels with a seeded bug are caught when their PTX is interpreted, and those without are not accused."""

import pytest
from battery import SCENES, SMALL, PtxBackend, far_blocks, first_failure
from mutants import MUTANTS

from pagedcache.backends.cuda import _kernels

pytestmark = [pytest.mark.cuda_offline, pytest.mark.slow, pytest.mark.usefixtures("nvrtc")]


def scenes(mutant):
    if mutant.by == "far":
        return [far_blocks]
    return SCENES if mutant.by == "results" else [SMALL[mutant.case]]


def test_kernels_as_they_are_pass():
    assert first_failure(PtxBackend(), [*SCENES, far_blocks, *SMALL.values()]) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_seeded_bug_is_caught(mutant, monkeypatch):
    read = _kernels._text
    text = mutant.edited(read(mutant.file))
    monkeypatch.setattr(_kernels, "_text", lambda name: text if name == mutant.file else read(name))
    assert first_failure(PtxBackend(), scenes(mutant)) is not None
