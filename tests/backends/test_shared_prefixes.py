"""Backend "numpy" and plans of shared prefixes that a Step of the core would refuse."""

from types import SimpleNamespace

import numpy as np
import pytest

from pagedcache import backends
from pagedcache.spec import CacheSpec
from pagedcache.testing import make_scene

BACKEND = backends.get("numpy")
LENGTHS = [(1, 7), (1, 40), (3, 50), (1, 33), (0, 40), (9, 41), (1, 64), (2, 100), (1, 5)]


def scene():
    spec = CacheSpec(1, 2, 16, block_size=4)
    return make_scene(BACKEND, spec, LENGTHS, q_heads=6, shared=[(1, 4, 8), (5, 3, 5)])


def planned(scene, plan):
    """The scene's step, with a plan as given."""
    step = scene.step()
    arrays = {name: getattr(step, name) for name in dir(step) if not name.startswith("_")}
    return SimpleNamespace(**arrays | {"shared_prefixes": np.array(plan, np.int32)})


@pytest.mark.parametrize(
    "plan",
    [
        [(0, 9, 0)],  # no blocks
        [(3, 1, 2)],  # nobody to share with
        [(2, 0, 5)],  # nobody
        [(0, 9, 1)],  # they do not share it
        [(1, 4, 10)],  # beyond the end of one
    ],
)
def test_a_plan_that_cannot_be_followed_changes_nothing(plan):
    world = scene()
    out = BACKEND.attend(world.storage, 0, world.q(), planned(world, plan))
    world.shared = None
    assert out.tobytes() == world.attend()[0].tobytes()


def test_a_prefix_that_reaches_into_new_tokens_is_not_shared():
    spec, lengths = CacheSpec(1, 2, 16, block_size=4), [(3, 8), (1, 8), (5, 9)]
    world = make_scene(BACKEND, spec, lengths, q_heads=4, shared=[])
    tables, keys, values = world.tables, world.keys, world.values
    for i in (1, 2):
        tables[i][:2], keys[i][:8], values[i][:8] = tables[0][:2], keys[0], values[0]
    out = BACKEND.attend(world.storage, 0, world.q(), planned(world, [(0, 3, 2)]))
    np.testing.assert_allclose(out, world.expected()[0], atol=1e-5)


@pytest.mark.parametrize("plan", [[(1, 4, 8), (4, 2, 1)], [(7, 3, 1)], [(-1, 2, 1)], [(1, 2, -1)], [(1, 2)]])
def test_plans_that_name_what_is_not_there(plan):
    world = scene()
    out = np.full((19, 6, 16), 9, np.float32)
    with pytest.raises(ValueError, match="shared_prefixes"):
        BACKEND.attend(world.storage, 0, world.q(), planned(world, plan), out=out)
    assert (out == 9).all()
