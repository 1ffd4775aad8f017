"""Continuous batching without a model: sequences come, grow by a token a step, and go, at 90 % use of the pool."""

import numpy as np

from .common import BLOCK_SIZE, chat_lengths, mean_run


class Churn:
    """A pool of 8192 blocks under chat traffic; `publish` keeps released blocks as prefix cache."""

    num_blocks = 8192
    use = 0.9

    def __init__(self, *, publish):
        from pagedcache.core import BlockPool, SequenceTable

        self.publish = publish
        self.rng = np.random.default_rng(0)
        self.pool = BlockPool(self.num_blocks)
        self.table = SequenceTable(self.pool, BLOCK_SIZE, max_sequences=1024, max_length=4096)
        self.arrivals = zip(*chat_lengths(100_000), strict=True)
        self.ids = np.empty(0, np.int64)
        self.left = np.empty(0, np.int64)

    def _tokens(self, n):
        return self.rng.integers(0, 128_000, n, dtype=np.int32)

    def _admit(self):
        starting = len(self.ids) == 0  # then every sequence is somewhere in its answer, as in a system long at work
        while self.pool.num_used < self.use * self.num_blocks:
            prompt, answer = next(self.arrivals)
            answer = self.rng.integers(1, answer + 1) if starting else answer
            tokens = self._tokens(prompt)
            admission = self.table.admit([tokens])
            if admission.ids[0] < 0:
                return
            new = tokens[admission.cached[0] :]
            self.table.commit(self.table.extend(admission.ids, len(new)), new if self.publish else None)
            self.ids = np.append(self.ids, admission.ids)
            self.left = np.append(self.left, answer)

    def _preempt(self):
        while not self.table.can_extend(self.ids, 1):  # the youngest goes, as in serving engines
            self.table.release(self.ids[-1:])
            self.ids, self.left = self.ids[:-1], self.left[:-1]

    def run(self, steps):
        """Run so many steps; return the mean of `mean_run` over the second half of them (blocks)."""
        runs = []
        for i in range(steps):
            self._admit()
            self._preempt()
            step = self.table.extend(self.ids, 1)
            if i >= steps // 2 and i % 50 == 0:
                tables = zip(step.block_tables, step.kv_lens, strict=True)
                runs.append(mean_run([row[: -(-n // BLOCK_SIZE)] for row, n in tables]))
            self.table.commit(step, self._tokens(len(self.ids)) if self.publish else None)
            self.left -= 1
            done = self.left == 0
            if done.any():
                self.table.release(self.ids[done])
                self.ids, self.left = self.ids[~done], self.left[~done]
        return float(np.mean(runs))
