"""What the machine is, and what it can do at most: memory copied, dense products."""

from statistics import median

import numpy as np

from _gpu.peers import PLACES, torch_times, usable_torch


def rows(device, shrink):
    yield {"kind": "facts"} | device.facts()
    call, nbytes = device.copying() if shrink == 1 else device.copying(0.001)
    seconds = median(device.times(call))
    yield {"kind": "copy", "gbps": nbytes / seconds / 1e9, "gib": nbytes / 2**31}
    del call
    device.free()
    for dtype in ("float16", "bfloat16"):
        yield product(device, dtype, 8192 if shrink == 1 else 64)


def product(device, dtype, size):
    """The rate of a dense product of two matrices, by torch; CuPy, which has float16 only, where there is no torch."""
    flops = 2 * size**3
    row = {"kind": "product", "dtype": dtype}
    torch = usable_torch(device)
    if torch is None and dtype != "float16":
        return row | {"failed": "there is no torch for this device"}
    if torch is None:
        matrix = device.put(np.ones((size, size), np.float16))
        return row | {"by": "CuPy", "tflops": flops / min(device.times(lambda: matrix @ matrix)) / 1e12}
    matrix = torch.randn(size, size, device=PLACES[device.name]).to(getattr(torch, dtype))
    seconds = min(torch_times(lambda: matrix @ matrix, 20))
    return row | {"by": f"torch {torch.__version__}", "tflops": flops / seconds / 1e12}
