"""The verbs of KVCache about loads that a step overtakes; see `pagedcache._layer_load`."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._bookkeeping import Border, Keys, Prompts
from pagedcache._stepping import Stepping
from pagedcache.digests import prompt_digests
from pagedcache.errors import StepOpen

if TYPE_CHECKING:
    from pagedcache._layer_load import LayerLoad, Part
    from pagedcache._tier_set import TierSet

__all__ = ["Loading"]


class Loading(Stepping):
    """Base of KVCache: steps whose K/V come from tiers."""

    def begin_load(
        self, ids: ArrayLike, prompts: Prompts, *, namespace: Border = None, keys: Keys = None
    ) -> "LayerLoad | None":
        """Open a step for what the tiers have of these sequences' prompts, and begin to fill it, layer by layer.

        For the first step after `admit`, if the tiers are fast: the step that is opened next, for the rest of the
        prompts, is computed while later layers are still coming. Its `attend` waits for each layer, and its `commit`
        commits the load first. Where a load fails they raise LoadFailed: abandon that step, then `cancel_load`.

        Parameters
        ----------
        ids : int64 [n]
            Sequences as `admit` has returned them.
        prompts : sequence of int array-like [n]
            Their prompts, of which at least one token is left to compute.
        namespace, keys
            As in `admit`.

        Returns
        -------
        LayerLoad or None
            Its ``counts`` say how many tokens of each sequence are loaded; None where the tiers have nothing.

        Raises
        ------
        ValueError
            The cache was made with ``steps_in_flight=1``: the load is a step of its own.
        StepOpen
            One of these sequences is in an open step.
        OutOfBlocks, StepBusy
            As for `extend`.
        """
        from pagedcache._layer_load import LayerLoad, complete

        with self._open():
            tiers = self._tiers
            if tiers is None:
                return None
            if self.sequences.steps_in_flight < 2:
                raise ValueError("a load is a step of its own beside the one that computes: give steps_in_flight=2")
            self.sequences.match(prompts, namespace=namespace, keys=keys)  # raises what is wrong with them
            handles = np.asarray(ids, np.int64)
            told = [np.asarray(prompt, np.int32) for prompt in prompts]
            positions = [self.sequences.position(handle) for handle in handles.tolist()]
            stops, parts = list(positions), list["Part"]()
            try:
                for i, prompt in enumerate(told):
                    row = sum(stop > position for stop, position in zip(stops[:i], positions, strict=False))
                    if self.sequences.length(int(handles[i])) < positions[i]:
                        continue  # left pads: its blocks begin where no stored ones do
                    about = {"namespace": namespace, "keys": None if keys is None else keys[i]}
                    stops[i], held = self._held(tiers, row, prompt, positions[i], about)
                    parts += held
                counts = np.subtract(stops, positions).astype(np.int32)
                if not counts.any():
                    return None
                step = self.extend(handles[counts > 0], counts[counts > 0])
                if (step.kv_lens != np.array(stops)[counts > 0]).any():
                    self.abandon(step)
                    raise StepOpen("a sequence is in an open step already: begin_load is for the first after admit")
            except BaseException:
                complete(parts)
                raise
            tokens = [prompt[position:stop] for prompt, position, stop in zip(told, positions, stops, strict=True)]
            load = LayerLoad(step, counts, np.concatenate(tokens), parts, self.spec.layers)
            self._layer_loads.append(load)
            if tiers.start(load.run, tiers.records, tiers.form.record_nbytes, lambda: self._lock) is None:
                load.let_go()
            return load

    def _held(
        self, tiers: "TierSet", row: int, prompt: NDArray[np.int32], position: int, about: dict[str, Any]
    ) -> "tuple[int, list[Part]]":
        """Have the tiers hold what they have of a prompt behind a position; where that ends, and the parts."""
        from pagedcache._layer_load import held_ready

        size, first = self.spec.block_size, position // self.spec.block_size
        whole = prompt[: max(0, len(prompt) - 1) // size * size]
        if len(whole) <= position:
            return position, []
        digests = prompt_digests(whole, size, fingerprint=self.spec.fingerprint or b"", **about)
        held = held_ready(tiers, row, digests, first)
        return max(position, (first + sum(part.load.count for part in held)) * size), held

    def cancel_load(self, load: "LayerLoad") -> None:
        """Undo `begin_load`: the sequences are as before. Steps behind it have to be abandoned first."""
        self.abandon(load.step)
