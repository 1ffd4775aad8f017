"""Which kernels there are, by what they are specialised for, and the source text of each.

A kernel is compiled when it is first launched: one translation unit without includes, made of ``kernels/*.cuh`` in the
order below and an ``extern "C"`` entry. The functions in ``primitives.cuh`` are all that is a GPU's own, so that an
emulator can put others in their place.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Kernel", "few", "many", "merge", "move", "source", "store"]

FOLDER = Path(__file__).parent / "kernels"
BEFORE = ("numbers",)
AFTER = ("params", "storage", "product", "rows", "sight", "softmax", "results", "few", "many", "merge", "store", "move")
STORED = {
    "float32": "float",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "float8_e4m3": "e4m3",
    "float8_e5m2": "e5m2",
}
BYTES = {"float": 4, "f16": 2, "bf16": 2, "i8": 1, "e4m3": 1, "e5m2": 1}
SCALED = ("i8", "e4m3")
MOST_SHARED = 99 << 10  # bytes that a block may have on every GPU from compute capability 8.0 on
HEAD_DIMS = (
    16,
    32,
    64,
    80,
    96,
    128,
    192,
    256,
)  # that kernels are specialised for; others go through the next larger one


@dataclass(frozen=True)
class Kernel:
    """One entry: launched with blocks of `threads` threads, `shared` bytes and one struct."""

    name: str  # of the entry, a C identifier
    call: str  # the statement that it consists of; its parameter is called p
    params: str  # the struct's name in params.cuh
    threads: int
    shared: int = 0  # bytes
    resident: int = 1  # blocks that a multiprocessor shall have registers for


def source(kernel: Kernel, primitives: str | None = None) -> str:
    """Return the translation unit of a kernel, with the GPU's primitives or the text of others."""
    names = [*BEFORE, "primitives", *AFTER]
    texts = {name: f'#line 1 "{name}.cuh"\n{_text(name)}' for name in names}  # so that messages name the file
    if primitives is not None:
        texts["primitives"] = primitives
    bounds = f"__launch_bounds__({kernel.threads}, {kernel.resident})"
    entry = f"PC_KERNEL void {bounds} {kernel.name}(const {kernel.params} p) {{ {kernel.call}; }}"
    return "\n".join([*texts.values(), '#line 1 "entry"', entry, ""])


@cache
def few(storage: str, head_dim: int, v_head_dim: int, *, aligned: bool, full: bool) -> Kernel:
    """Return the kernel for up to 16 query rows; see few.cuh. It has as many warps as have room in shared memory."""
    kind, d, dv, exact = _specialised(storage, head_dim, v_head_dim, aligned)
    warps = next(count for count in (4, 2, 1) if _few_shared(kind, d, dv, count) <= MOST_SHARED)
    resident = 1 if max(d, dv) > 128 or kind == "float" else 3
    arguments = f"{kind}, {d}, {dv}, {warps}, {exact}, {_bool(full)}"
    name = _name("few", kind, d, dv, exact, full)
    shared = _few_shared(kind, d, dv, warps)
    return Kernel(name, f"Few<{arguments}>::run(p)", "AttendParams", 32 * warps, shared, resident)


def _few_shared(kind: str, d: int, dv: int, warps: int) -> int:
    scales = 2 * 16 * 4 if kind in SCALED else 0
    stage = 16 * (_row_bytes(kind, d) + _row_bytes(kind, dv)) + scales
    rings = max(warps * (2 * stage + 16 * 16), warps * 16 * 3 * 4 + 16 * dv * 4)
    return 16 * _row_bytes(_operand(kind), d) + 16 * 4 + rings


@cache
def many(storage: str, head_dim: int, v_head_dim: int, rows: int, *, aligned: bool, full: bool) -> Kernel:
    """Return the kernel for tiles of 64 or 128 query rows; see many.cuh. There is none for float32."""
    kind, d, dv, exact = _specialised(storage, head_dim, v_head_dim, aligned)
    wide = max(d, dv) > 96
    keys = 64 if rows == 64 and max(d, dv) <= 128 else 16 if rows == 128 and wide and (full or BYTES[kind] == 1) else 32
    queries = rows * _row_bytes(_operand(kind), d) + rows * 4
    scales = 2 * keys * 4 if kind in SCALED else 0
    shared = queries + keys * (_row_bytes(kind, d) + _row_bytes(kind, dv)) + 2 * scales + 2 * keys * 16
    arguments = f"{kind}, {d}, {dv}, {rows // 64}, {keys}, {exact}, {_bool(full)}"
    name = _name(f"many{rows}", kind, d, dv, exact, full)
    # Three of the smallest, unless variants, or the infinities of e5m2, take too many registers.
    resident = 3 if rows == 64 and max(d, dv) <= 64 and not full and kind != "e5m2" else 2
    return Kernel(name, f"Many<{arguments}>::run(p)", "AttendParams", 128, shared, resident)


@cache
def merge() -> Kernel:
    """Return the kernel that merges the results of spans; see merge.cuh."""
    return Kernel("merge", "run_merge(p)", "AttendParams", 128, resident=8)


@cache
def store(storage: str) -> Kernel:
    """Return the kernel that stores new tokens; see store.cuh."""
    kind = STORED[storage]
    return Kernel(f"store_{kind}", f"run_store<{kind}>(p)", "StoreParams", 128)


@cache
def move(unit: int) -> Kernel:
    """Return the kernel that moves bytes in units of 1, 4 or 16; see move.cuh."""
    kind = {1: "u8", 4: "u32", 16: "Vector"}[unit]
    return Kernel(f"move_{unit}", f"run_move<{kind}>(p)", "MoveParams", 128)


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.cuh").read_text(encoding="utf-8").replace("#pragma once", "")


def _specialised(storage: str, head_dim: int, v_head_dim: int, aligned: bool) -> tuple[str, int, int, str]:
    d, dv = (next(size for size in HEAD_DIMS if size >= width) for width in (head_dim, v_head_dim))
    return STORED[storage], d, dv, _bool(aligned and (d, dv) == (head_dim, v_head_dim))


def _operand(kind: str) -> str:
    return kind if BYTES[kind] > 1 else "f16"


def _row_bytes(kind: str, width: int) -> int:
    return (width * BYTES[kind] // 16 | 1) * 16


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _name(family: str, kind: str, d: int, dv: int, exact: str, full: bool) -> str:
    return f"{family}_{kind}_{d}_{dv}{'' if exact == 'true' else '_any'}{'_full' if full else ''}"
