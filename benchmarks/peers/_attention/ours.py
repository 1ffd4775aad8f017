"""pagedcache: a backend's `attend` and `write`, over storage that the backend allocated, one layer per buffer."""

from dataclasses import replace

import numpy as np

import pagedcache
from _attention import data
from _attention.cells import BLOCK_SIZE
from _attention.side import Side
from pagedcache import CacheSpec, KVCache
from pagedcache.backends import get
from pagedcache.core import Step

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


def version(options):
    isa = get(options.backend).capabilities.instruction_set
    return f"pagedcache {pagedcache.__version__}, backend {options.backend}{f' ({isa})' if isa else ''}"


def open_sides(cell, options):
    backend = get(options.backend)
    if cell.group == "append":
        return {"pagedcache": Append(cell, backend)}
    if cell.group == "tax":
        return tax_sides(cell, backend)
    sides = {"pagedcache": Attend(cell, backend)}
    if cell.dtype == "int8":
        sides["pagedcache bf16"] = Attend(replace(cell, dtype="bf16"), backend)
    if cell.group == "floor":
        sides["pagedcache KVCache"] = WholeCache(cell, options.backend)
    return sides


def tax_sides(cell, backend):
    """The same storage read by tables in order, at random, and as the allocator made them where the cell has those."""
    counts = [-(-n // BLOCK_SIZE) for n in cell.kv_lens]
    random = Attend(cell, backend)
    sides = {"pagedcache random": random}
    if cell.tables is not None:
        sides["pagedcache allocator"] = random.other(padded(cell.tables))
    in_order = np.split(np.arange(1, sum(counts) + 1), np.cumsum(counts)[:-1])
    sides["pagedcache sequential"] = random.other(padded(in_order))
    return sides


def padded(rows):
    tables = np.ones((len(rows), max(map(len, rows))), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row)] = row
    return tables


def bfloat16_type():
    """ml_dtypes' where installed; else None, and q is the cache's bits, or float32 beside int8."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def as_given(array, cell):
    """Values as a user has them: bfloat16 in its own type where there is one."""
    if array.dtype != np.uint16:
        return np.ascontiguousarray(array)
    if (own := bfloat16_type()) is not None:
        return np.ascontiguousarray(array).view(own)
    return data.widened(array) if cell.dtype == "int8" else np.ascontiguousarray(array)


class Paged(Side):
    """Storage of one layer per buffer; all layers have the same block tables, as in a model."""

    def __init__(self, cell, backend):
        super().__init__(cell)
        self.backend = backend
        tables, blocks = data.block_tables(cell, BLOCK_SIZE)
        self.tables = tables + 1  # block 0 is reserved
        blocks = max([blocks, *(max(row) for row in cell.tables or ())])
        spec = CacheSpec(self.buffers, *cell.heads[1:], dtype=DTYPES[cell.dtype], block_size=BLOCK_SIZE)
        self.storage = backend.allocate(spec, blocks)

    def _fill(self):
        cell = self.cell
        for layer in range(self.buffers):
            for i, table in enumerate(self.tables):
                k, v = (as_given(source(cell, layer, i), cell) for source in (data.keys, data.values))
                at = data.slots(table, BLOCK_SIZE, np.arange(cell.kv_lens[i]))
                self.backend.write(self.storage, layer, k, v, at)

    def memory(self):
        """The arrays of K and V, for the probe."""
        return [array for layer in range(self.buffers) for array in self.storage.view(layer)]


class Attend(Paged):
    def __init__(self, cell, backend):
        super().__init__(cell, backend)
        self._fill()
        self.q = as_given(data.queries(cell), cell)
        self.out = np.empty(self.q.shape, np.float32 if self.q.dtype == np.uint16 else self.q.dtype)

    def other(self, tables):
        """The same storage, attended to by other tables; outputs are those of other tokens, so they are not checked."""
        side = object.__new__(Attend)
        side.__dict__.update(self.__dict__, tables=tables, output=lambda: None)
        return side

    def prepare(self):
        """A new Step, as `extend` returns one, so that what a backend schedules once per step is counted."""
        self.step = Step.from_arrays(
            self.tables, self.cell.kv_lens, data.indptr(self.cell.q_lens), block_size=BLOCK_SIZE
        )

    def call(self, i):
        self.backend.attend(self.storage, i, self.q, self.step, scale=self.scale, out=self.out)

    def output(self):
        return self.out.astype(np.float32)


class Append(Paged):
    def __init__(self, cell, backend):
        super().__init__(cell, backend)
        self.k, self.v = (as_given(data.new_tokens(cell, 0, source), cell) for source in (data.keys, data.values))
        self.slots = data.new_slots(cell, self.tables, BLOCK_SIZE)
        for layer in range(self.buffers):  # touch every page
            for array in self.storage.view(layer):
                array.view(np.uint8)[1:] = 1

    def call(self, i):
        self.backend.write(self.storage, i, self.k, self.v, self.slots)

    def output(self):
        stored = self.storage.view(0)[0].reshape(-1, *self.cell.heads[1:])[self.slots]
        if stored.tobytes() != self.k.tobytes():
            raise AssertionError("what was written is not what is stored")


class WholeCache(Side):
    """`KVCache.attend`, which writes the new token's K and V and attends: all that a model calls in a layer."""

    def __init__(self, cell, backend):
        super().__init__(cell)
        spec = CacheSpec(self.buffers, *cell.heads[1:], dtype=DTYPES[cell.dtype], block_size=BLOCK_SIZE)
        context = cell.kv_lens[0]
        self.cache = KVCache(spec, num_blocks=1 + context // BLOCK_SIZE, backend=backend, max_sequences=1)
        self.ids = self.cache.admit([np.arange(context)]).ids
        self.q, self.k, self.v = (
            as_given(rows[-1:], cell) for rows in (data.queries(cell), data.keys(cell, 0, 0), data.values(cell, 0, 0))
        )
        self.out = np.empty(self.q.shape, np.float32 if self.q.dtype == np.uint16 else self.q.dtype)
        if context > 1:
            self.cache.commit(self.cache.extend(self.ids, context - 1), None)
        self.step = self.cache.extend(self.ids, 1)

    def call(self, i):
        self.cache.attend(i, self.q, self.k, self.v, self.step, scale=self.scale, out=self.out)

    def output(self):
        return None
