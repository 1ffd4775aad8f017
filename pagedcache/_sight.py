"""What the layers of each group see: the options that a KVCache adds to `attend`."""

from dataclasses import dataclass, replace
from typing import Any

from pagedcache.spec import CacheSpec

__all__ = ["Sight", "sights_of"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Of one layer."""

    group: int
    variants: dict[str, Any]  # window and sink_tokens, for the backend
    chunk: int | None  # tokens of a chunk, in a chunked-local group
    refusal: str = ""  # why the layer cannot attend
    source: int | None = None  # the layer whose K and V it reads, where it has none of its own


def sights_of(spec: CacheSpec) -> list[Sight] | None:
    """Return what each layer sees; None where all layers are of one group of full attention, and none share."""
    if spec.num_groups == 1 and not spec.shared_layers:
        return None
    sights = []
    for number, group in enumerate(spec.groups):
        slides = group.kind == "sliding_window"
        variants = {"window": group.window, "sink_tokens": group.sink_tokens} if slides else {}
        refusal = f"is of group {group.name!r}: it has a state, and nothing to attend to" * (group.kind == "state")
        chunk = group.window if group.kind == "chunked_local" else None
        sights.append(Sight(number, variants, chunk, refusal))
    readers = dict(spec.shared_layers)
    return [replace(sights[spec.place(layer)[0]], source=readers.get(layer)) for layer in range(spec.layers)]
