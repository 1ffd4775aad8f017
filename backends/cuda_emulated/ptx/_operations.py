"""Instructions that make one value of others: what each computes, and the types that it reads and writes.

`resolve` looks an opcode up by its first word in `BUILDERS`; the words after it choose among variants. Conversions are
in _conversions.py. What is unknown is a fault, never a guess.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedcache.backends.cuda_emulated.ptx import _conversions, _integers
from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._parse import DTYPES

__all__ = ["Operation", "resolve"]

Compute = Callable[..., Array]
DType = np.dtype[Any]

PRED, U32, F32 = DTYPES["pred"], DTYPES["u32"], DTYPES["f32"]
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


@dataclass(frozen=True)
class Operation:
    """A function of arrays with an element per lane, or one for all of them."""

    compute: Compute
    sources: tuple[DType, ...]
    result: DType


def resolve(opcode: str) -> Operation | None:
    """Return the operation of an opcode; None where the first word is not one that makes a value of others."""
    base, *words = opcode.split(".")
    if base == "cvt":
        return Operation(*_conversions.resolve(words))
    build = BUILDERS.get(base)
    return None if build is None else build(words)


def _of_type(arity: int, integer: Compute | None, real: Compute | None = None) -> Callable[[list[str]], Operation]:
    """Return a builder where sources and result have the type that the opcode ends with."""

    def build(words: list[str]) -> Operation:
        *modes, kind = words
        if kind == "f16x2":
            return Operation(_in_pairs(_known(real)), (U32,) * arity, U32)
        dtype = DTYPES[kind]
        if dtype.kind == "f":
            return Operation(_as_real(_known(real), modes), (dtype,) * arity, dtype)
        return Operation(_known(integer), (dtype,) * arity, dtype)

    return build


def _known(compute: Compute | None) -> Compute:
    if compute is None:
        raise PtxFault("no such instruction for this type")
    return compute


def _as_real(compute: Compute, modes: list[str]) -> Compute:
    """Return a function of floats that does what the modes say about subnormal numbers, rounding and range."""
    unknown = set(modes) - {"rn", "ftz", "sat", "approx", "full"}
    if unknown:
        raise PtxFault(f"mode {unknown.pop()} is not known")
    if "ftz" in modes:
        inner = compute

        def compute(*sources: Array) -> Array:
            return flushed(inner(*map(flushed, sources)))

    if "sat" in modes:
        unlimited = compute

        def compute(*sources: Array) -> Array:
            result = unlimited(*sources)
            return np.where(np.isnan(result), np.float32(0), np.clip(result, np.float32(0), np.float32(1)))

    return compute


def flushed(x: Array) -> Array:
    """Return x with zeros of the same sign for subnormal numbers."""
    small = np.abs(x) < SMALLEST_NORMAL
    return np.where(small, np.copysign(np.float32(0), x), x) if small.any() else x


def _in_pairs(compute: Compute) -> Compute:
    """Return a function of pairs of float16 in 32 bits."""

    def pairs(*sources: Array) -> Array:
        result = compute(*(x.view(np.float16).reshape(-1, 2) for x in sources))
        return np.ascontiguousarray(result, np.float16).view(np.uint32).reshape(-1)

    return pairs


def _fma(x: Array, y: Array, z: Array) -> Array:
    """Round x * y + z once; in one of some 2**29 cases twice, as the exact sum may need more than float64."""
    if x.dtype == np.float16:
        return (x.astype(np.float64) * y + z).astype(np.float16)
    return (np.multiply(x, y, dtype=np.float64) + z).astype(np.float32)


def _multiply(words: list[str]) -> Operation:
    *modes, kind = words
    if kind in ("f16x2", "f32", "f16"):
        return _of_type(2, None, np.multiply)(words)
    return _integer_product(modes, kind, ())


def _multiply_add(words: list[str]) -> Operation:
    *modes, kind = words
    if kind == "f32":
        return _of_type(3, None, _fma)(words)
    return _integer_product(modes, kind, (kind,))


def _integer_product(modes: list[str], kind: str, addend: tuple[str, ...]) -> Operation:
    """Return x * y, or x * y + z, of which `modes` says which half, or that the result is wide."""
    dtype = DTYPES[kind]
    if modes == ["wide"]:
        wide = DTYPES[WIDE[kind]]
        product: Compute = lambda x, y: x.astype(wide) * y.astype(wide)  # noqa: E731
        sources, result = (dtype, dtype, *(wide for _ in addend)), wide
    elif modes in (["lo"], ["hi"]):
        product = np.multiply if modes == ["lo"] else _integers.high_product
        sources, result = (dtype, dtype, *(dtype for _ in addend)), dtype
    else:
        raise PtxFault(f"mode {' '.join(modes)} of a product is not known")
    return Operation((lambda x, y, z: product(x, y) + z) if addend else product, sources, result)


COMPARISONS: dict[str, Compute] = {
    "eq": np.equal,
    "ne": lambda x, y: (x < y) | (x > y),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": lambda x, y: ~((x < y) | (x > y)),
    "neu": np.not_equal,
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
    "num": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}
COMBINATIONS: dict[str, Compute] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _set_predicate(words: list[str]) -> Operation:
    comparison, *modes, kind = words
    dtype, compare = DTYPES[kind], COMPARISONS[comparison]
    if dtype == F32:
        compare = _flush_sources(compare) if "ftz" in modes else compare
    combine = next((COMBINATIONS[mode] for mode in modes if mode in COMBINATIONS), None)
    if combine is None:
        return Operation(compare, (dtype, dtype), PRED)
    return Operation(lambda x, y, p: combine(compare(x, y), p), (dtype, dtype, PRED), PRED)


def _flush_sources(compute: Compute) -> Compute:
    return lambda *sources: compute(*map(flushed, sources))


def _select(words: list[str]) -> Operation:
    def choose(x: Array, y: Array, holds: Array) -> Array:
        return np.where(holds, x, y)

    dtype = DTYPES[words[-1]]
    return Operation(choose, (dtype, dtype, PRED), dtype)


def _shift(compute: Compute) -> Callable[[list[str]], Operation]:
    def build(words: list[str]) -> Operation:
        dtype = DTYPES[words[-1]]
        # NumPy shifts by the width or more as PTX does: to zeros, or copies of the sign
        return Operation(lambda x, n: compute(x, n.astype(dtype)), (dtype, U32), dtype)

    return build


def _bits(sources: str, compute: Compute) -> Callable[[list[str]], Operation]:
    """Return a builder; `sources` has T for each source of the opcode's type, and U for one of 32 bits."""

    def build(words: list[str]) -> Operation:
        dtype = DTYPES[words[-1]]
        return Operation(compute, tuple(dtype if letter == "T" else U32 for letter in sources), dtype)

    return build


def _funnel(words: list[str]) -> Operation:
    side, mode, kind = words
    return Operation(_integers.funnel_shift(side, mode), (DTYPES[kind],) * 3, DTYPES[kind])


def _count(compute: Compute) -> Callable[[list[str]], Operation]:
    return lambda words: Operation(compute, (DTYPES[words[-1]],), U32)


def _reciprocal(x: Array) -> Array:
    return np.float32(1) / x


BUILDERS: dict[str, Callable[[list[str]], Operation]] = {
    "add": _of_type(2, np.add, np.add),
    "sub": _of_type(2, np.subtract, np.subtract),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _of_type(3, None, _fma),
    "div": _of_type(2, _integers.divide, np.divide),
    "rem": _of_type(2, _integers.remainder),
    "min": _of_type(2, np.minimum, np.fmin),
    "max": _of_type(2, np.maximum, np.fmax),
    "abs": _of_type(1, np.abs, np.abs),
    "neg": _of_type(1, np.negative, np.negative),
    "copysign": _of_type(2, None, lambda x, y: np.copysign(y, x)),
    "ex2": _of_type(1, None, np.exp2),
    "lg2": _of_type(1, None, np.log2),
    "rcp": _of_type(1, None, _reciprocal),
    "sqrt": _of_type(1, None, np.sqrt),
    "and": _of_type(2, np.bitwise_and),
    "or": _of_type(2, np.bitwise_or),
    "xor": _of_type(2, np.bitwise_xor),
    "not": _of_type(1, np.invert),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "shf": _funnel,
    "bfe": _bits("TUU", _integers.extract),
    "bfi": _bits("TTUU", _integers.insert),
    "lop3": _bits("TTTU", _integers.by_table),
    "prmt": _bits("TTU", _integers.permute),
    "brev": _bits("T", _integers.reverse),
    "popc": _count(_integers.population),
    "clz": _count(_integers.leading_zeros),
    "setp": _set_predicate,
    "selp": _select,
    "cvta": lambda words: _bits("T", lambda x: x)(words),
}
