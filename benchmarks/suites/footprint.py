"""Resident memory of the bookkeeping, read from the kernel: nothing that was allocated can hide."""

import subprocess
import sys

PROBE = """
import numpy as np
from pathlib import Path
from pagedcache.core import BlockPool, SequenceTable

def resident():
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Private_Dirty"].split()[0]) * 1024

BLOCKS, LENGTH, SIZE = 1 << 17, 4096, 16
rng = np.random.default_rng(0)
tokens = rng.integers(0, 128_000, (BLOCKS * SIZE // LENGTH, LENGTH), dtype=np.int32)
tiny = SequenceTable(BlockPool(512), SIZE, max_sequences=2, max_length=LENGTH)  # first-use costs, paid before
tiny.commit(tiny.extend(tiny.admit([tokens[0]]).ids, LENGTH), tokens[0])
before = resident()
table = SequenceTable(BlockPool(BLOCKS), SIZE, max_sequences=len(tokens), max_length=LENGTH)
for row in tokens:
    table.commit(table.extend(table.admit([row]).ids, LENGTH), row)
print((resident() - before) / BLOCKS - 4 * SIZE)
"""


def bytes_per_block():
    """Bytes of bookkeeping per block of a full pool, all blocks published, without the 4 bytes of each token."""
    done = subprocess.run([sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, check=True)
    return float(done.stdout)
