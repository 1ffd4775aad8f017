"""Records from one storage dtype to another, and records with slots that hold nothing.

What is stored without scales is rounded to nearest, ties to even. Into int8 and float8_e4m3 values go as a backend
stores them: per token and head, scale = absmax / 127 (448), 1 where that is 0. Out of these come code * scale, in
float32. The same dtype is no conversion: not a bit changes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache._dtypes import SCALED_DTYPES
from pagedcache.errors import ForeignFormat
from pagedcache.tiers.block_format import BlockFormat

__all__ = ["blank", "converted", "require_convertible"]

Records = NDArray[np.uint8]  # [blocks, layers, record]
BITS = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "int8": "i1", "float8_e4m3": "u1"}


def require_convertible(source: BlockFormat, target: BlockFormat, where: str) -> None:
    """Raise ForeignFormat unless records go from one dtype to the other."""
    for dtype in (source.dtype, target.dtype):
        if source.dtype != target.dtype and dtype not in BITS:
            raise ForeignFormat(
                f"{where} holds blocks with dtype {source.dtype!r}; this cache has {target.dtype!r}, and {dtype!r} is "
                "not converted"
            )


def converted(records: Records, source: BlockFormat, target: BlockFormat) -> Records:
    """Return records of the source's format in the target's, which differs in dtype alone.

    Raises
    ------
    ValueError
        A value is not finite, and the target has scales.
    """
    if source.dtype == target.dtype:
        return records
    from pagedcache.backends.host.formats import narrowed  # here, since importing pagedcache imports no backend
    from pagedcache.backends.host.quantised import quantised

    pieces: list[NDArray[Any]] = []
    scales: list[NDArray[Any]] = []
    for name, values in zip("KV", _numbers(records, source), strict=True):
        if target.dtype in SCALED_DTYPES:
            codes, factors = quantised(name, values, target.dtype)
            pieces.append(codes)
            scales.append(factors)
        else:
            pieces.append(narrowed(values, np.dtype(BITS[target.dtype])))
    rows = [np.ascontiguousarray(piece).view(np.uint8).reshape(-1, piece.nbytes // _count(records)) for piece in
            [*pieces, *scales]]  # fmt: skip
    return np.concatenate(rows, axis=1).reshape(*records.shape[:2], -1)


def _count(records: Records) -> int:
    return int(records.shape[0] * records.shape[1])


def _numbers(records: Records, form: BlockFormat) -> list[NDArray[np.float32]]:
    """K and V, float32 [blocks * layers * tokens, heads, width]."""
    from pagedcache.backends.host.formats import widened

    pieces = _pieces(records, form)
    found = []
    for number, width in enumerate((form.head_dim, form.v_head_dim)):
        values = np.ascontiguousarray(pieces[number]).view(BITS[form.dtype]).reshape(-1, form.kv_heads, width)
        values = widened(values)
        if form.dtype in SCALED_DTYPES:
            factors = np.ascontiguousarray(pieces[number + 2]).view("f4").reshape(-1, form.kv_heads, 1)
            values = values * factors
        found.append(values)
    return found


def _pieces(records: Records, form: BlockFormat) -> list[Records]:
    """Views of K, V and scales, [blocks, layers, bytes]."""
    ends = np.cumsum(form.piece_nbytes).tolist()
    return [records[:, :, end - size : end] for size, end in zip(form.piece_nbytes, ends, strict=True)]


def blank(records: Records, form: BlockFormat, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Zero, in place, what lies in slots of each block before `begins` and from `ends` on: old bytes of others."""
    slots = np.arange(form.block_size)
    empty = (slots < begins[:, None]) | (slots >= ends[:, None])
    for block in np.flatnonzero(empty.any(axis=1)).tolist():
        for piece in _pieces(records[block : block + 1], form):
            piece.reshape(form.layers, form.block_size, -1)[:, empty[block]] = 0
