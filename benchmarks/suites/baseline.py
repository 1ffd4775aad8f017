"""The baseline: what a careful person writes in an afternoon, in lists and dicts.

It keeps the same promises as the core (all or nothing, copy-on-write, checked frees) and hands out the same things per
step: slots, positions and lengths as the arrays that a kernel reads. Block tables stay lists, to its favour: making an
array of those takes longer than all the rest. It has no prefix cache and cannot undo a step.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class PySequence:
    """One token stream: its logical block -> block id list, and its number of tokens."""

    table: list[int] = field(default_factory=list)
    length: int = 0


@dataclass(slots=True)
class PyStep:
    """What one call of `PyBlockManager.append` gives a kernel; one entry per sequence."""

    slots: np.ndarray  # int64 [n]
    positions: np.ndarray  # int64 [n]
    tables: list[list[int]]
    kv_lens: np.ndarray  # int32 [n]
    copies: list[tuple[int, int]]


class PyBlockManager:
    """Blocks 1..num_blocks in a free list, reference counts in a list, sequences in a dict."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks, 0, -1))
        self.refs = [0] * (num_blocks + 1)
        self.sequences: dict[int, PySequence] = {}
        self.next_id = 0

    def allocate(self, n: int) -> list[int]:
        """Take n blocks, or none: MemoryError."""
        if n > len(self.free):
            raise MemoryError(f"{n} blocks asked for, {len(self.free)} are free")
        ids = [self.free.pop() for _ in range(n)]
        for block in ids:
            self.refs[block] = 1
        return ids

    def decref(self, ids: list[int]) -> None:
        """Drop one reference of each block; a block without references is free."""
        for block in ids:
            if self.refs[block] == 0:
                raise ValueError(f"block {block} is free already")
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)

    def admit(self, length: int) -> int:
        """Make a sequence of `length` tokens; return its id."""
        table = self.allocate(-(-length // self.block_size))
        self.next_id += 1
        self.sequences[self.next_id] = PySequence(table, length)
        return self.next_id

    def fork(self, seq_id: int) -> int:
        """Make a sequence that shares every block of another; return its id."""
        parent = self.sequences[seq_id]
        for block in parent.table:
            self.refs[block] += 1
        self.next_id += 1
        self.sequences[self.next_id] = PySequence(list(parent.table), parent.length)
        return self.next_id

    def release(self, ids: list[int]) -> None:
        """Drop sequences."""
        for seq_id in ids:
            self.decref(self.sequences.pop(seq_id).table)

    def _blocks_needed(self, ids: list[int]) -> int:
        needed = 0
        for seq_id in ids:
            seq = self.sequences[seq_id]
            if seq.length % self.block_size == 0 or self.refs[seq.table[-1]] > 1:
                needed += 1
        return needed

    def append(self, ids: list[int]) -> PyStep:
        """Give every sequence one more token."""
        if self._blocks_needed(ids) > len(self.free):
            raise MemoryError("not enough free blocks")
        slots, positions, tables, kv_lens, copies = [], [], [], [], []
        for seq_id in ids:
            seq = self.sequences[seq_id]
            logical, offset = divmod(seq.length, self.block_size)
            if offset == 0:
                seq.table += self.allocate(1)
            elif self.refs[shared := seq.table[logical]] > 1:
                (seq.table[logical],) = self.allocate(1)
                self.refs[shared] -= 1
                copies.append((shared, seq.table[logical]))
            slots.append(seq.table[logical] * self.block_size + offset)
            positions.append(seq.length)
            seq.length += 1
            tables.append(seq.table)
            kv_lens.append(seq.length)
        return PyStep(
            np.array(slots, np.int64), np.array(positions, np.int64), tables, np.array(kv_lens, np.int32), copies
        )
