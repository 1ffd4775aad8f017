"""One call of write or attend: all of its arguments, checked before anything is launched."""

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda._geometry import Geometry, division
from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda._launcher import Array, Launcher
from pagedcache.backends.cuda._params import ATTEND, GIVEN, STORE
from pagedcache.backends.cuda._schedule import ENDLESS, Schedule, make_schedule
from pagedcache.backends.cuda._workspace import Workspace
from pagedcache.backends.host.arguments import slots
from pagedcache.backends.host.queries import shape_of_q
from pagedcache.backends.host.rule import Rule, chosen_precision, make_rule
from pagedcache.backends.protocol import StepLike
from pagedcache.core.step import Step
from pagedcache.spec import CacheSpec

__all__ = ["AttendCall", "WriteCall", "checked_attend", "checked_write", "precision_of"]

FLOAT32 = np.dtype(np.float32)
Struct: TypeAlias = "np.ndarray[Any, np.dtype[np.void]]"  # of no axes
LOG2_E = np.float32(np.log2(np.e))
RESIDENT = 4  # blocks for each multiprocessor at most; each does every grid-th piece of work
PAIR = 4  # bytes: kernels write two results of 16 bits at once
SMALLEST = 1e-30  # a scale below counts as 0: its products with scores would not be normal numbers


def precision_of(dtype: str) -> str:
    """What attend offers for this storage type: tensor cores take q and weights as they take K and V."""
    return "exact" if dtype == "float32" else "native"


@dataclass
class WriteCall:
    """What write goes by."""

    launcher: Launcher
    kernel: Kernel
    params: Struct
    keep: tuple[Array, ...]  # what the addresses point to
    tokens: int

    def run(self) -> None:
        """Store."""
        if self.tokens:
            heads = self.tokens * int(self.params["kv_heads"])
            self.launcher.launch(self.kernel, min(-(-heads // 4), 32 * self.launcher.multiprocessors), self.params)


def checked_write(launcher: Launcher, storage: Any, layer: int, k: Any, v: Any, at: Any) -> WriteCall:
    """Return the call, or raise what is wrong with its arguments."""
    spec = storage.spec
    planes = launcher.planes(storage)[spec.locate(layer)[1]]
    if isinstance(at, Workspace):
        on_device, count = at.slots, at.max_tokens
    else:
        where = np.ascontiguousarray(slots("slots", at, storage.num_blocks, spec.block_size, distinct=False))
        on_device, count = None, where.size
    arrays = []
    for name, values, width in zip("kv", (k, v), (spec.head_dim, spec.v_head_dim), strict=True):
        array = launcher.numbers(name, values, spec.dtype)
        if array.shape != (count, spec.kv_heads, width):
            raise ValueError(f"{name} has shape {array.shape}; it must be {(count, spec.kv_heads, width)}")
        if spec.has_scales:
            launcher.refuse_infinite(name, array)
        arrays.append(array)
    params = np.zeros((), STORE)
    _point(launcher, params, zip(("k_pool", "v_pool", "k_scales", "v_scales"), planes, strict=False))
    if on_device is None:
        on_device = launcher.upload(where)
    _point(launcher, params, [("k", arrays[0]), ("v", arrays[1]), ("slots", on_device)])
    Geometry.of(spec).fill(params)
    params["tokens"] = count
    params["k_given"], params["v_given"] = (GIVEN[array.dtype] for array in arrays)
    return WriteCall(launcher, _kernels.store(spec.dtype), params, (*arrays, on_device, *planes), count)


@dataclass
class AttendCall:
    """What attend goes by; see CudaBackend.attend for the arguments that it is made of."""

    launcher: Launcher
    schedule: Schedule
    kernels: dict[str, Kernel]  # of each list of the schedule
    params: Struct
    keep: tuple[Array, ...]  # what the addresses point to
    out: Array  # [tokens, q_heads, v_head_dim], the caller's or new
    lse: Array | None  # [tokens, q_heads]

    def run(self) -> Array:
        """Fill `out` and `lse`; where kernels cannot write there, by way of arrays where they can."""
        with self.schedule.lock:  # one call at a time has the room for partial results
            return self._run()

    def _run(self) -> Array:
        launcher, params = self.launcher, self.params
        shape, q = self.out.shape, self.keep[0]
        plain = self.out
        given = GIVEN.get(launcher.bits(plain).dtype)
        if given is None or launcher.address(plain) % PAIR or not launcher.is_writable_by_kernels(plain, q):
            plain, given = launcher.empty(shape, FLOAT32), GIVEN[FLOAT32]
        lse = self.lse
        if lse is not None and not launcher.is_writable_by_kernels(lse, q):
            lse = launcher.empty(shape[:2], FLOAT32)
        params["out"], params["out_given"] = launcher.address(plain), given
        params["lse"] = 0 if lse is None else launcher.address(lse)
        most = RESIDENT * launcher.multiprocessors
        for name, count in self.schedule.counts.items():
            if count != 0 and name in self.kernels:
                params["count"], address = self.schedule.lists[name]
                params["merges" if name == "merges" else "items"] = address
                grid = most if count is None else min(count * int(params["kv_heads"]), most)
                launcher.launch(self.kernels[name], grid, params)
        if plain is not self.out:
            launcher.put(self.out, plain)
        if self.lse is not None and lse is not self.lse:
            self.lse[...] = lse
        return self.out


def checked_attend(
    backend: str, launcher: Launcher, storage: Any, layer: int, q: Any, step: StepLike, *, mask: Any = None,
    mask_indptr: Any = None, precision: Any = None, out: Any = None, lse: Any = None, sink_logits: Any = None,
    alibi_slopes: Any = None, **variants: Any,
) -> AttendCall:  # fmt: skip
    """Return the call, or raise what is wrong with its arguments; nothing was written."""
    spec = storage.spec
    group, plane = spec.locate(layer)
    planes = launcher.planes(storage)[plane]
    queries = launcher.numbers("q", q, spec.dtype)
    tokens, q_heads, _ = shape_of_q(queries, spec)
    chosen_precision(backend, precision, [precision_of(spec.dtype)])
    rule = make_rule(
        q_heads, spec.head_dim, sink_logits=None if sink_logits is None else launcher.download(sink_logits),
        alibi_slopes=None if alibi_slopes is None else launcher.download(alibi_slopes), **variants,
    )  # fmt: skip
    if mask is not None:
        mask, mask_indptr = (
            launcher.download(mask),
            mask_indptr if mask_indptr is None else launcher.download(mask_indptr),
        )
    if isinstance(step, Workspace):
        schedule = step.schedule_for(launcher, spec, storage.num_blocks, group, q_heads, tokens, rule, mask)
    else:
        schedule = _schedule(backend, launcher, storage, step, group, q_heads, tokens, rule, mask, mask_indptr)
    shape = (tokens, q_heads, spec.v_head_dim)
    out = launcher.output("out", out, shape, (launcher.dtype_of_out(q, queries), FLOAT32))
    lse = None if lse is None else launcher.output("lse", lse, shape[:2], (FLOAT32,))

    params = _template(spec).copy()
    _point(launcher, params, zip(("k", "v", "k_scales", "v_scales"), planes, strict=False))
    for name, value in schedule.fields.items():
        params[name] = value
    params["q"], params["q_given"] = launcher.address(queries), GIVEN[queries.dtype]
    params["group"] = q_heads // spec.kv_heads
    extras = _put_rule(launcher, params, rule)
    full = (
        rule.window is not None or rule.sink_tokens > 0 or rule.softcap is not None or rule.alibi_slopes is not None
        or mask is not None
    )  # fmt: skip
    aligned = all(launcher.address(array) % 16 == 0 for array in planes[:2])
    sizes = (spec.dtype, spec.head_dim, spec.v_head_dim)
    kernels = {"few": _kernels.few(*sizes, aligned=aligned, full=full), "merges": _kernels.merge()}
    if spec.dtype != "float32":
        kernels["many64"] = _kernels.many(*sizes, 64, aligned=aligned, full=full)
        kernels["many128"] = _kernels.many(*sizes, 128, aligned=aligned, full=full)
    return AttendCall(launcher, schedule, kernels, params, (queries, *planes, *extras), out, lse)


@cache
def _template(spec: CacheSpec) -> Struct:
    """Return the struct of attend with what a pool of this spec always has in it."""
    params = np.zeros((), ATTEND)
    Geometry.of(spec).fill(params)
    params["block_magic"], params["block_shift"] = division(spec.block_size)
    return params


def _schedule(
    backend: str, launcher: Launcher, storage: Any, step: Any, group: int, q_heads: int, tokens: int, rule: Rule,
    mask: Any, mask_indptr: Any,
) -> Schedule:  # fmt: skip
    """Return the schedule of a step, made once for all layers that go by the same one."""
    # Other StepLikes may be copies of a step with arrays of their own, and its memo.
    memo = step.memo if type(step) is Step else None
    key: tuple[Any, ...] = (
        backend,
        launcher,
        group,
        q_heads,
        tokens,
        rule.window,
        rule.sink_tokens,
        storage.num_blocks,
        storage.spec,
    )
    if memo is not None and (mask is not None or mask_indptr is not None):
        key += tuple(None if each is None else np.asarray(each).tobytes() for each in (mask, mask_indptr))
    if memo is not None and key in memo:
        found: Schedule = memo[key]
        return found
    made = make_schedule(
        launcher, storage.spec, storage.num_blocks, step, group, q_heads, tokens, rule, mask, mask_indptr
    )
    if memo is not None:
        memo[key] = made
    return made


def _put_rule(launcher: Launcher, params: Struct, rule: Rule) -> list[Array]:
    """Write the rule into a struct of attend; return arrays that it points to."""
    scale = np.float32(rule.scale)
    params["sign"] = 0 if abs(scale) < SMALLEST else np.sign(scale)
    params["scale"] = LOG2_E * abs(scale) if params["sign"] else 1
    params["window"] = ENDLESS if rule.window is None else rule.window
    params["sink_tokens"] = rule.sink_tokens
    if rule.softcap is not None:
        params["softcap"] = np.float32(rule.softcap) * LOG2_E
        params["inverse_softcap"] = 1 / params["softcap"]
    extras = []
    for name, values in (("sink_logits", rule.sink_logits), ("alibi_slopes", rule.alibi_slopes)):
        if values is not None:
            extras.append(launcher.constant(values * LOG2_E))
            params[name] = launcher.address(extras[-1])
    return extras


def _point(launcher: Launcher, params: Struct, pairs: Any) -> None:
    for name, array in pairs:
        params[name] = launcher.address(array)
