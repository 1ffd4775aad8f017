"""The pool's arrays, and where they are for C."""

from pagedcache.backends.cpu._native import Layer
from pagedcache.backends.host import HostStorage

__all__ = ["CpuStorage"]


class CpuStorage(HostStorage):
    """A HostStorage whose planes C knows by address."""

    places: tuple[Layer, ...] = ()  # one per layer; none once closed

    def _changed(self) -> None:
        planes = [Layer(self.spec, self.num_blocks, arrays) for arrays in self._planes]
        self.places = tuple(planes[self.spec.locate(layer)[1]] for layer in range(self.spec.layers)) if planes else ()

    def place(self, layer: int) -> Layer:
        """Where K and V of a layer are; CacheClosed after close()."""
        if type(layer) is int and 0 <= layer < len(self.places):
            return self.places[layer]
        index = self.spec.locate(layer)[1]
        _ = self.planes[index]
        return self.places[layer]
