"""Whether the kernels compute on this device what backend cpu computes: every instantiation, and what is stored."""

from itertools import pairwise

import numpy as np

from pagedcache import CacheSpec, backends
from pagedcache.backends.cuda import _kernels
from pagedcache.core import Step

# Error relative to the largest V: of rounding q and weights to what is multiplied, and of sums in another order.
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 1e-2, "int8": 1e-2, "float8_e4m3": 2e-2}
SIZES = (64, 80, 96, 128, 192, 256)
Q_HEADS, KV_HEADS = 8, 2
LENGTHS = ((1, 300), (1, 1500), (12, 90), (40, 170))  # rows for the kernels few (the second in spans), many64, many128
FULL = {"window": 70, "sink_tokens": 3, "softcap": 30.0}


def rows(device, shrink):
    seen = Launches(device)
    wanted = set()
    for case in cases(shrink):
        yield compared(device, seen, **case)
        wanted |= names(case["spec"], case["options"])
    yield {"kind": "kernels", "launched": len(seen.names), "missing": sorted(wanted - seen.names)}


def cases(shrink):
    """Specs and options of attend that have every kernel run."""
    dtypes, sizes = (tuple(TOLERANCE), SIZES) if shrink == 1 else (("float16", "int8"), (64,))
    for size in sizes:
        for dtype in dtypes:
            for options in ({}, FULL):
                yield {"spec": CacheSpec(1, KV_HEADS, size, dtype=dtype), "options": options}
    if shrink == 1:
        for size, v_size, layout, block_size in ((59, 59, "HND", 16), (128, 100, "NHD", 1), (128, 128, "HND", 64)):
            for dtype in dtypes:
                spec = CacheSpec(
                    1, KV_HEADS, size, v_head_dim=v_size, dtype=dtype, layout=layout, block_size=block_size
                )
                yield {"spec": spec, "options": {}}


def names(spec, options):
    """Of the attention kernels that a case is for."""
    sizes = (spec.dtype, spec.head_dim, spec.v_head_dim)
    found = [_kernels.few(*sizes, aligned=True, full=bool(options))]
    if spec.dtype != "float32":
        for rows in (64, 128) if max(sizes[1:]) <= 128 else (64,):
            found.append(_kernels.many(*sizes, rows, aligned=True, full=bool(options)))
    return {kernel.name for kernel in found}


def compared(device, seen, spec, options):
    """The largest error of each sequence, and whether what was stored is bit for bit the same."""
    rng = np.random.default_rng(5)
    counts = [-(-kv_len // spec.block_size) for _, kv_len in LENGTHS]
    tables = np.zeros((len(counts), max(counts)), np.int32)
    ids = rng.permutation(sum(counts)) + 1
    for row, end, count in zip(tables, np.cumsum(counts), counts, strict=True):
        row[:count] = ids[end - count : end]
    kv_lens, indptr = [kv for _, kv in LENGTHS], np.cumsum([0] + [q for q, _ in LENGTHS])
    stored = Step.from_arrays(tables, kv_lens, np.cumsum([0, *kv_lens]), block_size=spec.block_size).slots
    k = rng.standard_normal((len(stored), KV_HEADS, spec.head_dim), np.float32)
    v = rng.standard_normal((len(stored), KV_HEADS, spec.v_head_dim), np.float32)
    q = rng.standard_normal((indptr[-1], Q_HEADS, spec.head_dim), np.float32)
    outs, records = [], []
    for backend in (backends.get("cpu"), device.backend):
        storage = backend.allocate(spec, sum(counts))
        backend.write(storage, 0, k, v, stored)
        step = Step.from_arrays(tables, kv_lens, indptr, block_size=spec.block_size)
        outs.append(device.host(backend.attend(storage, 0, q, step, **options)))
        backend.synchronize()
        records.append(backend.read_blocks(storage, ids))
    error = np.abs(outs[0] - outs[1]).max(axis=(1, 2)) / np.abs(v).max()
    worst = [float(error[begin:end].max()) for begin, end in pairwise(indptr)]
    return {
        "kind": "compared", "dtype": spec.dtype, "sizes": [spec.head_dim, spec.v_head_dim], "layout": spec.layout,
        "block_size": spec.block_size, "full": bool(options), "errors": worst, "tolerance": TOLERANCE[spec.dtype],
        "stored": bool(np.array_equal(*records)), "ok": bool(np.all(error <= TOLERANCE[spec.dtype])),
    }  # fmt: skip


class Launches:
    """Keeps the names of the kernels that a device launches."""

    def __init__(self, device):
        launcher = device.backend._launcher
        self.names, self._launch = set(), launcher.launch
        launcher.launch = self

    def __call__(self, kernel, grid, params):
        self.names.add(kernel.name)
        self._launch(kernel, grid, params)
