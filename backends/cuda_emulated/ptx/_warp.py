"""What the 32 lanes of a warp do together: exchange values, vote, load and multiply matrices.

All values are arrays [warps, 32]. Layouts of matrices are those of PTX for ldmatrix and mma.sync.m16n8k16, which
backends/cuda/kernels/primitives.cuh describes.
"""

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._conversions import bf16_numbers
from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._parse import DTYPES
from pagedcache.backends.cuda_emulated.ptx._shared import Shared

__all__ = ["exchange", "load_matrices", "multiply", "vote"]

LANES = np.arange(32)
WHOLE = 31  # segment mask and clamp of shfl that make the warp one segment


def exchange(mode: str, values: Array, selector: Array, clamp: Array) -> Array:
    """Return for each lane the value of another one: `bfly` of lane XOR selector, `idx` of lane `selector`."""
    if (clamp != WHOLE).any():
        raise PtxFault("shfl among parts of a warp is not known")
    if mode == "bfly":
        source = LANES ^ selector.astype(np.int64)
    elif mode == "idx":
        source = selector.astype(np.int64)
    else:
        raise PtxFault(f"shfl {mode} is not known")
    return np.take_along_axis(values, source & 31, 1)


def vote(mode: str, predicate: Array) -> Array:
    """Return for every lane whether `any` or `all` of them hold, or the `ballot`."""
    if mode == "ballot":
        result = (predicate.astype(np.uint32) << LANES.astype(np.uint32)).sum(1, dtype=np.uint32)
    elif mode in ("any", "all"):
        result = predicate.any(1) if mode == "any" else predicate.all(1)
    else:
        raise PtxFault(f"vote {mode} is not known")
    return np.repeat(result, 32).reshape(-1, 32)


def load_matrices(shared: Shared, threads: Array, rows: Array, transposed: bool) -> list[Array]:
    """Return of four 8x8 matrices of 16-bit elements what each lane gets: two elements in 32 bits.

    Lane 8 m + r of a warp says where row r of matrix m is; `threads` and `rows` have an element per lane.
    """
    words = shared.load(threads, rows, DTYPES["u32"], 4)
    elements = np.stack(words, axis=1).view(np.uint16).reshape(-1, 4, 8, 8)
    if transposed:
        elements = elements.swapaxes(2, 3)
    pairs = np.ascontiguousarray(elements).view(np.uint32)  # [warps, matrices, 8, 4]
    return [pairs[:, m].reshape(-1, 32) for m in range(4)]


def multiply(kind: str, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
    """Return a [16, 16] * b [16, 8] + c [16, 8] of each warp, as the lanes hold them; `kind` is f16 or bf16."""
    left = np.empty((a[0].shape[0], 16, 16), np.float32)
    for register, (row, column) in zip(a, ((0, 0), (8, 0), (0, 8), (8, 8)), strict=True):
        left[:, row : row + 8, column : column + 8] = _elements(kind, register)
    right = np.concatenate([_elements(kind, register).swapaxes(1, 2) for register in b], axis=1)
    product = np.matmul(left, right).reshape(-1, 2, 32, 2)  # [warps, half, lane, which of two columns]
    return [c[i] + product[:, i // 2, :, i % 2] for i in range(4)]


def _elements(kind: str, register: Array) -> Array:
    """Return [warps, 8, 8] float32 of pairs: of row lane / 4, columns 2 (lane % 4) and the next."""
    bits = np.ascontiguousarray(register).view(np.uint16).reshape(-1, 8, 8)
    return bits.view(np.float16).astype(np.float32) if kind == "f16" else bf16_numbers(bits)
