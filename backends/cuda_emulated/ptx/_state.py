"""What threads have while they run: registers, special registers, and the memories that they reach."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._copies import Copies
from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array, Memory, Scratch
from pagedcache.backends.cuda_emulated.ptx._parse import Entry, Immediate, Name, Operand, Register
from pagedcache.backends.cuda_emulated.ptx._shared import WARP, Shared

__all__ = ["Lanes", "Reader", "State", "reader"]

POISON = np.uint8(0xFF)  # in a register's bytes where another branch wrote it

DType = np.dtype[Any]


class Lanes:
    """Threads that execute an instruction together: their numbers, ascending, among those of a state."""

    def __init__(self, index: Array, threads: int) -> None:
        self.index = index
        self.count = int(index.size)
        self.every = self.count == threads

    @cached_property
    def whole_warps(self) -> bool:
        """Whether no lane of a warp is missing."""
        if self.every:
            return True
        first, last = self.index[::WARP], self.index[WARP - 1 :: WARP]
        return self.count % WARP == 0 and bool((first % WARP == 0).all() and (last - first == WARP - 1).all())


class State:
    """Threads of a number of blocks, from block `first` of a grid on.

    Parameters
    ----------
    parameters
        Address of the entry's parameters.
    constants
        Addresses of the module's variables.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        first: int,
        blocks: int,
        grid: int,
        block_threads: int,
        shared_bytes: int,
        memory: Memory,
        parameters: int,
        constants: dict[str, int],
    ) -> None:
        self.threads = blocks * block_threads
        self.block_threads = block_threads
        self.block = np.repeat(np.arange(blocks), block_threads)
        self.memory = memory
        self.shared = Shared(self.threads, block_threads, entry.shared_bytes + shared_bytes)
        self.local = Scratch(self.threads, entry.local_bytes, "local")
        self.copies = Copies(self.threads, memory, self.shared)
        self.registers: list[Array | None] = [None] * len(entry.registers)
        thread = np.tile(np.arange(block_threads, dtype=np.uint32), blocks)
        one, zero = np.ones(1, np.uint32), np.zeros(1, np.uint32)
        self.names: dict[str, Array] = {
            "%tid.x": thread,
            "%ctaid.x": (first + self.block).astype(np.uint32),
            "%ntid.x": np.full(1, block_threads, np.uint32),
            "%nctaid.x": np.full(1, grid, np.uint32),
            "%laneid": thread % np.uint32(WARP),
        }
        for axis in "yz":
            self.names |= {f"%tid.{axis}": zero, f"%ctaid.{axis}": zero, f"%ntid.{axis}": one, f"%nctaid.{axis}": one}
        places = {name: parameters + offset for name, offset in entry.parameters.items()}
        for name, place in {**entry.shared, **entry.local, **places, **constants}.items():
            self.names[name] = np.full(1, place, np.uint64)

    def write(self, register: Register, value: Array, lanes: Lanes) -> None:
        """Let a register have a value, an array of one element or one per lane, for these lanes."""
        value = _fitted(value, register.dtype)
        if lanes.every:
            self.registers[register.index] = value if value.size == lanes.count else np.repeat(value, lanes.count)
            return
        old = self.registers[register.index]
        if old is None:  # arrays in registers may be shared: they never change
            new = np.full(self.threads * register.dtype.itemsize, POISON).view(register.dtype)
        else:
            new = old.copy()
        new[lanes.index] = value
        self.registers[register.index] = new


Reader = Callable[[State, Lanes], Array]


def reader(operand: Operand, dtype: DType) -> Reader:
    """Return a function that gives an operand as this type: an array of one element, or one per lane."""
    if isinstance(operand, Register):
        return _register_reader(operand, dtype)
    if isinstance(operand, Immediate):
        bits = operand.value % (1 << 8 * dtype.itemsize)
        constant = np.array([bits], f"u{dtype.itemsize}").view(dtype)
        return lambda state, lanes: constant
    if isinstance(operand, Name):
        return _name_reader(operand.name, dtype)
    raise PtxFault("an operand of this kind is not known here")


def _register_reader(register: Register, dtype: DType) -> Reader:
    def read(state: State, lanes: Lanes) -> Array:
        value = state.registers[register.index]
        if value is None:
            raise PtxFault(f"register {register.name} is read before anybody wrote it")
        return _fitted(value if lanes.every else value[lanes.index], dtype)

    return read


def _name_reader(name: str, dtype: DType) -> Reader:
    def read(state: State, lanes: Lanes) -> Array:
        value = state.names.get(name)
        if value is None:
            raise PtxFault(f"{name} is not known")
        return _fitted(value if lanes.every or value.size == 1 else value[lanes.index], dtype)

    return read


def _fitted(value: Array, dtype: DType) -> Array:
    """Return the bits as another type: the lowest of them, or extended by the sign that the value's type has."""
    have, want = value.dtype, dtype
    if have == want:
        return value
    if have.kind == "b" or want.kind == "b":
        raise PtxFault("a predicate is no number")
    if have.itemsize == want.itemsize:
        return value.view(want)
    if have.itemsize < want.itemsize:
        return value.astype(f"{'i' if have.kind == 'i' else 'u'}{want.itemsize}").view(want)
    return value.view(f"u{have.itemsize}").astype(f"u{want.itemsize}").view(want)
