"""Instructions that reach memory: ld, st, cp.async, and the conversion of addresses.

The addresses of global memory, parameters and the module's variables are those of arrays of the host. Shared memory of
a block and local memory of a thread start at 0; as generic addresses they lie in windows that the host does not use.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault, among
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._parse import (
    DTYPES,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Vector,
)
from pagedcache.backends.cuda_emulated.ptx._state import Lanes, Reader, State, reader

__all__ = ["address_reader", "convert_address", "copy", "load", "store"]

Run = Callable[[State, Lanes], None]
DType = np.dtype[Any]

U32, U64 = DTYPES["u32"], DTYPES["u64"]
HOST = "host"
SPACES = {"global": HOST, "const": HOST, "param": HOST, "shared": "shared", "local": "local"}
WINDOWS = {HOST: 0, "shared": 1 << 60, "local": 1 << 61}


def load(instruction: Instruction) -> Run:
    """Make a step of ld."""
    space, dtype = _variant(instruction)
    target, source = instruction.operands
    registers = target.parts if isinstance(target, Vector) else (target,)
    locate = address_reader(source, U64)

    def load_from(state: State, lanes: Lanes, space: str, address: Array) -> None:
        if space == HOST:
            values = state.memory.load(address, dtype, len(registers))
        elif space == "shared":
            values = state.shared.load(lanes.index, address, dtype, len(registers))
        else:
            values = state.local.load(lanes.index, address, dtype, len(registers))
        for register, value in zip(registers, values, strict=True):
            if isinstance(register, Register):
                state.write(register, value, lanes)

    return _in_space(space, locate, load_from)


def store(instruction: Instruction) -> Run:
    """Make a step of st."""
    space, dtype = _variant(instruction)
    target, source = instruction.operands
    readers = [reader(part, dtype) for part in (source.parts if isinstance(source, Vector) else (source,))]
    locate = address_reader(target, U64)

    def store_to(state: State, lanes: Lanes, space: str, address: Array) -> None:
        values = [read(state, lanes) for read in readers]
        if space == HOST:
            state.memory.store(address, values)
        elif space == "shared":
            state.shared.store(lanes.index, address, values)
        else:
            state.local.store(lanes.index, address, values)

    return _in_space(space, locate, store_to)


def copy(instruction: Instruction) -> Run:
    """Make a step of cp.async and what belongs to it."""
    _, kind, what, *_ = *instruction.opcode.split("."), ""
    operands = instruction.operands
    if (kind, what) == ("async", "commit_group"):
        return lambda state, lanes: state.copies.commit(lanes.index)
    if (kind, what) == ("async", "wait_group"):
        pending = reader(operands[0], U32)
        return lambda state, lanes: state.copies.wait(lanes.index, int(pending(state, lanes)[0]))
    if kind != "async" or what not in ("ca", "cg") or not isinstance(operands[2], Immediate):
        raise PtxFault(f"{instruction.opcode} is not known")
    to, source, size = address_reader(operands[0], U64), address_reader(operands[1], U64), operands[2].value
    read = reader(operands[3] if len(operands) > 3 else operands[2], U32)

    def run(state: State, lanes: Lanes) -> None:
        count = np.broadcast_to(read(state, lanes), lanes.count)
        state.copies.issue(lanes.index, to(state, lanes), source(state, lanes), size, count)

    return run


def convert_address(instruction: Instruction) -> Run:
    """Make a step of cvta: to a generic address from one of a space, or back with ``to``."""
    words = instruction.opcode.split(".")[1:]
    space = next((SPACES[word] for word in words if word in SPACES), HOST)
    target, source = instruction.operands
    read, window = reader(source, U64), np.uint64(WINDOWS[space])
    if not isinstance(target, Register):
        raise PtxFault("a result goes to no register")
    if "to" in words:
        return lambda state, lanes: state.write(target, read(state, lanes) - window, lanes)
    return lambda state, lanes: state.write(target, read(state, lanes) + window, lanes)


def address_reader(operand: Operand, dtype: DType) -> Reader:
    """Return a function that gives an address of every lane."""
    if not isinstance(operand, Address):
        raise PtxFault("an address is needed")
    read = reader(operand.base, dtype)
    offset = np.array(operand.offset).astype(np.int64).astype(dtype)

    def locate(state: State, lanes: Lanes) -> Array:
        address: Array = read(state, lanes) + offset
        return address if address.size == lanes.count else np.broadcast_to(address, lanes.count)

    return locate


def _variant(instruction: Instruction) -> tuple[str | None, DType]:
    """Return the space that an opcode names, and the type that it ends with."""
    words = instruction.opcode.split(".")
    space = next((SPACES[word.split("::")[0]] for word in words if word.split("::")[0] in SPACES), None)
    return space, DTYPES[words[-1]]


def _in_space(space: str | None, locate: Reader, reach: Callable[[State, Lanes, str, Array], None]) -> Run:
    """Return a step that reaches a space; where none is named, each of those that the lanes' addresses lie in."""
    if space is not None:
        return lambda state, lanes: reach(state, lanes, space, locate(state, lanes))

    def run(state: State, lanes: Lanes) -> None:
        address = locate(state, lanes)
        for name, window in WINDOWS.items():
            here = address >> np.uint64(60) == window >> 60
            with among(here):
                if not here.any():
                    continue
                reach(state, Lanes(lanes.index[here], state.threads), name, address[here] - np.uint64(window))

    return run
