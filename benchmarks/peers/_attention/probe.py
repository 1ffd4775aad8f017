"""The machine's own limits, measured beside what is compared: read and copy bandwidth, multiply-adds."""

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

PASS_BYTES = 400_000_000  # a probe reads this much at least, so that starting threads counts for nothing


@functools.cache
def library():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.so"
        source = Path(__file__).with_name("probe.c")
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))  # stays loaded when the file is gone
    for name in ("read_seconds", "copy_seconds", "flops"):
        getattr(library, name).restype = ctypes.c_double
    return library


def _pointers(arrays):
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ValueError("the probe walks arrays from end to end; this one is not contiguous")
    addresses = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    return addresses, (ctypes.c_size_t * len(arrays))(*(array.nbytes for array in arrays))


def read_bandwidth(arrays, threads):
    """Bytes per second that `threads` read of these arrays, each from end to end."""
    addresses, sizes = _pointers(arrays)
    total = sum(array.nbytes for array in arrays)
    passes = -(-PASS_BYTES // total)
    return passes * total / library().read_seconds(addresses, sizes, len(arrays), passes, threads)


def copy_time(to, source, threads):
    """Seconds that `threads` take to copy one list of arrays to another; bytes beyond whole cache lines are left."""
    addresses, sizes = _pointers(source)
    return library().copy_seconds(_pointers(to)[0], addresses, sizes, len(source), 1, threads)


def flops(threads):
    """Multiply-adds as operations per second, best of a few: float32, and bfloat16 (0 where there are none)."""
    passes = 1_000_000
    return [max(library().flops(kind, passes, threads) for _ in range(5)) for kind in (0, 1)]


def memory_left():
    """Bytes that the system says it can give; None where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    fields = dict(line.split(":") for line in text.splitlines())
    return int(np.int64(fields["MemAvailable"].split()[0]) * 1024)
