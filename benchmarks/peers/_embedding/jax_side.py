"""JAX: pools donated, attention as a call of XLA."""

import time

from _embedding.cells import LAYERS
from pagedcache.interop.jax import attend, make_pools, step_arrays


class JaxSide:
    """All layers in one jitted function."""

    together = LAYERS  # in one call

    def __init__(self, setting):
        import jax

        self.cache, ids = setting.cache(storage="metadata")
        self.arrays = jax.tree.map(jax.numpy.asarray, step_arrays(self.cache.extend(ids, 1)))
        assert len(self.arrays.slots) == len(setting.q)  # which is a power of two
        self.numbers = [jax.numpy.asarray(array) for array in (setting.q, setting.k, setting.v)]
        self.pools = make_pools(setting.spec, setting.num_blocks)
        self.places = self.addresses()
        self.layers = jax.jit(self.some_layers, donate_argnums=3)

    @classmethod
    def by_layer(cls, setting):
        """A jitted function of one layer, called for each."""
        return type("ByLayer", (cls,), {"together": 1})(setting)

    def some_layers(self, q, k, v, pools, arrays):
        done = []
        for pair in pools:
            q, *pair = attend(q, k, v, *pair, arrays, threads=1)
            done.append(tuple(pair))
        return q, done

    def addresses(self):
        return [pool.unsafe_buffer_pointer() for pair in self.pools for pool in pair]

    def run(self, steps):
        """Seconds of so many steps."""
        (q, k, v), pools, arrays = self.numbers, self.pools, self.arrays
        begin = time.perf_counter()
        for _ in range(steps):
            for first in range(0, LAYERS, self.together):
                span = slice(first, first + self.together)
                self.out, pools[span] = self.layers(q, k, v, pools[span], arrays)
        self.out.block_until_ready()
        return time.perf_counter() - begin

    def rest(self, steps):
        """Nothing is taken off."""
        return 0.0

    def check(self):
        """The pools are where they were."""
        assert self.addresses() == self.places and self.out.any()
