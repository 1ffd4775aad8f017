"""Counts and sizes that a user writes, checked and read; sizes printed back."""

import operator
import re
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

__all__ = ["integer", "one_of", "parse_bytes", "readable"]

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(size: str | SupportsIndex) -> int:
    """Return a number of bytes written as an integer or as text such as ``"1.5 GiB"``.

    Parameters
    ----------
    size : str or int
        Text is a decimal number and a unit: B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB,
        TiB (powers of 1024), in any case; without a unit, bytes. Fractions of a byte are dropped.

    Raises
    ------
    TypeError
        Neither text nor an integer.
    ValueError
        Negative, or not understood.

    Examples
    --------
    >>> parse_bytes("512 MiB"), parse_bytes("1.5kB"), parse_bytes(4096)
    (536870912, 1500, 4096)
    """
    if not isinstance(size, str):
        return integer("a size in bytes", size, minimum=0)
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", size)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{size!r} is not a size in bytes; write it like '512 MiB', '1.5GiB' or 4096")
    from fractions import Fraction  # some ms of an import, for those who give their sizes as text

    return int(Fraction(match[1]) * _UNITS[match[2].lower()])


def integer(name: str, value: SupportsIndex | None, *, minimum: int = 1, maximum: int = 2**62) -> int:
    """Return `value` as an int, or raise an error that names it and its limit."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if not minimum <= number <= maximum:
        limit = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise ValueError(f"{name} is {number}; it must be {limit}")
    return number


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return `value`, or raise an error that lists what is known."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, known))}")
    return value


def readable(size: int) -> str:
    """Return a number of bytes as people write it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
