"""K and V in JAX: made, written, copied, and attended to, all in jnp."""

from typing import TYPE_CHECKING, Any

from pagedcache.interop.jax._steps import StepArrays
from pagedcache.spec import CacheSpec

if TYPE_CHECKING:
    from jax import Array

__all__ = ["copy_blocks", "gather_attend", "jax_module", "make_pools", "move_slots", "write"]

FLOATS = ("float32", "float16", "bfloat16")


def jax_module() -> Any:
    """Return JAX, or say how to install it."""
    try:
        import jax
    except ImportError as error:
        raise ImportError("pagedcache.interop.jax needs JAX 0.10 or later: pip install 'pagedcache[jax]'") from error
    return jax


def make_pools(spec: CacheSpec, num_blocks: int) -> "list[tuple[Array, Array]]":
    """Return K and V of every layer, all zero, [num_blocks + 1, block_size, kv_heads, head_dim].

    With several layer groups, which share the pool's blocks, there is a pair for each plane:
    ``spec.locate(layer)[1]`` is that of a layer.

    Parameters
    ----------
    spec : CacheSpec
        Of float32, float16 or bfloat16, layout NHD.
    num_blocks : int
        Usable ones, as the `KVCache` has; block 0 is reserved.

    Raises
    ------
    ValueError
        Another dtype or layout.
    """
    if spec.dtype not in FLOATS or spec.layout != "NHD":
        raise ValueError(f"dtype is {spec.dtype} and layout {spec.layout}; in JAX: {', '.join(FLOATS)}, and NHD")
    jnp = jax_module().numpy
    shapes = spec.key_shape(num_blocks), spec.value_shape(num_blocks)
    return [(jnp.zeros(shapes[0], spec.dtype), jnp.zeros(shapes[1], spec.dtype)) for _ in range(spec.planes)]


def write(pool: "Array", new: "Array", slots: "Array") -> "Array":
    """Return the pool with new tokens at their slots; rows that only fill up are left out. In place if donated."""
    rows = pool.reshape(-1, *pool.shape[2:])
    return rows.at[slots].set(new.astype(pool.dtype), mode="drop").reshape(pool.shape)


def copy_blocks(pool: "Array", copies: "Array") -> "Array":
    """Return the pool with blocks copied: `StepArrays.copies`, before anything else of a step. In place if donated."""
    if copies.shape[0] == 0:  # as in most steps
        return pool
    return pool.at[copies[:, 1]].set(pool[copies[:, 0]], mode="drop")


def move_slots(pool: "Array", source: "Array", target: "Array") -> "Array":
    """Return the pool with tokens moved, as ``step.moves(accepted)`` says, before `commit`. In place if donated."""
    rows = pool.reshape(-1, *pool.shape[2:])
    return rows.at[target].set(rows[source]).reshape(pool.shape)


def gather_attend(
    q: "Array", k: "Array", v: "Array", k_pool: "Array", v_pool: "Array", arrays: StepArrays, *,
    scale: float | None = None, softcap: float | None = None, window: int | None = None, sink_tokens: int = 0,
) -> "tuple[Array, Array, Array]":  # fmt: skip
    """`attend` in JAX alone: every token gathers all K and V of its sequence, which takes memory and time.

    It is the oracle of `attend`, and runs on any device. Arguments and results are those of `attend`; results are
    rounded otherwise.
    """
    jnp = jax_module().numpy
    k_pool, v_pool = write(k_pool, k, arrays.slots), write(v_pool, v, arrays.slots)
    seq = jnp.asarray(arrays.token_seq)
    tables, starts = jnp.asarray(arrays.block_tables), jnp.asarray(arrays.qo_indptr)
    lens, pads, held = (jnp.asarray(x)[seq] for x in (arrays.kv_lens, arrays.kv_pads, arrays.kv_starts))
    tokens, heads, width = q.shape
    group = heads // k_pool.shape[2]
    keys, values = (
        pool[tables].reshape(len(tables), -1, *pool.shape[2:])[seq].astype(jnp.float32) for pool in (k_pool, v_pool)
    )
    row = jnp.arange(tokens)
    at = (lens - starts[seq + 1] + row)[:, None]  # row coordinate of each query
    key = jnp.arange(keys.shape[1])[None]
    seen = (key <= at) & (key >= jnp.maximum(held, pads)[:, None])
    if window is not None:
        seen &= key > at - window
    if sink_tokens:
        seen |= (key >= pads[:, None]) & (key < pads[:, None] + sink_tokens) & (key <= at)
    seen &= (row < starts[-1])[:, None]
    grouped = q.astype(jnp.float32).reshape(tokens, -1, group, width)
    scores = jnp.einsum("thgd,tkhd->thgk", grouped, keys) * (width**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    highest = jnp.maximum(scores.max(-1, keepdims=True), -1e30)
    weights = jnp.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    weights = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 0)
    values = jnp.where(seen[:, :, None, None], values, 0)  # 0 times what is not finite is not 0
    out = jnp.einsum("thgk,tkhd->thgd", weights, values)
    return out.reshape(tokens, heads, -1).astype(q.dtype), k_pool, v_pool
