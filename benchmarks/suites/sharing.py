"""Sharing and the prefix index: forks, copies on write, tags, events."""

import numpy as np

from .common import BLOCK_SIZE, prompts, running_table


class Forks:
    """256 sequences of 128 blocks, each shared with one more sequence."""

    number = 1
    rounds = 1
    repeat = (20, 100, 5.0)
    warmup_time = 0.0
    sequences = 256

    def setup(self):
        if not hasattr(self, "table"):
            self.table, self.ids = running_table(self.sequences, 2048, room=16, max_sequences=2 * self.sequences)
            self.table.release(self.table.fork(self.ids).ravel())

    def time_fork_and_release(self):
        self.table.release(self.table.fork(self.ids).ravel())

    def time_reorder_in_a_ring(self):
        self.table.reorder(self.ids, np.roll(np.arange(self.sequences, dtype=np.int32), 1))


class CopyOnWrite:
    """256 forks of one sequence append into its half full last block: 255 copies or more."""

    number = 1
    rounds = 1
    repeat = (20, 100, 5.0)
    warmup_time = 0.0

    def setup(self):
        from pagedcache.core import BlockPool, SequenceTable

        self.table = SequenceTable(BlockPool(800), BLOCK_SIZE, max_sequences=257)
        tokens = np.zeros(2040, np.int32)
        self.parent = self.table.admit([tokens]).ids
        self.table.commit(self.table.extend(self.parent, 2040), tokens)
        self.kids = self.table.fork(self.parent, 256).ravel()

    def time_append(self):
        self.table.extend(self.kids, 1)


class Tags:
    """Chained keyed tags of 2048 blocks."""

    def setup(self):
        from pagedcache.core import BlockPool, SequenceTable

        self.index = SequenceTable(BlockPool(1), BLOCK_SIZE).index
        self.tokens = np.random.default_rng(0).integers(0, 128_000, 2048 * BLOCK_SIZE, dtype=np.int32)

    def time_tags(self):
        self.index.tags(self.tokens)


class Events:
    """4 prompts come, are published and go, in a pool that evicts; recorded or not. Draining is timed alone."""

    params = [["off", "digests"]]
    param_names = ["events"]
    number = 1
    rounds = 1
    repeat = (5, 20, 5.0)
    warmup_time = 0.0

    def setup(self, events):
        from pagedcache.core import BlockPool, SequenceTable

        self.prompts = prompts(4)
        self.table = SequenceTable(
            BlockPool(512), BLOCK_SIZE, max_length=8192, events=None if events == "off" else events
        )
        self.time_publish(events)

    def time_publish(self, events):
        for prompt in self.prompts:
            admission = self.table.admit([prompt])
            new = prompt[int(admission.cached[0]) :]
            self.table.commit(self.table.extend(admission.ids, len(new)), new)
            self.table.release(admission.ids)

    def time_drain(self, events):
        if events != "off":
            self.table.events()
