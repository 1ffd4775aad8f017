"""A step as kernels go through it: the plan's lists and the step's arrays in one piece of device memory."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends._step_like import StepLike
from pagedcache.backends.cuda._launcher import Array, Launcher
from pagedcache.backends.cuda._plan import Plan, make_plan
from pagedcache.backends.host import batch
from pagedcache.backends.host.rule import Rule
from pagedcache.spec import CacheSpec

__all__ = ["ENDLESS", "LISTS", "Schedule", "Slots", "make_schedule", "pack", "places", "plan_of", "schedule_in"]

ENDLESS = 1 << 62  # a window that shows everything
LISTS = ("few", "many64", "many128", "merges")
NO_PREFIXES = np.empty((0, 3), np.int32)


@dataclass(frozen=True)
class Schedule:
    """Lists and arrays of a step on the device, and room for its partial results.

    What the addresses point to stays as it is while this object lives.
    """

    memory: Array
    partial: Array  # float32: sums [parts * 16 * kv_heads, v_head_dim], then weights [.., 2]
    counts: dict[str, int | None]  # entries of each list; None: only the device knows
    lists: dict[str, tuple[int, int]]  # addresses of each list's count and of the list itself
    fields: dict[str, int]  # of the struct of attend, the same for all launches
    lock: Any = field(default_factory=threading.Lock, compare=False)  # held while a call uses `partial`


@dataclass(frozen=True)
class Slots:
    """Where new tokens are stored."""

    array: Array  # int64 [count]; below 0: nowhere
    count: int


def make_schedule(
    launcher: Launcher, spec: CacheSpec, num_blocks: int, step: StepLike, group: int, q_heads: int, tokens: int,
    rule: Rule, mask: Any, mask_indptr: Any,
) -> Schedule:  # fmt: skip
    """Plan a step and bring it to the device; raise what is wrong with the step.

    Parameters
    ----------
    group : int
        The layer group whose tables count.
    mask, mask_indptr
        As attend has them, or both None.
    """
    plan, pieces = plan_of(spec, num_blocks, step, group, q_heads, tokens, rule, mask, mask_indptr)
    if plan.plain and step.shared_prefixes is None:
        del pieces["positions"]  # the kernels know them
    begins, end = places({name: array.nbytes for name, array in pieces.items()})
    rows = _roomy(plan.parts) * 16 * spec.kv_heads
    memory, partial = (
        launcher.upload(pack(pieces, begins, end)),
        launcher.empty((rows * (spec.v_head_dim + 2),), np.float32),
    )
    counts: dict[str, int | None] = {name: len(pieces[name]) for name in LISTS}
    return schedule_in(launcher, memory, partial, begins, counts, rows * spec.v_head_dim, pieces["tables"].shape[1])


def schedule_in(
    launcher: Launcher, memory: Array, partial: Array, begins: dict[str, int], counts: dict[str, int | None],
    weights: int, table_width: int,
) -> Schedule:  # fmt: skip
    """Return the schedule whose pieces begin in `memory` where `begins` says, and weights in `partial` at `weights`."""
    base, work = launcher.address(memory), launcher.address(partial)
    lists = {name: (base + 4 * i, base + begins[name]) for i, name in enumerate(LISTS)}
    arrays = ("tables", "positions", "mask", "mask_indptr")
    fields: dict[str, int] = {name: base + begins[name] for name in arrays if name in begins}
    fields |= {"table_width": table_width, "part_out": work, "part_weight": work + 4 * weights}
    return Schedule(memory, partial, counts, lists, fields)


def plan_of(
    spec: CacheSpec, num_blocks: int, step: Any, group: int, q_heads: int, tokens: int, rule: Rule, mask: Any,
    mask_indptr: Any,
) -> tuple[Plan, dict[str, npt.NDArray[Any]]]:  # fmt: skip
    """Return the plan of a step, and the arrays of it that kernels read; raise what is wrong with the step."""
    own = step.groups[group] if group else step
    masks = batch.trees(mask, mask_indptr, step.qo_indptr) if mask is not None or mask_indptr is not None else None
    indptr = None if masks is None else np.ascontiguousarray(mask_indptr, np.int64)
    plan = None
    if _are_usual(step, own, spec, tokens):
        plan = make_plan(
            step.qo_indptr,
            step.kv_lens,
            own.kv_starts,
            step.kv_pads,
            step.positions,
            own.block_tables,
            indptr,
            _prefixes(spec, num_blocks, step, group, tokens, rule, masks),
            window=ENDLESS if rule.window is None else rule.window,
            sink_tokens=rule.sink_tokens,
            group=q_heads // spec.kv_heads,
            block_size=spec.block_size,
            num_blocks=num_blocks,
            tensor=spec.dtype != "float32",
            widest=128 if max(spec.head_dim, spec.v_head_dim) <= 128 else 64,
        )
    if plan is None:  # something is odd about the arrays; these say what is wrong, if anything is
        sights = _sights(spec, num_blocks, step, group, tokens, rule, masks)
        batch.shared_prefixes(step, sights, spec.block_size)
        if isinstance(step, _PlainStep):
            raise ValueError("the arrays of the step contradict each other, or a sequence is longer than 2**30 tokens")
        plain = _PlainStep.of(step, own)
        return plan_of(spec, num_blocks, plain, 0, q_heads, tokens, rule, mask, mask_indptr)
    pieces: dict[str, npt.NDArray[Any]] = {name: getattr(plan, name) for name in LISTS}
    counts = np.array([len(pieces[name]) for name in LISTS], np.int32)
    pieces = {"count": counts, **pieces, "tables": own.block_tables, "positions": step.positions}
    if mask is not None:
        pieces["mask_indptr"], pieces["mask"] = indptr, np.asarray(mask)  # type: ignore[assignment]
    return plan, pieces


def pack(pieces: dict[str, npt.NDArray[Any]], begins: dict[str, int], size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes that hold each piece where it begins."""
    packed = np.empty(max(size, 16), np.uint8)
    for name, array in pieces.items():
        compact = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        packed[begins[name] : begins[name] + compact.size] = compact
    return packed


def places(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return where pieces of so many bytes begin, each at a multiple of 16, and where the last one ends."""
    begins, end = {}, 0
    for name, size in sizes.items():
        begins[name] = end
        end += -(-size // 16) * 16
    return begins, end


def _roomy(count: int) -> int:
    """Return at least as many, in few enough steps that the room of one step of decoding serves the next ones too.

    >>> [_roomy(count) for count in (0, 7, 1000, 1001, 1025)]
    [0, 7, 1024, 1024, 1152]
    """
    unit = 1 << max(0, count.bit_length() - 4)
    return -(-count // unit) * unit


def _are_usual(step: Any, own: Any, spec: CacheSpec, tokens: int) -> bool:
    """Whether the step's arrays have the dtypes and shapes of a Step of the core."""
    kinds: list[tuple[Any, Any, int]] = [
        (step.qo_indptr, np.int32, 1),
        (step.kv_lens, np.int32, 1),
        (step.kv_pads, np.int32, 1),
    ]
    kinds += [(own.kv_starts, np.int32, 1), (step.positions, np.int64, 1), (own.block_tables, np.int32, 2)]
    return (
        step.block_size == spec.block_size
        and all(isinstance(a, np.ndarray) and a.dtype == dtype and a.ndim == ndim for a, dtype, ndim in kinds)
        and all(a.strides[-1] == a.itemsize or not a.size for a, _, _ in kinds)
        and len(step.positions) == tokens
        and len(step.qo_indptr) > 0
    )


def _sights(
    spec: CacheSpec, num_blocks: int, step: StepLike, group: int, tokens: int, rule: Rule, masks: Any
) -> list[Any]:
    every = [None] * len(step.kv_lens) if masks is None else masks
    return batch.sequences(step, group, spec.block_size, num_blocks, tokens, rule, every)


def _prefixes(
    spec: CacheSpec, num_blocks: int, step: StepLike, group: int, tokens: int, rule: Rule, masks: Any
) -> npt.NDArray[np.int32]:
    """Return the prefixes that neighbours share, as the plan takes them."""
    if step.shared_prefixes is None:
        return NO_PREFIXES
    sights = _sights(spec, num_blocks, step, group, tokens, rule, masks)
    shared = batch.shared_prefixes(step, sights, spec.block_size)
    return np.array([(m.start, len(m), keys) for m, keys in shared], np.int32).reshape(-1, 3)


@dataclass(frozen=True)
class _PlainStep:
    """A step whose arrays are as the core would make them."""

    block_size: int
    qo_indptr: npt.NDArray[np.int32]
    kv_lens: npt.NDArray[np.int32]
    kv_pads: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    kv_starts: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    shared_prefixes: Any

    @property
    def groups(self) -> list["_PlainStep"]:
        return [self]

    @classmethod
    def of(cls, step: Any, group: Any) -> "_PlainStep":
        """Return the arrays of a step of lists or other dtypes, which were checked, and of one of its layer groups."""
        return cls(
            block_size=step.block_size,
            qo_indptr=np.ascontiguousarray(step.qo_indptr, np.int32),
            kv_lens=np.ascontiguousarray(step.kv_lens, np.int32),
            kv_pads=np.ascontiguousarray(step.kv_pads, np.int32),
            positions=np.ascontiguousarray(step.positions, np.int64),
            kv_starts=np.ascontiguousarray(group.kv_starts, np.int32),
            block_tables=np.ascontiguousarray(group.block_tables, np.int32),
            shared_prefixes=step.shared_prefixes,
        )
