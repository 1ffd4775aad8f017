"""Our side: `pagedcache.core.SequenceTable`, the allocator without K/V bytes."""

import numpy as np
from workload import BLOCK_SIZE, Meter

import pagedcache
from pagedcache.core import BlockPool, SequenceTable

NAME = f"pagedcache {pagedcache.__version__}"


class CoreSide:
    """Admission is admit + extend + commit of the uncached tokens; a decode step is extend + commit.

    The arrays that a kernel reads are looked at within the timing: slots, positions, block tables, lengths.
    """

    def __init__(self, num_blocks, running, max_length):
        self.meter = Meter()
        self.pool = BlockPool(num_blocks)
        self.table = SequenceTable(self.pool, BLOCK_SIZE, max_sequences=running, max_length=max_length)
        self.ids = np.empty(running, np.int64)
        self.ones = np.ones(running, np.int32)
        self.count = 0  # of places in use

    def admit(self, prompt):
        prompt = prompt.copy()  # freshly made, as the peer's list is
        with self.meter("admit"):
            admission = self.table.admit([prompt])
            cached = int(admission.cached[0])
            step = self.table.extend(admission.ids, len(prompt) - cached)
            self.look(step)
            self.table.commit(step, prompt[cached:])
        self.ids[self.count] = admission.ids[0]
        self.count += 1
        return cached

    def decode(self, tokens):
        ids, ones = self.ids[: self.count], self.ones[: self.count]
        with self.meter("decode"):
            step = self.table.extend(ids, ones)
            self.look(step)
            self.table.commit(step, tokens)

    def release(self, places):
        gone = self.ids[places]
        with self.meter("free"):
            self.table.release(gone)
        for place in places:
            self.count -= 1
            self.ids[place] = self.ids[self.count]

    @staticmethod
    def look(step):
        return step.slots, step.positions, step.block_tables, step.kv_lens

    @property
    def num_free(self):
        return self.pool.num_free
