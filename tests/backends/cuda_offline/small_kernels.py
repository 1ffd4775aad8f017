"""Kernels of a few lines, compiled by NVRTC and run by the interpreter of PTX."""

import struct

import numpy as np

from pagedcache.backends.cuda_emulated import _nvrtc
from pagedcache.backends.cuda_emulated.ptx import PtxProgram, Region

C_TYPES = {
    "f4": "float", "i1": "signed char", "u1": "unsigned char", "u2": "unsigned short", "i4": "int", "u4": "unsigned",
    "i8": "long long", "u8": "unsigned long long",
}  # fmt: skip


def run(body, *arrays, grid=1, threads=64, shared=0, before="", known=None):
    """Run a kernel of this body and return the last array.

    The body knows the arrays as pointers a, b, ...; its thread's number t, and i in the whole grid; `shared` bytes s.
    It may touch the arrays, or only those that are `known`.
    """
    parameters = [f"{C_TYPES[array.dtype.str[1:]]}* {name}" for array, name in zip(arrays, "abcdefg", strict=False)]
    source = f"""
        extern __shared__ __align__(128) unsigned char s[];
        {before}
        #line 1 "body"
        extern "C" __global__ void k({", ".join(parameters)}) {{
          const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
          {body}
        }}"""
    program = PtxProgram(_nvrtc.compile(source, "k.cu", "compute_80", ("-lineinfo",)).ptx, "k")
    pointers = struct.pack(f"<{len(arrays)}Q", *(array.ctypes.data for array in arrays))
    program.launch(
        grid, threads, shared, pointers, [Region.of(array) for array in (arrays if known is None else known)]
    )
    return arrays[-1]


def empty(kind="u4", size=64):
    return np.zeros(size, kind)
