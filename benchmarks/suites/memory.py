"""Exact figures: how much of the memory holds tokens, and what the bookkeeping costs. The same on every machine."""

import numpy as np

from .churn import Churn
from .common import chat_lengths
from .footprint import bytes_per_block


class Utilisation:
    """Stored tokens over the token positions of the blocks in use, all of a chat workload alive at once."""

    params = [[1, 8, 16, 32, 64, 128]]
    param_names = ["block_size"]

    def setup(self, block_size):
        from pagedcache.core import BlockPool, SequenceTable

        prompt, answer = chat_lengths(512)
        self.lengths = prompt + answer
        blocks = int((-(-self.lengths // block_size)).sum())
        self.pool = BlockPool(blocks)
        table = SequenceTable(self.pool, block_size, max_sequences=512, max_length=4096)
        for length in self.lengths:
            admission = table.admit([np.zeros(length, np.int32)])
            table.commit(table.extend(admission.ids, length), None)
        self.table = table

    def track_utilisation(self, block_size):
        return int(self.lengths.sum()) / (self.pool.num_used * block_size)

    track_utilisation.unit = "ratio"


def track_contiguous_utilisation():
    """The same workload in a cache that keeps the longest legal length (prompt 2048 + answer 1024) for everyone."""
    prompt, answer = chat_lengths(512)
    return int((prompt + answer).sum()) / (512 * 3072)


track_contiguous_utilisation.unit = "ratio"


class Bookkeeping:
    """Memory of pool, index and tables beside K and V, for a full pool of published blocks."""

    timeout = 300

    def track_bytes_per_block(self):
        return bytes_per_block()

    track_bytes_per_block.unit = "bytes"


class Runs:
    """Mean run of consecutive block ids in the tables of live sequences, 90 % of the pool in use, under churn."""

    params = [[False, True]]
    param_names = ["published"]
    timeout = 300

    def track_mean_run(self, published):
        return Churn(publish=published).run(1500)

    track_mean_run.unit = "blocks"
