"""Decode: one new token in each sequence, as time, bandwidth, and its fraction of copied memory's."""

from statistics import median

from _gpu.cases import chosen, decodes
from _gpu.pool import Pool


def rows(device, shrink):
    for case in chosen(decodes(), shrink):
        yield measured(device, case)


def measured(device, case):
    """Time and rates of attention over a case, or why there are none."""
    about = {
        "kind": "attention", "case": case.key, "heads": "/".join(map(str, case.heads)), "dtype": case.dtype,
        "name": case.name, "block_size": case.block_size, "nbytes": case.nbytes, "flops": case.flops,
        "targets": case.targets,
    }  # fmt: skip
    try:
        pool = Pool(device, case)
        times = device.times(pool.attend)
        del pool
        device.free()
    except MemoryError as problem:
        return about | {"failed": str(problem)}
    return about | {"us": median(times) * 1e6, "least_us": min(times) * 1e6}
