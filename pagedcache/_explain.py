"""What a spec costs, in words."""

from typing import TYPE_CHECKING

from pagedcache._layer_group import LayerGroup
from pagedcache._sizes import readable

if TYPE_CHECKING:
    from pagedcache.spec import CacheSpec

__all__ = ["explained"]


def explained(spec: "CacheSpec", num_blocks: int | None) -> str:
    """Return a line on the whole, one for each group, and one on a pool where its blocks are given."""
    lines = [
        f"{readable(spec.bytes_per_token)} a token, {readable(spec.bytes_per_block)} a block of "
        f"{spec.block_size} tokens: {spec.planes} planes, {spec.dtype}, {spec.layout}"
    ]
    lines += [_tokens(spec, group) for group in spec.kv_groups]
    lines += [_state(spec, group, blocks) for group, blocks in zip(spec.state_groups, spec.state_blocks, strict=True)]
    if spec.shared_layers:
        lines.append(f"{len(spec.shared_layers)} more layers read the K and V of these")
    if num_blocks is not None:
        size = readable(spec.pool_nbytes(num_blocks))
        tokens = f"{num_blocks * spec.block_size} tokens" if spec.num_groups == 1 else "for all groups together"
        lines.append(f"{num_blocks} usable blocks in {size}: {tokens}")
    return "\n".join(lines)


def _tokens(spec: "CacheSpec", group: LayerGroup) -> str:
    used = group.layers * spec.block_size * (group.key_bytes + group.value_bytes + 2 * group.scale_bytes)
    return (
        f"group {group.name!r}: {group.layers} layers, {group.kv_heads} heads, K {group.head_dim} and V "
        f"{group.v_head_dim} wide; {100 * (1 - used / spec.bytes_per_block):.1f} % of a block unused"
    )


def _state(spec: "CacheSpec", group: LayerGroup, blocks: int) -> str:
    used = group.layers * group.state_nbytes / (blocks * spec.bytes_per_block)
    return (
        f"group {group.name!r}: {group.layers} layers, {readable(group.state_nbytes)} of state each; {blocks} blocks a "
        f"copy, {100 * (1 - used):.1f} % of them unused"
    )
