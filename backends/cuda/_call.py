"""One call of write or attend: all of its arguments, checked before anything is launched."""

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda._geometry import division, put_geometry
from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda._launcher import Array, Launcher
from pagedcache.backends.cuda._params import ATTEND, GIVEN, STORE
from pagedcache.backends.cuda._schedule import ENDLESS, Schedule, Slots, make_schedule
from pagedcache.backends.cuda._workspace import Workspace
from pagedcache.backends.host.arguments import slots
from pagedcache.backends.host.queries import shape_of_q
from pagedcache.backends.host.rule import Rule, chosen_precision, make_rule
from pagedcache.backends.protocol import StepLike
from pagedcache.core.step import Step
from pagedcache.spec import CacheSpec

__all__ = ["AttendCall", "WriteCall", "checked_attend", "checked_write", "precision_of", "slots_of", "slots_of_step"]

FLOAT32 = np.dtype(np.float32)
Struct: TypeAlias = "np.ndarray[Any, np.dtype[np.void]]"  # of no axes
LOG2_E = np.float32(np.log2(np.e))
RESIDENT = 4  # blocks for each multiprocessor at most; each does every grid-th piece of work
SLICES = 16  # pieces of work that a merge of a KV head is
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

    def run(self) -> None:
        """Store."""
        if heads := int(self.params["tokens"]) * int(self.params["kv_heads"]):
            self.launcher.launch(self.kernel, min(-(-heads // 4), 32 * self.launcher.multiprocessors), self.params)


def slots_of(launcher: Launcher, storage: Any, at: Any) -> Slots:
    """Bring slots to the device, or raise what is wrong with them."""
    checked = slots("slots", at, storage.num_blocks, storage.spec.block_size, distinct=False)
    return Slots(launcher.upload(np.ascontiguousarray(checked)), checked.size)


def slots_of_step(backend: str, launcher: Launcher, storage: Any, step: Any, group: int) -> Slots:
    """Return the slots of a step's new tokens, brought to the device once for all layers of a group."""
    if isinstance(step, Workspace):
        return step.slots
    at = (step.groups[group] if group else step).slots
    memo = _memo(step)
    if memo is None:
        return slots_of(launcher, storage, at)
    key = (backend, launcher, "slots", group, storage.num_blocks, storage.spec)
    if key not in memo:
        memo[key] = slots_of(launcher, storage, at)
    found: Slots = memo[key]
    return found


def checked_write(launcher: Launcher, storage: Any, layer: int, k: Any, v: Any, at: Slots) -> WriteCall:
    """Return the call, or raise what is wrong with its arguments."""
    spec = storage.spec
    planes = launcher.planes(storage)[spec.locate(layer)[1]]
    arrays = []
    for name, values, width in zip("kv", (k, v), (spec.head_dim, spec.v_head_dim), strict=True):
        array = launcher.numbers(name, values, spec.dtype)
        if array.shape != (at.count, spec.kv_heads, width):
            raise ValueError(f"{name} has shape {array.shape}; it must be {(at.count, spec.kv_heads, width)}")
        if spec.has_scales:
            launcher.refuse_infinite(name, array)
        arrays.append(array)
    params = _store_of(spec).copy()
    _point(launcher, params, zip(("k_pool", "v_pool", "k_scales", "v_scales"), planes, strict=False))
    _point(launcher, params, [("k", arrays[0]), ("v", arrays[1]), ("slots", at.array)])
    params["tokens"] = at.count
    params["k_given"], params["v_given"] = (GIVEN[array.dtype] for array in arrays)
    return WriteCall(launcher, _kernels.store(spec.dtype), params, (*arrays, at.array, *planes))


@cache
def _store_of(spec: CacheSpec) -> Struct:
    """Return the struct of store with what a pool of this spec always has in it."""
    params = np.zeros((), STORE)
    put_geometry(params, spec)
    return params


@dataclass
class AttendCall:
    """What attend goes by; see CudaBackend.attend for the arguments that it is made of."""

    launcher: Launcher
    schedule: Schedule
    kernels: dict[str, Kernel]  # of each list of the schedule
    params: Struct
    queries: Array
    keep: tuple[Array, ...]  # what else the addresses point to
    out: Array  # [tokens, q_heads, v_head_dim], the caller's or new
    lse: Array | None  # [tokens, q_heads]

    def run(self) -> Array:
        """Fill `out` and `lse`; where kernels cannot write there, by way of arrays where they can."""
        with self.schedule.lock:  # one call at a time has the room for partial results
            return self._run()

    def _run(self) -> Array:
        launcher, params = self.launcher, self.params
        shape, q, plain = self.out.shape, self.queries, self.out
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
                works = int(params["kv_heads"]) * (SLICES if name == "merges" else 1)
                grid = most if count is None else min(count * works, most)
                launcher.launch(self.kernels[name], grid, params)
        if plain is not self.out:
            launcher.put(self.out, plain)
        if self.lse is not None and lse is not self.lse:
            self.lse[...] = lse
        return self.out


def checked_attend(
    backend: str, launcher: Launcher, storage: Any, layer: int, q: Any, step: StepLike | Workspace, *, mask: Any = None,
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
    mask, mask_indptr = (each if each is None else launcher.download(each) for each in (mask, mask_indptr))
    if isinstance(step, Workspace):
        if mask is not None or mask_indptr is not None:
            raise ValueError("a mask needs a step, not a workspace")
        schedule = step.schedule_for(launcher, spec, storage.num_blocks, group, q_heads, tokens, rule)
    else:
        schedule = _schedule(backend, launcher, storage, step, group, q_heads, tokens, rule, mask, mask_indptr)
    shape = (tokens, q_heads, spec.v_head_dim)
    out = launcher.output("out", out, shape, (launcher.dtype_of_out(q, queries), FLOAT32))
    lse = None if lse is None else launcher.output("lse", lse, shape[:2], (FLOAT32,))

    params = _attend_of(spec).copy()
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
    return AttendCall(launcher, schedule, kernels, params, queries, (*planes, *extras), out, lse)


@cache
def _attend_of(spec: CacheSpec) -> Struct:
    """Return the struct of attend with what a pool of this spec always has in it."""
    params = np.zeros((), ATTEND)
    put_geometry(params, spec)
    params["block_magic"], params["block_shift"] = division(spec.block_size)
    return params


def _schedule(
    backend: str, launcher: Launcher, storage: Any, step: Any, group: int, q_heads: int, tokens: int, rule: Rule,
    mask: Any, mask_indptr: Any,
) -> Schedule:  # fmt: skip
    """Return the schedule of a step, made once for all layers that go by the same one."""
    memo = _memo(step)
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


def _memo(step: Any) -> dict[Any, Any] | None:
    """Return where a step keeps what was made of it; other StepLikes may be copies of one, with arrays of their own."""
    return step.memo if type(step) is Step else None


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
