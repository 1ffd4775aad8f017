"""The verbs of KVCache about slower tiers: what the prefix cache lacks is looked for there, what it loses is kept."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._bookkeeping import Border, Keys, Prompts
from pagedcache._states import States
from pagedcache.core import BlockPool, Step
from pagedcache.keys import Namespace

if TYPE_CHECKING:
    from pagedcache._layer_load import LayerLoad
    from pagedcache._prefetch import Prefetch
    from pagedcache._tier_set import TierSet

__all__ = ["Tiering"]

MORE_EVENTS = 4096  # as the core's log: beyond one for each block


class Tiering(States):
    """Base of KVCache: its tiers."""

    pool: BlockPool
    _tiers: "TierSet | None"
    _layer_loads: "list[LayerLoad]"  # that are steps of their own, oldest first
    _told: list[NDArray[Any]] | None  # events that the tiers have seen and nobody has asked for; None: nobody will
    _untold: int = 0  # how many they were, since somebody asked

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
                about = None if keys is None else keys[number]
                about = None if about is None else tuple(about)
                load = PromptLoad(self, self._tiers, told, tokens, border, about)
                if (job := self._tiers.start(load.run)) is not None:
                    told._jobs.append(job)
            self._tiers.told.add(told)
        return told

    def _loads_up_to(self, step: Step) -> "list[LayerLoad]":
        """Loads that are this step, or older ones, which it may attend to; the oldest first."""
        opened = self.sequences.open_steps
        before = opened[: opened.index(step) + 1] if step in opened else ()
        return [load for load in tuple(self._layer_loads) if load.step in before]

    def _await_layer(self, layer: int, step: Step) -> None:
        """Wait until a layer of these loads is there; not under the lock, which a load may need."""
        for load in self._loads_up_to(step):
            load.await_layer(layer)

    def _commit_loads(self, step: Step) -> None:
        """Commit the loads that were opened before a step, once all of their bytes are there."""
        for load in self._loads_up_to(step):
            load.await_layer(self.spec.layers - 1)
            with self._open():
                if load not in self._layer_loads:
                    continue  # another thread was faster
                if load.step is not step:
                    self._cover()
                    self.sequences.commit(load.step, load.tokens)
                self._layer_loads.remove(load)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what is published so far is in the tiers that write through, as durably as they promise.

        False where that took longer than `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._open():
            self._settle()
            writers = [] if self._tiers is None else self._tiers.writers
        return all(writer.flush(None if end is None else max(0.0, end - time.monotonic())) for writer in writers)

    @property
    def has_tiers(self) -> bool:
        """Whether there is anything for `prefetch` to ask."""
        return self._tiers is not None

    def tier_stats(self) -> dict[str, Any]:
        """`TierStats` of each tier, by its name; of a further one of that name, by ``"disk 2"`` and so on.

        Among ``more`` are blocks that did not get there: ``"evicted"`` before their turn came, and ``"failed"``, which
        the tier failed to store.
        """
        with self._open():
            return {} if self._tiers is None else self._tiers.stats()

    def _lose_tiers(self) -> None:
        """In a forked child: threads and files are the parent's. Blocks of loads come back; nobody fills them."""
        tiers, self._tiers = self._tiers, None
        for load in () if tiers is None else tiers.under_way:
            self.pool.decref(load.blocks)
            if load.hold:
                self.sequences.let_go(load.hold)
        for told in () if tiers is None else tuple(tiers.told):
            told._jobs.clear()
        for layer_load in self._layer_loads:
            layer_load.lose()

    # -- what the prefix cache stores and loses -----------------------------------------------------

    def _settle(self) -> None:
        """Tell the tiers what was published and evicted, before bytes of an evicted block are overwritten."""
        if self._tiers is not None and self.sequences.has_events:
            self._see(self.sequences.events())

    def _see(self, events: NDArray[Any]) -> None:
        assert self._tiers is not None
        self._tell(events)
        self._tiers.see(events)

    def _tell(self, events: NDArray[Any]) -> None:
        """Keep events for whoever asks; what nobody asks for in time is told anew as what is there then."""
        if self._told is not None:
            self._told.append(events)
            self._untold += len(events)
            if self._untold > self.pool.num_blocks + MORE_EVENTS:
                self._told.clear()

    def events(self, *, anew: bool = False) -> NDArray[Any]:
        """What was stored and removed since the last call; see `SequenceTable.events`."""
        with self._open():
            if self._tiers is None and not self._untold:
                return super().events(anew=anew)
            if self._told is None:
                raise ValueError("the cache records no events: make it with events='digests' or events='tokens'")
            if anew or self._untold > self.pool.num_blocks + MORE_EVENTS:
                self._settle()
                anew = True
                self._told, self._untold = [], 0
            events = self.sequences.events(anew=anew)
            (self._tell if anew or self._tiers is None else self._see)(events)  # anew: tiers know what is there
            told = np.concatenate(self._told)
            self._told, self._untold = [], 0
            return told

    def reset(self) -> int:
        """Forget the whole prefix cache, pins included, and these blocks in the tiers; see `SequenceTable.reset`.

        What else the tiers hold stays: they tell models apart by the spec's fingerprint.
        """
        with self._open():
            self._settle()
            forgotten = self.sequences.reset()
            self._withdraw()
            return forgotten

    def invalidate(self, *, namespace: Border) -> int:
        """Forget what a namespace has published, in the tiers too; see `SequenceTable.invalidate`.

        What tiers hold of the namespace and the pool no longer does stays: where that matters, give the namespace
        another secret, with which none of it is found.
        """
        with self._open():
            self._settle()
            forgotten = self.sequences.invalidate(namespace=namespace)
            self._withdraw()
            return forgotten

    def _withdraw(self) -> None:
        if self._tiers is not None:
            events = self.sequences.events()
            self._tell(events)
            self._tiers.forget(events)
