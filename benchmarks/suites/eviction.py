"""What an eviction policy costs: 10,000 blocks a call, so that a millisecond is 100 ns for each block."""

import numpy as np

from .common import BLOCK_SIZE


class Policies:
    """Prompts of 100 blocks in a pool of 5,000, all of it cached; eight in ten blocks of the mix are found."""

    params = [["LRU", "LFUDA", "ARC", "S3FIFO", "NeverHitFirst", "PriorityTTL", "NamespaceQuotas"]]
    param_names = ["policy"]
    num_blocks = 5_000
    prompt_blocks = 100
    calls = 100  # of admit and release: 10,000 blocks

    def setup(self, policy):
        from pagedcache import core

        if not hasattr(core, policy):
            raise NotImplementedError(f"no {policy} in this version")
        arguments = {"PriorityTTL": ([None, None],), "NamespaceQuotas": ({None: 4_000},)}.get(policy, ())
        made = getattr(core, policy)(*arguments)
        pool = core.BlockPool(self.num_blocks + 1, made)
        self.table = core.SequenceTable(pool, BLOCK_SIZE, max_sequences=1, max_length=self.num_blocks * BLOCK_SIZE)
        self.rng = np.random.default_rng(0)
        self.known = [self._prompt() for _ in range(20)]
        for prompt in self.known:
            self._send(prompt)
        self.time_evictions(policy)
        for prompt in self.known:
            self._send(prompt)

    def _prompt(self):
        return self.rng.integers(0, 128_000, self.prompt_blocks * BLOCK_SIZE + 1, dtype=np.int32)

    def _send(self, prompt):
        admission = self.table.admit([prompt])
        cached = int(admission.cached[0])
        self.table.commit(self.table.extend(admission.ids, len(prompt) - cached), prompt[cached:])
        self.table.release(admission.ids)

    def time_hits(self, policy):
        """Idle blocks are held, and let go: remove and insert."""
        for k in range(self.calls):
            self.table.release(self.table.admit([self.known[k % 20]]).ids)

    def time_evictions(self, policy):
        """New content pushes out old: pop, publish and insert."""
        for _ in range(self.calls):
            self._send(self._prompt())

    def time_mix(self, policy):
        for k in range(self.calls):
            self._send(self._prompt() if k % 5 == 0 else self.known[k % 20])
