"""What a backend can do, and whether that is enough for a spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedcache.errors import UnsupportedByBackend
from pagedcache.spec import CacheSpec

__all__ = ["Capabilities"]


@dataclass(frozen=True)
class Capabilities:
    """What a backend really has; asked when a cache is made, never guessed."""

    dtypes: frozenset[str]  # storage types, by their names in CacheSpec
    layouts: frozenset[str]  # "NHD", "HND"
    max_block_size: int  # tokens
    head_dims: frozenset[int] | None  # sizes of a K or V head; None: any
    variants: frozenset[str]  # of "window", "sink_tokens", "sink_logits", "softcap", "alibi", "mask", "mixed_groups"
    precisions: Mapping[str, str]  # storage type -> default `precision` of attend
    synchronous: bool  # work is done when a call returns, and fence() is 0
    max_head_dim: int | None = None  # the largest size of a K or V head; None: any
    instruction_set: str | None = None  # which of its kernels run here, where there are several

    def require(self, spec: CacheSpec) -> None:
        """Raise UnsupportedByBackend, naming what is lacking and what is there, unless all is there."""
        lacking = [f"layout {spec.layout!r} (has {_listed(self.layouts)})"] * (spec.layout not in self.layouts)
        if spec.block_size > self.max_block_size:
            lacking.append(f"block_size {spec.block_size} (has at most {self.max_block_size})")
        for group in spec.kv_groups:
            if self.max_head_dim is not None and (size := max(group.head_dim, group.v_head_dim)) > self.max_head_dim:
                lacking.append(f"head size {size} (has at most {self.max_head_dim})")
            if group.dtype not in self.dtypes:
                lacking.append(f"dtype {group.dtype!r} (has {_listed(self.dtypes)})")
            for size in {group.head_dim, group.v_head_dim} if self.head_dims is not None else ():
                if size not in self.head_dims:  # type: ignore[operator]
                    lacking.append(f"head size {size} (has {_listed(self.head_dims or ())})")
        needed = {
            "window": any(g.window is not None for g in spec.kv_groups),
            "sink_tokens": any(g.sink_tokens for g in spec.kv_groups),
            "mixed_groups": len({(g.kv_heads, g.head_dim, g.v_head_dim, g.dtype) for g in spec.kv_groups}) > 1,
        }
        for variant in sorted(name for name, wanted in needed.items() if wanted and name not in self.variants):
            lacking.append(f"{variant} (has {_listed(self.variants)})")
        if lacking:
            raise UnsupportedByBackend(f"the backend lacks {'; '.join(dict.fromkeys(lacking))}")


def _listed(items: Any) -> str:
    return ", ".join(str(item) for item in sorted(items)) or "none"
