"""Small kernels on the emulator, for its tests."""

import struct
from typing import Any

import numpy as np

from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda_emulated._emulator import Emulator

LANES = np.arange(32)
SHARED = 4096  # bytes of each block
G, J = LANES // 4, LANES % 4  # a lane's row and pair of columns in a matrix


def run(body: str, given: Any = 0, *, out: Any = 0, threads: int = 32, grid: int = 1, **options: Any):
    """Run a kernel that consists of `body` (lines of C++ from test.cu:1 on), and return what it made of `out`.

    It has `in` and `out`, pointers to u32.
    """
    given, out = np.ascontiguousarray(given), np.array(out)
    extra = f"""
struct Arrays {{ const u32* in; u32* out; }};
PC_DEVICE void body(const u32* in, u32* out) {{
#line 1 "test.cu"
{body}
}}
"""
    kernel = Kernel("emulator_test", "body(p.in, p.out)", "Arrays", threads, SHARED)
    arrays = struct.pack("QQ", given.ctypes.data, out.ctypes.data)
    Emulator(extra=extra, **options).launch(kernel, grid, arrays)
    return out


def pairs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Put two arrays of 16-bit numbers into the halves of u32."""
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << 16


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to the bits of bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


COPY = """
        u32* shared = (u32*)pc_shared();
        const int i = pc_thread();
        pc_copy16(shared + 4 * i, in + 4 * i, i != 7);
        pc_copy_commit();
        pc_copy4(shared + 128 + i, in + i, i != 7);
        pc_copy_commit();
        pc_copy_wait<1>();
        for (int e = 0; e < 4; e++) out[4 * i + e] = shared[4 * i + e];
        out[128 + i] = shared[128 + i];
        pc_copy_wait<0>();
        out[160 + i] = shared[128 + i];
"""
