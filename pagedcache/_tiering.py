"""The verbs of KVCache about slower tiers: what the prefix cache lacks is looked for there, what it loses is kept."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._bookkeeping import Border, Keys, Prompts
from pagedcache._residency import Residency
from pagedcache.core import BlockPool
from pagedcache.keys import Namespace

if TYPE_CHECKING:
    from pagedcache._prefetch import Prefetch
    from pagedcache._tier_set import TierSet

__all__ = ["Tiering"]


class Tiering(Residency):
    """Base of KVCache: its tiers."""

    pool: BlockPool
    _tiers: "TierSet | None"
    _told: list[NDArray[Any]] | None  # events that the tiers have seen and nobody has asked for; None: nobody will

    def prefetch(self, prompts: Prompts, *, namespace: Border = None, keys: Keys = None) -> "Prefetch":
        """Begin to load what the tiers have of these prompts behind what is cached; `admit` finds it afterwards.

        Loads run on other threads, into blocks that nobody else sees until all of their bytes were verified. As
        for `admit`, at least one token of a prompt is left to compute. Without tiers there is nothing to do.

        Parameters
        ----------
        prompts, namespace, keys
            As in `admit`.

        Returns
        -------
        Prefetch
            To wait for, or to cancel.

        Examples
        --------
        >>> import numpy as np
        >>> from pagedcache import CacheSpec, KVCache
        >>> from pagedcache.tiers import HostTier
        >>> spec = CacheSpec(layers=1, kv_heads=2, head_dim=8, block_size=4, fingerprint=b"a model")
        >>> cache = KVCache(spec, num_blocks=2, tiers=[HostTier("1 MiB")])
        >>> def computed(prompt):
        ...     admission = cache.admit([prompt])
        ...     count = len(prompt) - int(admission.cached[0])
        ...     step = cache.extend(admission.ids, [count])
        ...     kv = np.ones((count, 2, 8), np.float32)
        ...     _ = cache.attend(0, kv, kv, kv, step)
        ...     _ = cache.commit(step, prompt[-count:])
        ...     _ = cache.release(admission.ids)
        ...     return count
        >>> first, second = [3, 1, 4, 1, 5], [2, 7, 1, 8, 2]
        >>> computed(first), computed(second)
        (5, 5)
        >>> cache.prefetch([first]).wait()
        True
        >>> computed(first)
        1
        """
        from pagedcache._prefetch import Prefetch, PromptLoad

        told = Prefetch()
        with self._open():
            if self._tiers is None:
                return told
            self.sequences.match(prompts, namespace=namespace, keys=keys)  # raises what is wrong with them
            border = Namespace.of(namespace)
            for number, prompt in enumerate(prompts):
                tokens = np.array(prompt, np.int32)
                load = PromptLoad(self, self._tiers, told, tokens, border, None if keys is None else keys[number])
                told._jobs.append(self._tiers.loaders.submit(load.run))
        return told

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what is published so far is in the tiers that write through, as durably as they promise.

        False where that took longer than `timeout` seconds.
        """
        with self._open():
            self._settle()
            writers = [] if self._tiers is None else self._tiers.writers
        return all(writer.flush(timeout) for writer in writers)

    def tier_stats(self) -> dict[str, Any]:
        """`TierStats` of each tier, by its name."""
        with self._open():
            return {} if self._tiers is None else {tier.name: tier.stats() for tier in self._tiers.tiers}

    # -- what the prefix cache stores and loses -----------------------------------------------------

    def _settle(self) -> None:
        """Tell the tiers what was published and evicted, before bytes of an evicted block are overwritten."""
        if self._tiers is not None and self.sequences.has_events:
            self._see(self.sequences.events())

    def _see(self, events: NDArray[Any]) -> None:
        assert self._tiers is not None
        self._tiers.see(events)
        if self._told is not None:
            self._told.append(events)

    def events(self, *, anew: bool = False) -> NDArray[Any]:
        """What was stored and removed since the last call; see `SequenceTable.events`."""
        with self._open():
            if self._tiers is None:
                return super().events(anew=anew)
            if self._told is None:
                raise ValueError("the cache records no events: make it with events='digests' or events='tokens'")
            if anew or sum(map(len, self._told)) > 2 * self.pool.num_blocks:
                self._told.clear()
            self._see(self.sequences.events(anew=anew))
            told, self._told = np.concatenate(self._told), []
            return told

    def reset(self) -> int:
        """Forget the whole prefix cache, pins included, and these blocks in the tiers; see `SequenceTable.reset`.

        What else the tiers hold stays: they tell models apart by the spec's fingerprint.
        """
        with self._open():
            self._settle()
            forgotten = super().reset()
            self._withdraw()
            return forgotten

    def invalidate(self, *, namespace: Border) -> int:
        """Forget what a namespace has published, in the tiers too; see `SequenceTable.invalidate`.

        What tiers hold of the namespace and the pool no longer does stays: where that matters, give the namespace
        another secret, with which none of it is found.
        """
        with self._open():
            self._settle()
            forgotten = super().invalidate(namespace=namespace)
            self._withdraw()
            return forgotten

    def _withdraw(self) -> None:
        if self._tiers is not None:
            events = self.sequences.events()
            self._tiers.forget(events)
            if self._told is not None:
                self._told.append(events)
