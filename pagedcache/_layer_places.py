"""Which layer of a cache is where: in which group, and at which place of it; or whose K and V it reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pagedcache._layer_group import LayerGroup
from pagedcache._sizes import integer

if TYPE_CHECKING:
    from pagedcache.spec import CacheSpec

__all__ = ["LayerPlaces", "StatePlace", "ordered", "pairs_of", "plane_layers", "state_place"]


def ordered(groups: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Return the groups, or raise where one with K and V comes after a state."""
    given = tuple(groups)
    states = [group.kind == "state" for group in given]
    if states and (states[0] or states != sorted(states)):
        first = states.index(True)
        raise ValueError(
            f"group {first}, {given[first].name!r}, is of kind 'state'; such groups come after all those with K and V, "
            "of which there is one at least"
        )
    return given


def pairs_of(shared: Mapping[int, int] | Iterable[tuple[int, int]], layers: int) -> tuple[tuple[int, int], ...]:
    """Return (layer, layer whose K and V it reads) in ascending order, or raise what is wrong with a pair."""
    given = list(shared.items() if isinstance(shared, Mapping) else shared)
    pairs = [(_number(layer, layers), _number(source, layers)) for layer, source in given]
    sources = dict(pairs)
    if len(sources) < len(pairs):
        raise ValueError(f"shared_layers names a layer twice: {given}")
    for layer, source in pairs:
        if source in sources:
            raise ValueError(
                f"shared_layers says that layer {layer} reads K and V of layer {source}, which has none of its own: "
                "name the layer that stores them"
            )
    return tuple(sorted(sources.items()))


def _number(layer: int, layers: int) -> int:
    return integer("a layer of shared_layers", layer, minimum=0, maximum=layers - 1)


class LayerPlaces:
    """Base of CacheSpec: its groups, and where in them each layer is."""

    layers: int
    groups: tuple[LayerGroup, ...]
    shared_layers: tuple[tuple[int, int], ...]

    @property
    def num_groups(self) -> int:
        """How many layer groups there are."""
        return len(self.groups)

    @property
    def kv_groups(self) -> tuple[LayerGroup, ...]:
        """The groups with K and V, which come first."""
        return tuple(group for group in self.groups if group.kind != "state")

    @property
    def state_groups(self) -> tuple[LayerGroup, ...]:
        """The groups with states instead."""
        return self.groups[len(self.kv_groups) :]

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """The layers with K and V of their own, in the order of groups and planes."""
        readers, stored = dict(self.shared_layers), len(self.kv_groups)
        return tuple(n for n, (group, _) in enumerate(self._places) if group < stored and n not in readers)

    @property
    def planes(self) -> int:
        """Layers of the largest group with K and V: how many K and V arrays there are."""
        return max(group.layers for group in self.kv_groups)

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        """Of each layer: they are numbered group by group, those left out that share."""
        own = iter([(number, index) for number, group in enumerate(self.groups) for index in range(group.layers)])
        readers = dict(self.shared_layers)
        places = {layer: next(own) for layer in range(self.layers) if layer not in readers}
        return tuple(places[readers.get(layer, layer)] for layer in range(self.layers))

    def place(self, layer: int) -> tuple[int, int]:
        """Return the group of a layer and its index there; of a layer that shares K and V, those of the other."""
        if integer("layer", layer, minimum=0) >= self.layers:
            raise ValueError(f"layer {layer} is out of range; the cache has layers 0 to {self.layers - 1}")
        return self._places[layer]

    def locate(self, layer: int) -> tuple[int, int]:
        """Return the group and the plane (the index within the group) of a layer with K and V.

        >>> from pagedcache import CacheSpec
        >>> CacheSpec(5, 1, 64, groups=[LayerGroup(3), LayerGroup(2)]).locate(4)
        (1, 1)
        """
        group, plane = self.place(layer)
        if self.groups[group].kind == "state":
            raise ValueError(f"layer {layer} is of group {self.groups[group].name!r}: it has a state, no K and V")
        return group, plane


def plane_layers(spec: "CacheSpec") -> list[int]:
    """Return a layer for each plane, whose records are together all that a block has, whichever group it is of."""
    sizes = [group.layers for group in spec.kv_groups]
    largest = sizes.index(max(sizes))
    return [layer for layer in spec.kv_layers if spec.locate(layer)[0] == largest]


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where a layer's state is, in the blocks that hold a sequence's states of one group.

    A block is a row of records, one in each plane. The state takes whole records: record r is in plane ``r % planes``
    of block ``r // planes``.
    """

    group: int  # among the state groups
    first: int  # record
    records: int
    nbytes: int  # of the state; what is left of the last record is padding


def state_place(spec: "CacheSpec", layer: int) -> StatePlace:
    """Return where the state of a layer is, or raise that it has none."""
    number, index = spec.place(layer)
    group = spec.groups[number]
    if group.kind != "state":
        raise ValueError(f"layer {layer} is of group {group.name!r}, of kind {group.kind!r}: it has K and V, no state")
    records = spec.state_records(group)
    return StatePlace(number - len(spec.kv_groups), index * records, records, group.state_nbytes)
