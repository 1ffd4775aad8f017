"""JAX over a paged cache: JAX owns K and V and is given them back, `KVCache` (metadata only) owns the tables.

Every step is the same compiled function: `step_arrays` brings a step into arrays of a few sizes. K and V are updated in
place where the caller donates them.

`attend` is one call of XLA into pagedcache's CPU kernels; it needs a C compiler, once. `gather_attend` is the same in
JAX alone, for any device. Importing this imports no JAX.
"""

from pagedcache.interop.jax._kernel import attend
from pagedcache.interop.jax._pools import copy_blocks, gather_attend, make_pools, move_slots, write
from pagedcache.interop.jax._steps import StepArrays, step_arrays

__all__ = ["StepArrays", "attend", "copy_blocks", "gather_attend", "make_pools", "move_slots", "step_arrays", "write"]
