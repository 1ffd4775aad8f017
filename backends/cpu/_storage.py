"""The pool's arrays, and where they are for C."""

from pagedcache.backends.cpu._native import Layer
from pagedcache.backends.host import HostStorage

__all__ = ["CpuStorage"]


class CpuStorage(HostStorage):
    """A HostStorage whose planes C knows by address."""

    places: tuple[Layer | None, ...] = ()  # one per layer, None for those with a state; none once closed

    def _changed(self) -> None:
        planes, spec = self._planes, self.spec
        where = [spec.place(layer) for layer in range(spec.layers)] if planes else []
        self.places = tuple(
            None if spec.groups[group].kind == "state" else Layer(spec, group, self.num_blocks, planes[plane])
            for group, plane in where
        )

    def place(self, layer: int) -> Layer:
        """Where K and V of a layer are; CacheClosed after close()."""
        if type(layer) is int and 0 <= layer < len(self.places) and (place := self.places[layer]) is not None:
            return place
        index = self.spec.locate(layer)[1]
        _ = self.planes[index]
        return self.places[layer]  # type: ignore[return-value]
