"""Whole-step verbs of the allocator core: no K/V bytes, no maths."""

import numpy as np

from .baseline import PyBlockManager
from .common import BLOCK_SIZE, prompts, running_table


class DecodeStep:
    """One step of n sequences at context 2048, one new token each: slots, positions, tables, lengths."""

    params = [[1, 64, 256, 1024]]
    param_names = ["sequences"]
    timeout = 300
    number = 1  # an open step has to be closed before the next: setup does it, untimed
    rounds = 1
    repeat = (20, 100, 5.0)
    warmup_time = 0.0

    def setup(self, n):
        if not hasattr(self, "table"):  # asv calls setup before every sample
            self.table, self.ids = running_table(n, 2048)
            self.counts = np.ones(n, np.int32)
            self.tokens = np.full(n, 7, np.int32)
            for _ in range(5):  # the first steps touch the buffers
                self.time_extend_and_commit(n)
        elif self.step is not None:
            self.table.commit(self.step, self.tokens)
            self.step = None

    def time_extend(self, n):
        self.step = step = self.table.extend(self.ids, self.counts)
        return step.slots, step.positions, step.block_tables, step.kv_lens

    def time_extend_and_commit(self, n):
        self.table.commit(self.table.extend(self.ids, self.counts), self.tokens)
        self.step = None


class Prompts:
    """Fresh and shared prompts of 1000 to 8000 tokens: admit, extend, commit, then release."""

    number = 1
    rounds = 1
    repeat = (3, 10, 20.0)
    warmup_time = 0.0
    timeout = 300
    count = 200

    def setup(self):
        from pagedcache.core import BlockPool, SequenceTable

        self.prompts = prompts(self.count)
        blocks = sum(-(-len(p) // BLOCK_SIZE) for p in self.prompts)
        self.table = SequenceTable(BlockPool(blocks), BLOCK_SIZE, max_sequences=self.count, max_length=8192)

    def _admit(self):
        ids = []
        for prompt in self.prompts:
            admission = self.table.admit([prompt])
            cached = int(admission.cached[0])
            self.table.commit(self.table.extend(admission.ids, len(prompt) - cached), prompt[cached:])
            ids.append(admission.ids)
        return np.concatenate(ids)

    def time_admit_extend_commit(self):
        self._admit()

    def time_admit_extend_commit_release(self):
        self.table.release(self._admit())


class Blocks:
    """The pool alone: a batch of ids allocated and given back."""

    params = [[1, 32, 256, 4096], ["core", "python"]]
    param_names = ["blocks", "manager"]

    def setup(self, n, manager):
        from pagedcache.core import BlockPool

        self.pool = BlockPool(65536)
        self.python = PyBlockManager(65536, BLOCK_SIZE)
        self.run = self.core_batch if manager == "core" else self.python_batch

    def core_batch(self, n):
        self.pool.decref(self.pool.allocate(n))

    def python_batch(self, n):
        self.python.decref(self.python.allocate(n))

    def time_allocate_and_free(self, n, manager):
        self.run(n)
