"""KVCache with layers that keep a state of fixed size: a recurrent model reads what it wrote for those tokens."""

import numpy as np
import pytest

from pagedcache import CacheSpec, KVCache, LayerGroup, PositionReleased, StepClosed
from pagedcache.backends import get
from pagedcache.testing import DelayedBackend

PROMPT = [7, 3, 9, 1, 4, 4, 2]
WIDE = 150  # numbers of a state: more than a record, and no multiple of one


def make_cache(num_blocks=200, *, backend="cpu", dtype="float32", layout="NHD", nbytes=4 * WIDE, **options):
    groups = [
        LayerGroup(2),
        LayerGroup(2, "sliding_window", window=5),
        LayerGroup(3, "state", state_nbytes=nbytes),
        LayerGroup(1, "state", state_nbytes=8, name="small"),
    ]
    spec = CacheSpec(8, 1, 8, dtype=dtype, layout=layout, block_size=4, groups=groups, max_step_tokens=8)
    return KVCache(spec, num_blocks=num_blocks, backend=backend, **options)


def after(layer, state, tokens):
    """The state after such tokens: it depends on their order, and on all of them."""
    for token in tokens:
        state = (state * 31 + token * 7 + layer + np.arange(state.shape[-1], dtype=np.uint32)).astype(np.uint32)
    return state


class Recurrent:
    """A model whose layers 4 to 6 keep WIDE numbers and layer 7 two; what it reads is compared with the tokens."""

    def __init__(self, cache):
        self.cache, self.tokens = cache, {}

    def admit(self, prompt=PROMPT):
        [sid] = self.cache.admit([prompt]).ids.tolist()
        self.tokens[sid] = []
        self.run({sid: prompt})
        return sid

    def open(self, new, known=None):
        step = self.cache.extend(list(new), [len(tokens) for tokens in new.values()])
        for layer in range(4, 8):
            width = 2 if layer == 7 else WIDE
            states = self.cache.read_state(layer, step).view(np.uint32)
            assert states.shape == (len(new), width)
            for row, sid in zip(states, new, strict=True):
                before = self.tokens[sid] if known is None else known[sid]
                np.testing.assert_array_equal(row, after(layer, np.zeros(width, np.uint32), before))
            written = [after(layer, row, tokens) for row, tokens in zip(states, new.values(), strict=True)]
            self.cache.write_state(layer, step, written)
        return step

    def run(self, new):
        step = self.open(new)
        self.cache.commit(step, [token for tokens in new.values() for token in tokens])
        for sid, tokens in new.items():
            self.tokens[sid] = self.tokens[sid] + list(tokens)

    def fork(self, sid):
        [[kid]] = self.cache.fork([sid]).tolist()
        self.tokens[kid] = self.tokens[sid]
        return kid


KINDS = [("cpu", "float32", "NHD"), ("numpy", "int8", "HND"), ("cpu", "float16", "HND"), ("numpy", "float32", "NHD")]


@pytest.fixture(params=KINDS, ids="/".join)
def model(request):
    backend, dtype, layout = request.param
    with make_cache(backend=backend, dtype=dtype, layout=layout) as cache:
        yield Recurrent(cache)
        cache.check()


def test_states_follow_their_sequences(model):
    a, b = model.admit(), model.admit([5])
    model.run({b: [1, 2], a: []})
    kid = model.fork(a)
    model.run({a: [8], kid: [9], b: [3]})
    model.cache.reorder([a, b, kid], [2, 2, 0])
    model.tokens |= {a: model.tokens[kid], b: model.tokens[kid], kid: model.tokens[a]}
    model.run({a: [1], b: [2, 3], kid: [4]})
    model.cache.abandon(model.open({kid: [6], a: [6]}))
    model.run({a: [1], b: [2, 3], kid: [4]})


def test_states_come_back_from_another_tier(model):
    a, b = model.admit(), model.admit([5])
    kid = model.fork(b)
    model.cache.swap_out([a, b])
    others = [model.admit([k] * 6) for k in range(3)]
    model.cache.swap_in([b, a])
    model.run({sid: [1] for sid in (a, b, kid, *others)})
    model.cache.swap_out([a])
    model.cache.release([a, kid])
    model.run({b: [1, 2]})


def test_asynchronous_steps_in_flight():
    """The second step reads what the first has written; what work may still read is not written."""
    with make_cache(backend=DelayedBackend()) as cache:
        model = Recurrent(cache)
        sid = model.admit()
        for token in range(6):
            first = model.open({sid: [token]})
            second = model.open({sid: [token + 1]}, known={sid: [*model.tokens[sid], token]})
            cache.commit(first, [token])
            cache.commit(second, [token + 1])
            model.tokens[sid] = [*model.tokens[sid], token, token + 1]
            cache.check()
        cache.synchronize()


def test_attention_beside_states(model):
    """Layers with K and V are as ever, on blocks from the same pool."""
    [sid] = model.cache.admit([PROMPT]).ids.tolist()
    step = model.cache.extend([sid], [len(PROMPT)])
    kv = np.random.default_rng(1).standard_normal((2, len(PROMPT), 1, 8)).astype(np.float32)
    model.cache.write_state(5, step, np.full((1, WIDE), 9, np.uint32))
    out = model.cache.attend(3, kv[0], kv[0], kv[1], step)
    with KVCache(CacheSpec(1, 1, 8, dtype=model.cache.spec.dtype), num_blocks=9, backend="numpy") as plain:
        alone = plain.extend(plain.admit([PROMPT]).ids, [len(PROMPT)])
        plain.backend.write(plain.storage, 0, kv[0], kv[1], alone.slots)
        expected = plain.backend.attend(plain.storage, 0, kv[0], alone, window=5)
    np.testing.assert_allclose(out, expected, atol=1e-3)
    assert (model.cache.read_state(5, step) == 0).all()
    model.cache.commit(step, PROMPT)
    assert (model.cache.read_state(5, model.cache.extend([sid], 1)).view(np.uint32) == 9).all()


def test_what_is_refused():
    with make_cache() as cache, make_cache() as other:
        model = Recurrent(cache)
        sid = model.admit()
        step = cache.extend([sid], [2])
        q = np.ones((2, 1, 8), np.float32)
        with pytest.raises(ValueError, match=r"layer 4 is of group 'state': it has a state, and nothing to attend to"):
            cache.attend(4, q, q, q, step)
        for layer, error in ((0, "group 'full', of kind 'full': it has K and V"), (8, "layers 0 to 7"), (-1, "is -1")):
            with pytest.raises(ValueError, match=error):
                cache.read_state(layer, step)
        with pytest.raises(ValueError, match=r"data is uint8 \(1, 3\); it must have 600 bytes"):
            cache.write_state(4, step, np.zeros((1, 3), np.uint8))
        with pytest.raises(ValueError, match="for each of 1 sequences"):
            cache.write_state(4, step, np.zeros((2, WIDE), np.uint16))
        with pytest.raises(ValueError, match="another cache's"):
            other.read_state(4, step)
        with pytest.raises(TypeError, match="must be a Step"):
            cache.read_state(4, None)
        with pytest.raises(PositionReleased):
            cache.commit(step, [1, 2], [[0]])
        assert len(cache.open_steps) == 1
        cache.commit(step, [1, 2])
        with pytest.raises(StepClosed):
            cache.write_state(4, step, np.zeros((1, WIDE), np.uint32))
        with pytest.raises(PositionReleased):
            cache.truncate([sid], 3)


def test_backends_have_no_k_and_v_of_a_state():
    with make_cache() as cache:
        for name in ("cpu", "numpy"):
            backend = get(name)
            storage = backend.allocate(cache.spec, 3)
            for layer in (4, 7):
                with pytest.raises(ValueError, match=f"layer {layer} is of group .*: it has a state, no K and V"):
                    storage.view(layer)
                with pytest.raises(ValueError, match="no K and V"):
                    backend.read_blocks(storage, [1], [layer])
            assert backend.read_blocks(storage, [1]).shape == (1, 4, cache.spec.record_nbytes(0))


def test_metadata_only():
    with make_cache(storage="metadata") as cache:
        [sid] = cache.admit([PROMPT]).ids.tolist()
        step = cache.extend([sid], [1])
        assert [state.state_out.shape[1] for state in step.states] == list(cache.spec.state_blocks)
        with pytest.raises(ValueError, match=r"step\.states says"):
            cache.read_state(4, step)


def test_a_pool_that_holds_just_what_the_planner_says():
    with make_cache() as cache:
        blocks = cache.spec.blocks_per_sequence(20, steps_in_flight=1)
    with make_cache(num_blocks=blocks) as cache:
        assert cache.admit([[1] * 21]).status.tolist() == [2]
        Recurrent(cache).admit([1] * 8)
