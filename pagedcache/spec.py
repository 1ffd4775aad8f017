"""What one block of the cache holds, in bytes, and how many blocks a budget buys.

A block is ``block_size`` consecutive tokens of one sequence, for every layer of one group. In
memory it is a row of each *plane*: plane ``j`` is one K and one V array (and two scale arrays
for int8 and fp8) over all blocks, and holds layer ``j`` of whichever group owns the block::

                    plane 0        plane 1     ...   plane planes-1
    block 0         zeros          zeros             zeros           reserved, never written
    block 1         K | V          K | V             K | V           a block of a group
    ...                                                              with `planes` layers
    block n         K | V          K | V             padding         ... with fewer layers

There are as many planes as the largest group with K and V has layers; a smaller group leaves the
last ones unused, which :meth:`CacheSpec.explain` reports. A state of fixed size takes whole records
(a block in one plane), plane after plane and block after block. Nothing is rounded or aligned between blocks, so
every figure here is exactly what a backend's ``allocate`` takes.

Nothing here knows of sequences, devices or the values stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, SupportsIndex

import numpy as np

from pagedcache._dtypes import ITEM_BYTES, SCALED_DTYPES, storage_dtype
from pagedcache._explain import explained
from pagedcache._layer_group import LayerGroup, resolved
from pagedcache._layer_places import LayerPlaces, ordered, pairs_of
from pagedcache._sizes import integer, one_of, parse_bytes

__all__ = ["CacheSpec", "LayerGroup", "parse_bytes"]

LAYOUTS = ("NHD", "HND")
MAX_BLOCK_SIZE = 1024  # tokens
MAX_BLOCKS = 2**31 - 2  # block ids are int32, and block 0 is reserved


@dataclass(frozen=True, init=False)
class CacheSpec(LayerPlaces):
    """The shape of a cache, and what it costs.

    Parameters
    ----------
    layers, kv_heads, head_dim : int
        Of the model; ``head_dim`` is the size of a K head.
    v_head_dim : int, optional
        Size of a V head; ``head_dim`` if not given.
    dtype : {"float32", "float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2"}
        What K and V are stored as. The 8-bit ones have a float32 scale per token and head.
    block_size : int
        Tokens per block, 1 to 1024.
    layout : {"NHD", "HND"}
        Whether the token axis or the head axis comes first inside a block.
    groups : iterable of LayerGroup, optional
        One group of full attention over all layers if not given. What a group leaves out is the spec's, also after
        ``dataclasses.replace(spec, dtype="float16")``.
    shared_layers : mapping of int to int, optional
        Layers without K and V of their own, and whose they read: ``{5: 3}`` says that layer 5 attends to the K and V of
        layer 3, with its window. The groups count only the other layers, and these are numbered group by group.
    max_step_tokens : int, optional
        Most new tokens of one sequence in one step; required where a window exists.
    fingerprint : bytes, optional
        Identity of weights, RoPE settings and adapter; stored blocks carry it.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; the message names it and the limit.

    Examples
    --------
    >>> spec = CacheSpec(layers=30, kv_heads=3, head_dim=64, dtype="float16")
    >>> spec.bytes_per_token, spec.bytes_per_block
    (23040, 368640)
    >>> spec.blocks_for("512 MiB"), spec.sequences_that_fit(2048, memory="512 MiB")
    (1455, 11)
    """

    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = field(kw_only=True)
    dtype: str = field(kw_only=True)
    block_size: int = field(kw_only=True)
    layout: str = field(kw_only=True)
    groups: tuple[LayerGroup, ...] = field(kw_only=True)
    shared_layers: tuple[tuple[int, int], ...] = field(kw_only=True)
    max_step_tokens: int | None = field(kw_only=True)
    fingerprint: bytes | None = field(kw_only=True)

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        dtype: str = "float32",
        block_size: int = 16,
        layout: str = "NHD",
        groups: Iterable[LayerGroup] | None = None,
        shared_layers: Mapping[int, int] | Iterable[tuple[int, int]] = (),
        max_step_tokens: int | None = None,
        fingerprint: bytes | None = None,
    ) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # the dataclass is frozen for everyone else

        put("layers", integer("layers", layers))
        put("kv_heads", integer("kv_heads", kv_heads))
        put("head_dim", integer("head_dim", head_dim))
        put("v_head_dim", self.head_dim if v_head_dim is None else integer("v_head_dim", v_head_dim))
        put("dtype", one_of("dtype", dtype, ITEM_BYTES))
        put("block_size", integer("block_size", block_size, maximum=MAX_BLOCK_SIZE))
        put("layout", one_of("layout", layout, LAYOUTS))
        if max_step_tokens is not None:
            max_step_tokens = integer("max_step_tokens", max_step_tokens)
        put("max_step_tokens", max_step_tokens)
        if fingerprint is not None and not isinstance(fingerprint, bytes):
            raise TypeError(f"fingerprint is {type(fingerprint).__name__}; it must be bytes")
        put("fingerprint", fingerprint)
        put("shared_layers", pairs_of(shared_layers, self.layers))
        own_layers = self.layers - len(self.shared_layers)
        given = [LayerGroup(own_layers)] if groups is None else groups
        put("groups", ordered(resolved(group, self) for group in given))
        if (total := sum(group.layers for group in self.groups)) != own_layers:
            less = f" less {len(self.shared_layers)} that share K and V" if self.shared_layers else ""
            raise ValueError(f"the groups have {total} layers together; the spec says layers={self.layers}{less}")
        for _, source in self.shared_layers:
            self.locate(source)  # which raises where that is a state
        own = _shape(self)  # what the arrays have; several shapes are for backends with mixed groups
        if len(shapes := {_shape(group) for group in self.kv_groups}) == 1 and own not in shapes:
            every = shapes.pop()
            raise ValueError(f"every group has {every}, and the spec {own}: give the groups' values on the spec")

    # -- arrays ---------------------------------------------------------------------------------

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """dtype of the K and V arrays; without ml_dtypes, unsigned integers stand for bf16 and fp8."""
        return storage_dtype(self.dtype)

    @property
    def has_scales(self) -> bool:
        """Whether K and V are stored with float32 scales per token and head."""
        return self.dtype in SCALED_DTYPES

    scale_dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def key_shape(self, num_blocks: int) -> tuple[int, int, int, int]:
        """Shape of a K array for `num_blocks` usable blocks; row 0 is the reserved block."""
        return *self.scale_shape(num_blocks), self.head_dim

    def value_shape(self, num_blocks: int) -> tuple[int, int, int, int]:
        """Shape of a V array for `num_blocks` usable blocks; row 0 is the reserved block."""
        return *self.scale_shape(num_blocks), self.v_head_dim

    def scale_shape(self, num_blocks: int) -> tuple[int, int, int]:
        """Shape of a scale array for `num_blocks` usable blocks; row 0 is the reserved block."""
        rows = integer("num_blocks", num_blocks, maximum=MAX_BLOCKS) + 1
        if self.layout == "NHD":
            return rows, self.block_size, self.kv_heads
        return rows, self.kv_heads, self.block_size

    # -- bytes ----------------------------------------------------------------------------------

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K, V and scales of one token in all layers."""
        return sum(g.layers * (g.key_bytes + g.value_bytes + 2 * g.scale_bytes) for g in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all planes, those that its group leaves unused included."""
        key = max(group.key_bytes for group in self.groups)
        value = max(group.value_bytes for group in self.groups)
        scale = max(group.scale_bytes for group in self.groups)
        return self.planes * self.block_size * (key + value + 2 * scale)

    def record_nbytes(self, layer: int) -> int:
        """Bytes of one block in one layer: its K, V, K scales and V scales."""
        group = self.groups[self.locate(layer)[0]]
        return self.block_size * (group.key_bytes + group.value_bytes + 2 * group.scale_bytes)

    def state_records(self, group: LayerGroup) -> int:
        """Records (a block in one plane each) that the state of one layer of a state group takes."""
        return -(-group.state_nbytes // (self.bytes_per_block // self.planes))

    @property
    def state_blocks(self) -> tuple[int, ...]:
        """Blocks that one copy of a sequence's states takes in each state group.

        >>> CacheSpec(3, 1, 8, groups=[LayerGroup(1), LayerGroup(2, "state", state_nbytes=5000)]).state_blocks
        (10,)
        """
        return tuple(-(-group.layers * self.state_records(group) // self.planes) for group in self.state_groups)

    def pool_nbytes(self, num_blocks: int) -> int:
        """Bytes that a pool of `num_blocks` usable blocks takes, the reserved block included."""
        return (integer("num_blocks", num_blocks, maximum=MAX_BLOCKS) + 1) * self.bytes_per_block

    def blocks_for(self, memory: str | SupportsIndex) -> int:
        """Return how many usable blocks a budget buys (see :func:`parse_bytes`).

        Raises
        ------
        ValueError
            Not even one; the message names the smallest budget.
        """
        budget = parse_bytes(memory)
        blocks = budget // self.bytes_per_block - 1
        if blocks < 1:
            raise ValueError(
                f"memory={memory!r} is {budget} bytes; the smallest pool, one block and the reserved one, "
                f"takes {self.pool_nbytes(1)} bytes ({self.bytes_per_block} a block)"
            )
        return min(blocks, MAX_BLOCKS)

    def blocks_per_sequence(self, length: int, *, steps_in_flight: int = 1) -> int:
        """Return how many blocks a sequence of `length` tokens takes in all groups together.

        A window of W tokens with S sinks keeps at most
        ``cdiv(W - 1 + max_step_tokens * steps_in_flight) + 1 + cdiv(S)`` blocks. Of a state there is one copy more
        than steps may be in flight.
        """
        tokens = integer("length", length, minimum=0)
        total = 0
        for group in self.kv_groups:
            blocks = self._cdiv(tokens)
            if group.window is not None and self.max_step_tokens is not None:
                kept = group.window - 1 + self.max_step_tokens * steps_in_flight
                blocks = min(blocks, self._cdiv(kept) + 1 + self._cdiv(group.sink_tokens))
            total += blocks
        return total + (steps_in_flight + 1) * sum(self.state_blocks if tokens else ())

    def sequences_that_fit(
        self, length: int, *, num_blocks: int | None = None, memory: str | SupportsIndex | None = None
    ) -> int:
        """Return how many sequences of `length` tokens, sharing nothing, a pool holds at once.

        The pool is given by exactly one of `num_blocks` (usable blocks) and `memory`.
        """
        if (num_blocks is None) == (memory is None):
            raise ValueError("give exactly one of num_blocks and memory")
        blocks = self.blocks_for(memory) if memory is not None else integer("num_blocks", num_blocks)
        return blocks // self.blocks_per_sequence(integer("length", length))

    def explain(self, *, num_blocks: int | None = None, memory: str | SupportsIndex | None = None) -> str:
        """Return a short text on what a block costs and, for a given pool, what it holds.

        >>> print(CacheSpec(layers=30, kv_heads=3, head_dim=64).explain(memory="512 MiB"))
        45.00 KiB a token, 720.00 KiB a block of 16 tokens: 30 planes, float32, NHD
        group 'full': 30 layers, 3 heads, K 64 and V 64 wide; 0.0 % of a block unused
        727 usable blocks in 511.88 MiB: 11632 tokens
        """
        if memory is not None:
            num_blocks = self.blocks_for(memory)
        return explained(self, num_blocks)

    def _cdiv(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


def _shape(owner: CacheSpec | LayerGroup) -> str:
    return f"kv_heads={owner.kv_heads}, head_dim={owner.head_dim}, v_head_dim={owner.v_head_dim}, dtype={owner.dtype!r}"
