"""Layers that share K/V shape and lifetime, or keep a state: what a CacheSpec is made of."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pagedcache._dtypes import ITEM_BYTES, SCALED_DTYPES
from pagedcache._sizes import integer, one_of

if TYPE_CHECKING:
    from pagedcache.spec import CacheSpec

__all__ = ["LayerGroup", "resolved"]

GROUP_KINDS = ("full", "sliding_window", "chunked_local", "state")


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same K/V shape and the same rule for how long a token is kept; or with a state instead.

    Parameters
    ----------
    layers : int
        How many. The layers of a cache are numbered group by group.
    kind : {"full", "sliding_window", "chunked_local", "state"}
        Whether every token is kept, or only those that a window still shows: one that slides, or a chunk. Layers of
        kind state have no K and V but a state of fixed size, as Mamba has; their groups come after all others.
    window : int, optional
        Given if there is one. Of a sliding window: tokens that a query sees, its own included. Of chunks: the
        tokens of one; a query sees those of its own chunk, up to itself.
    sink_tokens : int
        Leading tokens that a sliding window keeps for ever.
    kv_heads, head_dim, v_head_dim, dtype : optional
        The K/V shape where it differs from the spec's and from other groups'; where left out, :class:`CacheSpec`
        fills in its own.
    name : str, optional
        For reports; the kind if not given.
    state_nbytes : int, optional
        Bytes of the state of one sequence in one layer; for kind state only, and required there.
    """

    layers: int
    kind: str = "full"
    window: int | None = None
    sink_tokens: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    dtype: str = ""
    name: str = ""
    state_nbytes: int = 0

    _given: ClassVar["LayerGroup | None"] = None  # of a group that a spec has filled in: as it was before

    @property
    def key_bytes(self) -> int:
        """Bytes of K of one token in one layer."""
        return self.kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def value_bytes(self) -> int:
        """Bytes of V of one token in one layer."""
        return self.kv_heads * self.v_head_dim * ITEM_BYTES[self.dtype]

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of K (and as many of V) of one token in one layer."""
        return 4 * self.kv_heads if self.dtype in SCALED_DTYPES else 0


def resolved(group: LayerGroup, spec: "CacheSpec") -> LayerGroup:
    """Return the group with what it leaves out filled in from the spec, or raise what is wrong with it."""
    group = group._given or group
    one_of("kind of a group", group.kind, GROUP_KINDS)
    if group.kind == "state":
        return _filled(group, _state(group, spec))
    if group.state_nbytes:
        raise ValueError(
            f"state_nbytes={group.state_nbytes} in a group of kind {group.kind!r}; only kind 'state' has one"
        )
    windowed = group.kind != "full"
    if windowed != (group.window is not None):
        raise ValueError(f"window={group.window} in a group of kind {group.kind!r}; windows have one, and nothing else")
    if group.sink_tokens and group.kind != "sliding_window":
        raise ValueError(
            f"sink_tokens={group.sink_tokens} in a group of kind {group.kind!r}; only sliding windows keep any"
        )
    if windowed and spec.max_step_tokens is None:
        raise ValueError("a window needs max_step_tokens, the most new tokens of a sequence in one step")
    head_dim = integer("head_dim", group.head_dim or spec.head_dim)
    v_head_dim = group.v_head_dim or (head_dim if group.head_dim else spec.v_head_dim)
    values = {
        "layers": integer("layers of a group", group.layers),
        "window": None if group.window is None else integer("window", group.window),
        "sink_tokens": integer("sink_tokens", group.sink_tokens, minimum=0),
        "kv_heads": integer("kv_heads", group.kv_heads or spec.kv_heads),
        "head_dim": head_dim,
        "v_head_dim": integer("v_head_dim", v_head_dim),
        "dtype": one_of("dtype", group.dtype or spec.dtype, ITEM_BYTES),
    }
    return _filled(group, values)


def _state(group: LayerGroup, spec: "CacheSpec") -> dict[str, Any]:
    """Return what a group of kind state has, which is no K and V, or raise what it cannot have."""
    for name in ("window", "sink_tokens", "kv_heads", "head_dim", "v_head_dim", "dtype"):
        if value := getattr(group, name):
            raise ValueError(f"{name}={value!r} in a group of kind 'state', which has no K and V: leave it out")
    return {
        "layers": integer("layers of a group", group.layers),
        "window": None,
        "dtype": spec.dtype,
        "state_nbytes": integer("state_nbytes", group.state_nbytes),
    }


def _filled(group: LayerGroup, values: dict[str, Any]) -> LayerGroup:
    filled = replace(group, name=group.name or group.kind, **values)
    object.__setattr__(filled, "_given", group)
    return filled
