"""The ceiling of an append: the same bytes copied by memcpy to one place, by one thread and by all."""

import ctypes

import numpy as np

from _attention import data, probe
from _attention.side import Side, Unsupported


def version(options):
    return "memcpy of the C library"


def open_sides(cell, options):
    if cell.group != "append":
        raise Unsupported("copies only")
    return {"memcpy 1 thread": Copy(cell, 1), f"memcpy {options.threads} threads": Copy(cell, options.threads)}


class Copy(Side):
    def __init__(self, cell, threads):
        super().__init__(cell)
        self.source = [np.ascontiguousarray(data.new_tokens(cell, 0, kind)) for kind in (data.keys, data.values)]
        shape = (sum(cell.kv_lens), *cell.heads[1:])  # room as the caches have, so that as much memory is rotated over
        self.rooms = [[data.huge_array(shape, array.dtype) for array in self.source] for _ in range(self.buffers)]
        for array in (array for room in self.rooms for array in room):
            array[...] = 1
        self.copies = []
        for room in self.rooms:
            to = (ctypes.c_void_p * 2)(*(array.ctypes.data for array in room))
            source = (ctypes.c_void_p * 2)(*(array.ctypes.data for array in self.source))
            sizes = (ctypes.c_size_t * 2)(*(array.nbytes for array in self.source))
            self.copies.append((to, source, sizes, 2, 1, threads))
        self.copy = probe.library().copy_seconds

    def call(self, i):
        self.copy(*self.copies[i])

    def output(self):
        if not np.array_equal(self.rooms[0][0][: len(self.source[0])], self.source[0]):
            raise AssertionError("what was copied is not there")
