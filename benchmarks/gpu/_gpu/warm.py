"""Compile all kernels that the other parts use, by many processes: CuPy keeps them on disk, and all find them there."""

import multiprocessing
import os
import time

from _gpu import cases, correctness
from pagedcache.backends.cuda import _kernels


def rows(device, shrink):
    begin = time.perf_counter()
    wanted = sorted(kernels(shrink), key=lambda kernel: -kernel.shared)  # what takes longest comes first
    problems = []
    if device.name == "cuda":
        count = min(12, os.cpu_count() or 1)
        with multiprocessing.get_context("spawn").Pool(count) as workers:
            problems = [problem for problem in workers.imap_unordered(compiled, wanted) if problem]
    yield {"kind": "compiled", "kernels": len(wanted), "seconds": time.perf_counter() - begin, "problems": problems}


def kernels(shrink):
    """The kernels of the cases."""
    specs = [(case["spec"].dtype, case["spec"].head_dim, case["spec"].v_head_dim) for case in correctness.cases(shrink)]
    specs += [(case.dtype, case.heads[2], case.heads[2]) for case in (*cases.decodes(), *cases.prefills())]
    found = {_kernels.merge(), *(_kernels.move(unit) for unit in (1, 4, 16))}
    for dtype, *sizes in set(specs):
        found.add(_kernels.store(dtype))
        for full in (False, True):
            found.add(_kernels.few(dtype, *sizes, aligned=True, full=full))
            if dtype != "float32":
                rows = (64, 128) if max(sizes) <= 128 else (64,)
                found |= {_kernels.many(dtype, *sizes, n, aligned=True, full=full) for n in rows}
    return found


def compiled(kernel):
    """Compile a kernel; return what was wrong."""
    from pagedcache.backends.cuda import _cupy

    try:
        _cupy._function(kernel, 0)
    except Exception as problem:  # the others are worth having
        return f"{kernel.name}: {problem}"[:1000]
    return None
