"""What the layers of each group see: the options that a KVCache adds to `attend`."""

from dataclasses import dataclass
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


def sights_of(spec: CacheSpec) -> list[Sight] | None:
    """Return what each layer sees; None where all layers are of one group of full attention."""
    if spec.num_groups == 1:
        return None
    sights = []
    for number, group in enumerate(spec.groups):
        slides = group.kind == "sliding_window"
        variants = {"window": group.window, "sink_tokens": group.sink_tokens} if slides else {}
        refusal = f"is of group {group.name!r}: it has a state, and nothing to attend to" * (group.kind == "state")
        chunk = group.window if group.kind == "chunked_local" else None
        sights += [Sight(number, variants, chunk, refusal)] * group.layers
    return sights
