"""Room on the device for the schedules of steps, at addresses that stay: what a CUDA graph needs."""

from typing import Any

import numpy as np

from pagedcache.backends.cuda._launcher import Launcher
from pagedcache.backends.cuda._schedule import LISTS, Schedule, Slots, pack, places, plan_of, schedule_in
from pagedcache.backends.host.arguments import slots
from pagedcache.backends.host.rule import Rule
from pagedcache.backends.protocol import StepLike
from pagedcache.spec import CacheSpec

__all__ = ["Workspace", "most_spans"]


class Workspace:
    """Takes the place of a step in ``attend`` and ``write_and_attend``: of the step that it was last given to plan.

    All launches of such a call are the same whatever the step, and all of a step that they read is in memory that was
    allocated once. So the calls can be captured in a CUDA graph, which is replayed after each `plan`. q, k, v and out
    have `max_tokens` rows; those behind the tokens of the step are neither read nor written.

    Parameters
    ----------
    launcher, storage
        Of the backend; make it with ``backend.workspace``.
    q_heads : int
    max_sequences, max_tokens, max_length : int
        Of a step: sequences, new tokens of all of them, and tokens of the longest one, the new ones included.
    group : int
        The layer group that it is for.
    window : int, optional
    sink_tokens : int
        As attend is given them.

    Attributes
    ----------
    slots : Slots
        Where the step's new tokens are stored, on the device.
    nbytes : int
        Device memory taken, most of it for partial results: ``64 * kv_heads * (v_head_dim + 2)`` bytes for each span
        (of 128 to 1024 keys) of each sequence; four and eight times that for sequences that can have more than 16
        and 64 query rows, which `max_tokens` bounds.

    Notes
    -----
    Masks (speculation trees) and shared prefixes are not for workspaces: what they need has no bound that would be
    worth keeping memory for.
    """

    def __init__(
        self, launcher: Launcher, storage: Any, q_heads: int, *, max_sequences: int, max_tokens: int, max_length: int,
        group: int = 0, window: int | None = None, sink_tokens: int = 0,
    ) -> None:  # fmt: skip
        spec: CacheSpec = storage.spec
        for name, value in (("max_sequences", max_sequences), ("max_tokens", max_tokens), ("max_length", max_length)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if q_heads < 1 or q_heads % spec.kv_heads:
            raise ValueError(f"q_heads is {q_heads}; it must be a multiple of the cache's kv_heads={spec.kv_heads}")
        self.max_sequences, self.max_tokens, self.max_length = max_sequences, max_tokens, max_length
        self._launcher, self._spec, self._num_blocks = launcher, spec, storage.num_blocks
        self._group, self._q_heads = group, q_heads
        self._rule = Rule(1.0, window=window, sink_tokens=sink_tokens)
        self._width = -(-max_length // spec.block_size)
        most, parts = self._bounds()
        rows = parts * 16 * spec.kv_heads
        sizes = {"count": 16} | {name: 40 * count for name, count in most.items()}
        sizes |= {"tables": 4 * max_sequences * self._width, "positions": 8 * max_tokens, "slots": 8 * max_tokens}
        self._begins, self._size = places(sizes)
        memory = launcher.upload(np.zeros(self._size, np.uint8))
        partial = launcher.empty((rows * (spec.v_head_dim + 2),), np.float32)
        self.nbytes = self._size + 4 * rows * (spec.v_head_dim + 2)
        self.slots = Slots(memory[self._begins["slots"] :][: 8 * max_tokens].view(np.int64), max_tokens)
        counts = {name: None if most[name] else 0 for name in LISTS}
        self._schedule = schedule_in(
            launcher, memory, partial, self._begins, counts, rows * spec.v_head_dim, self._width
        )

    def plan(self, step: StepLike) -> None:
        """Make this stand for a step, which has to be within the bounds; what was captured then computes that one.

        Raises
        ------
        ValueError
            The step is larger than this has room for, shares prefixes, or contradicts itself; nothing was changed.
        """
        tokens, length = len(step.positions), max(np.asarray(step.kv_lens).tolist(), default=0)
        for name, value, limit in (
            ("sequences", len(step.kv_lens), self.max_sequences),
            ("new tokens", tokens, self.max_tokens),
            ("tokens in its longest sequence", length, self.max_length),
        ):
            if value > limit:
                raise ValueError(f"the step has {value} {name}; the workspace was made for {limit}")
        if step.shared_prefixes is not None:
            raise ValueError("the step shares prefixes (cascade), which workspaces have no room for; extend it without")
        spec = self._spec
        own = step.groups[self._group] if self._group else step
        at = slots("slots", own.slots, self._num_blocks, spec.block_size, distinct=False)
        _, pieces = plan_of(spec, self._num_blocks, step, self._group, self._q_heads, tokens, self._rule, None, None)
        tables = np.zeros((self.max_sequences, self._width), np.int32)
        width = min(self._width, pieces["tables"].shape[1])
        tables[: len(step.kv_lens), :width] = pieces["tables"][:, :width]
        pieces["tables"] = tables
        pieces["slots"] = np.concatenate([at, np.full(self.max_tokens - at.size, -1, np.int64)])
        self._launcher.fill(self._schedule.memory, pack(pieces, self._begins, self._size))

    def schedule_for(
        self, launcher: Launcher, spec: CacheSpec, num_blocks: int, group: int, q_heads: int, tokens: int, rule: Rule
    ) -> Schedule:
        """Return the schedule for an attend, or raise where that is not what this was made for."""
        if launcher is not self._launcher:
            raise ValueError("the workspace is another backend's")
        asked = (spec, num_blocks, group, q_heads, tokens, rule.window, rule.sink_tokens)
        own = self._rule
        mine = (
            self._spec, self._num_blocks, self._group, self._q_heads, self.max_tokens, own.window, own.sink_tokens
        )  # fmt: skip
        names = ("spec", "num_blocks", "layer group", "query heads", "rows of q", "window", "sink_tokens")
        for name, value, limit in zip(names, asked, mine, strict=True):
            if value != limit:
                raise ValueError(f"attend has {name} {value}; the workspace was made for {limit}")
        return self._schedule

    def _bounds(self) -> tuple[dict[str, int], int]:
        """Return the most entries of each list, and the most units of 16 rows of partial results."""
        spec, n = self._spec, self.max_sequences
        rows = self.max_tokens * (self._q_heads // spec.kv_heads)
        spans = most_spans(self.max_length) + (most_spans(self._rule.sink_tokens) if self._rule.sink_tokens else 0)
        wide = self.max_length // 2048 + 2 + self._rule.sink_tokens // 2048 + 2
        tensor, narrow = spec.dtype != "float32", max(spec.head_dim, spec.v_head_dim) > 128
        tiles = {  # only so many sequences can have more than 16 or 64 rows
            "few": n + (0 if tensor else rows // 16),
            "many64": (min(n, rows // 17) + (rows // 64 if narrow else 0)) * tensor,
            "many128": (min(n, rows // 65) + rows // 128) * tensor * (not narrow),
        }
        items = {name: count * (wide if name == "many128" else spans) for name, count in tiles.items()}
        parts = items["few"] + 4 * items["many64"] + 8 * items["many128"]
        return items | {"merges": sum(tiles.values())}, parts


def most_spans(length: int) -> int:
    """Return the most spans that the keys of a sequence of up to so many tokens are cut into, 16 rows at a time.

    >>> most_spans(1024), most_spans(8192), most_spans(100_000)
    (9, 33, 99)
    """
    limits = ((1024, 128), (8192, 256), (32768, 512), (length, 1024))
    return max(-(-min(length, limit) // span) + 1 for limit, span in limits)
