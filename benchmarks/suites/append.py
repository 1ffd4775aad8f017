"""One token more for n sequences: the core against the manager in pure Python (baseline.py)."""

import numpy as np

from .baseline import PyBlockManager
from .common import BLOCK_SIZE, running_table


class Append:
    """A decode step of n sequences from context 512 on."""

    params = [[1, 8, 32, 256], ["core", "python"]]
    param_names = ["sequences", "manager"]
    number = 1  # the context grows with every call: few samples of one step each
    rounds = 1
    repeat = (20, 100, 5.0)
    warmup_time = 0.0

    def setup(self, n, manager):
        if hasattr(self, "append"):  # asv calls setup before every sample
            return
        self.counts = np.ones(n, np.int32)
        if manager == "core":
            self.table, self.ids = running_table(n, 512)
            self.append = self.core_append
        else:
            self.python = PyBlockManager(n * 64, BLOCK_SIZE)
            self.ids = [self.python.admit(512) for _ in range(n)]
            self.append = self.python_append
        for _ in range(5):
            self.append()

    def core_append(self):
        self.table.commit(self.table.extend(self.ids, self.counts), None)

    def python_append(self):
        self.python.append(self.ids)

    def time_append(self, n, manager):
        self.append()


class Fork:
    """Share 128 blocks with one more sequence, and drop it."""

    params = [["core", "python"]]
    param_names = ["manager"]

    def setup(self, manager):
        self.table, self.ids = running_table(1, 2048, max_sequences=2)
        self.python = PyBlockManager(256, BLOCK_SIZE)
        self.parent = self.python.admit(2048)
        self.run = self.core_fork if manager == "core" else self.python_fork

    def core_fork(self):
        self.table.release(self.table.fork(self.ids)[0])

    def python_fork(self):
        self.python.release([self.python.fork(self.parent)])

    def time_fork_and_release(self, manager):
        self.run()
