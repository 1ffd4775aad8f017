"""Integer operations that NumPy lacks, or does in another way."""

from collections.abc import Callable

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array

__all__ = [
    "by_table",
    "divide",
    "extract",
    "funnel_shift",
    "high_product",
    "insert",
    "leading_zeros",
    "permute",
    "population",
    "remainder",
    "reverse",
]


def divide(x: Array, y: Array) -> Array:
    """Return x / y rounded to zero, which NumPy rounds down."""
    result: Array = x // y
    if x.dtype.kind == "i":
        result = result + ((result * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)
    return result


def remainder(x: Array, y: Array) -> Array:
    """Return what `divide` leaves; it has the sign of x."""
    result: Array = x - divide(x, y) * y
    return result


def high_product(x: Array, y: Array) -> Array:
    """Return the upper half of x * y."""
    bits = 8 * x.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
        product: Array = x.astype(wide) * y.astype(wide)
        return (product >> bits).astype(x.dtype)
    a, b = x.view(np.uint64), y.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    high: Array = a1 * b1 + (middle >> half) + ((middle & low) + a0 * b1 >> half)
    if x.dtype.kind == "i":  # as unsigned, a negative number is 2 ** 64 too large
        zero = np.uint64(0)
        high = high - np.where(x < 0, b, zero) - np.where(y < 0, a, zero)
    return high.view(x.dtype)


def extract(x: Array, begin: Array, count: Array) -> Array:
    """Return `count` bits from `begin` on, extended by their sign if x has one."""
    bits = 8 * x.dtype.itemsize
    begin, count = (begin & 0xFF).astype(np.int64), (count & 0xFF).astype(np.int64)
    begin, end = np.minimum(begin, bits), np.minimum(begin + count, bits)
    if bits != 32:
        raise PtxFault("bfe of 64 bits is not known")
    # to the top of 64 bits and down again; past the end of x lie its zeros or signs
    top = x.astype(np.int64 if x.dtype.kind == "i" else np.uint64)
    up, down = (64 - end).astype(top.dtype), (64 - end + begin).astype(top.dtype)
    return np.where(count == 0, 0, top << up >> down).astype(x.dtype)


def insert(x: Array, y: Array, begin: Array, count: Array) -> Array:
    """Return y with its `count` bits from `begin` on taken from the lowest ones of x."""
    begin, count = (begin & 0xFF).astype(x.dtype), (count & 0xFF).astype(x.dtype)
    one = x.dtype.type(1)
    mask = ((one << count) - one) << begin  # shifts by the width or more give 0, and 0 - 1 is all bits
    result: Array = (y & ~mask) | (x << begin & mask)
    return result


def by_table(x: Array, y: Array, z: Array, table: Array) -> Array:
    """Return bit by bit the entry of the table whose number has the bits of x, y and z."""
    result = np.zeros((), x.dtype)
    for entry in np.flatnonzero(int(table[0]) >> np.arange(8) & 1):
        result = result | ((x if entry & 4 else ~x) & (y if entry & 2 else ~y) & (z if entry & 1 else ~z))
    return np.atleast_1d(result)


def permute(x: Array, y: Array, selector: Array) -> Array:
    """Return 4 of the 8 bytes of y:x; nibbles of the selector choose, their bit 3 copies the sign instead."""
    both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    result = np.zeros((), np.uint32)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(0xF)
        byte = (both >> (8 * (nibble & np.uint32(7))).astype(np.uint64) & np.uint64(0xFF)).astype(np.uint32)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * i)
    return result


def funnel_shift(side: str, mode: str) -> Callable[[Array, Array, Array], Array]:
    """Return a function that shifts the 64 bits high:low and keeps the upper half (left) or the lower one (right)."""

    def shift(low: Array, high: Array, count: Array) -> Array:
        n = (count & np.uint32(31) if mode == "wrap" else np.minimum(count, np.uint32(32))).astype(np.uint64)
        both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        return ((both << n >> np.uint64(32)) if side == "l" else (both >> n)).astype(np.uint32)

    return shift


def reverse(x: Array) -> Array:
    """Return the bits in the opposite order."""
    bits = np.unpackbits(x.view(np.uint8).reshape(-1, x.itemsize), axis=1, bitorder="little")
    return np.packbits(bits, axis=1, bitorder="big")[:, ::-1].copy().view(x.dtype).reshape(-1)[: x.size]


def population(x: Array) -> Array:
    """Count ones."""
    return np.bitwise_count(x).astype(np.uint32)


def leading_zeros(x: Array) -> Array:
    """Count zeros before the first one."""
    bits = 8 * x.dtype.itemsize
    count = np.full(x.shape, bits, np.uint32)
    for n in range(bits):
        count[x >> x.dtype.type(n) != 0] = bits - 1 - n
    return count
