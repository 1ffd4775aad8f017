"""Every kind of kernel once, on a small batch, under compute-sanitizer: memory that is not its own, and races."""

import os
import shutil
import subprocess
import sys

import numpy as np

from _gpu.device import DEVICES
from pagedcache import CacheSpec
from pagedcache.core import Step

TOOLS = ("memcheck", "racecheck")
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
LENGTHS = ((1, 300), (1, 1100), (12, 90), (40, 170))  # for the kernels few, with merge, many64 and many128


def rows(device, shrink):
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if device.name != "cuda":
        small(device)  # does it run?
    if tool is None or device.name != "cuda":
        yield {"kind": "sanitizer", "failed": "compute-sanitizer is not there, or no GPU"}
        return
    for name in TOOLS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-m", "_gpu.sanitizer"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=45, check=False)
        except subprocess.TimeoutExpired:
            yield {"kind": "sanitizer", "tool": name, "failed": "not done after 45 s"}
            continue
        lines = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        yield {"kind": "sanitizer", "tool": name, "status": done.returncode, "lines": lines[:12] + lines[-3:]}


def small(device, dtypes=("float16", "int8", "float32")):
    """Write, attend with and without variants, move and read."""
    for dtype in dtypes:
        spec = CacheSpec(1, 2, 64, dtype=dtype)
        counts = [-(-kv_len // spec.block_size) for _, kv_len in LENGTHS]
        storage = device.backend.allocate(spec, sum(counts))
        tables = np.zeros((len(counts), max(counts)), np.int32)
        for row, end, count in zip(tables, np.cumsum(counts), counts, strict=True):
            row[:count] = np.arange(end - count, end) + 1
        indptr = np.cumsum([0] + [q for q, _ in LENGTHS])
        step = Step.from_arrays(tables, [kv for _, kv in LENGTHS], indptr, block_size=spec.block_size)
        k = np.ones((len(step.slots), 2, 64), np.float32)
        device.backend.write(storage, 0, k, k, step.slots)
        q = np.ones((len(k), 8, 64), np.float32)
        for options in ({}, {"window": 50, "sink_tokens": 3}):
            device.backend.attend(storage, 0, q, step, **options)
        device.backend.copy_blocks(storage, [[1, 2]])
        device.backend.read_blocks(storage, [1, 2])
        device.synchronize()


if __name__ == "__main__":
    import cupy

    cupy.cuda.set_allocator(None)  # each array is an allocation of its own, whose end the sanitizer knows
    small(DEVICES["cuda"]())
