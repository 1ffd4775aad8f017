"""pagedcache's CPU attention as one call of XLA."""

from typing import TYPE_CHECKING

import numpy as np

from pagedcache.interop.jax._handler import register
from pagedcache.interop.jax._pools import jax_module
from pagedcache.interop.jax._steps import StepArrays

if TYPE_CHECKING:
    from jax import Array

__all__ = ["attend"]

TARGET = "pagedcache_attend"


def attend(
    q: "Array",
    k: "Array",
    v: "Array",
    k_pool: "Array",
    v_pool: "Array",
    arrays: StepArrays,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    precision: str | None = None,
    threads: int | None = None,
) -> "tuple[Array, Array, Array]":
    """Write K and V of a step's new tokens into one layer's pools, then attend over all that is visible.

    Parameters
    ----------
    q : [tokens, q_heads, head_dim]
    k, v : [tokens, kv_heads, head_dim] and [tokens, kv_heads, v_head_dim]
        Both of one dtype: float32, float16 or bfloat16, like q.
    k_pool, v_pool : [num_blocks + 1, block_size, kv_heads, head_dim]
        From `make_pools`. They are written in place where the function that this is called in donates them
        (``jax.jit(..., donate_argnums=...)``); else XLA copies them first.
    arrays : StepArrays
        From `step_arrays`; its copies must have been made (`copy_blocks`).
    scale, softcap, window, sink_tokens, precision
        As in `KVCache.attend`; "exact" or None for `precision`.
    threads : int, optional
        Most threads of the call; by default one per processor.

    Returns
    -------
    out, k_pool, v_pool
        [tokens, q_heads, v_head_dim] in q's dtype, 0 in rows that only fill up; and the pools as they are from here on.

    Raises
    ------
    ImportError
        JAX is not installed.
    RuntimeError
        There is no C compiler, or it refuses the handler; in the first call only.
    jax.errors.JaxRuntimeError
        When it runs: arrays that contradict each other, such as block ids that the pool does not have.

    Notes
    -----
    It runs on the CPU and has no derivative. No Python runs on the way.
    """
    jax = jax_module()
    register(TARGET)
    if precision not in (None, "exact", "native"):
        raise ValueError(f"precision is {precision!r}; it is 'exact', 'native' or None")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be 1 or more, or None for none")
    shape = jax.ShapeDtypeStruct((*q.shape[:2], v_pool.shape[3]), q.dtype)
    pools = [jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (k_pool, v_pool)]
    call = jax.ffi.ffi_call(TARGET, [shape, *pools], input_output_aliases={3: 1, 4: 2}, vmap_method="sequential")
    out, k_pool, v_pool = call(
        q, k, v, k_pool, v_pool, arrays.block_tables, arrays.qo_indptr, arrays.kv_lens, arrays.kv_pads,
        arrays.kv_starts, arrays.slots, scale=np.float64(0 if scale is None else scale),
        softcap=np.float64(0 if softcap is None else softcap), window=np.int64(window or 0),
        sink_tokens=np.int64(sink_tokens), exact=np.int64(precision == "exact"), threads=np.int64(threads or 0),
    )  # fmt: skip
    return out, k_pool, v_pool
