"""Instructions made ready to run: for each a function of a state and the lanes that execute it.

Branches, exits and the waiting of threads for each other are the machine's business; `team_of` tells it who has to be
there.
"""

from collections.abc import Callable

import numpy as np

from pagedcache.backends.cuda_emulated.ptx import _access, _warp
from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._operations import resolve
from pagedcache.backends.cuda_emulated.ptx._parse import DTYPES, Instruction, Name, Operand, Register, Vector
from pagedcache.backends.cuda_emulated.ptx._shared import WARP
from pagedcache.backends.cuda_emulated.ptx._state import Lanes, Reader, State, reader

__all__ = ["Run", "make_step", "team_of"]

Run = Callable[[State, Lanes], None]

BLOCK_WIDE = ("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync")
WARP_WIDE = ("bar.warp.sync", "shfl.sync", "vote.sync", "ldmatrix.sync", "mma.sync")
PRED, U32 = DTYPES["pred"], DTYPES["u32"]
EVERY_LANE = 0xFFFFFFFF


def team_of(opcode: str) -> str | None:
    """Return who has to be together for an instruction: ``block``, ``warp`` or nobody."""
    if opcode.startswith(BLOCK_WIDE):
        return "block"
    return "warp" if opcode.startswith(WARP_WIDE) else None


def make_step(instruction: Instruction) -> Run:
    """Return the function of an instruction."""
    base = instruction.opcode.split(".")[0]
    special = SPECIAL.get(base)
    if special is not None:
        return special(instruction)
    operation = resolve(instruction.opcode)
    if operation is None:
        raise PtxFault(f"{instruction.opcode} is not known")
    target, *sources = instruction.operands
    if not isinstance(target, Register) or len(sources) != len(operation.sources):
        raise PtxFault("operands of this kind are not known here")
    compute = operation.compute
    readers = [reader(source, dtype) for source, dtype in zip(sources, operation.sources, strict=True)]
    return lambda state, lanes: state.write(target, compute(*(read(state, lanes) for read in readers)), lanes)


def _move(instruction: Instruction) -> Run:
    """Make a step of mov: of a value, or of a value and its parts."""
    dtype = DTYPES[instruction.opcode.split(".")[-1]]
    target, source = instruction.operands
    if isinstance(source, Vector):
        part = np.dtype(f"u{dtype.itemsize // len(source.parts)}")
        readers = [reader(operand, part) for operand in source.parts]

        def pack(state: State, lanes: Lanes) -> None:
            parts = np.broadcast_arrays(*(read(state, lanes) for read in readers))
            state.write(_register(target), np.stack(parts, axis=1).view(dtype).reshape(-1), lanes)

        return pack
    read = reader(source, dtype)
    if isinstance(target, Vector):
        size = dtype.itemsize // len(target.parts)

        def unpack(state: State, lanes: Lanes) -> None:
            parts = np.ascontiguousarray(read(state, lanes)).view(f"u{size}").reshape(-1, len(target.parts))
            for i, register in enumerate(target.parts):
                if register != Name("_"):
                    state.write(_register(register), parts[:, i].copy(), lanes)

        return unpack
    return lambda state, lanes: state.write(_register(target), read(state, lanes), lanes)


def _whole(read: Reader, state: State, lanes: Lanes) -> Array:
    """Return an operand as [warps, 32]."""
    return np.broadcast_to(read(state, lanes), lanes.count).reshape(-1, WARP)


def _exchange(instruction: Instruction) -> Run:
    mode = instruction.opcode.split(".")[2]
    target, *sources = instruction.operands
    if isinstance(target, Vector):  # with a predicate, whether the source lane is in range: it always is
        target, inside = target.parts
    else:
        inside = Name("_")
    readers = [reader(source, U32) for source in sources]

    def run(state: State, lanes: Lanes) -> None:
        values, selector, clamp, members = (_whole(read, state, lanes) for read in readers)
        _require_every_lane(members)
        state.write(_register(target), _warp.exchange(mode, values, selector, clamp).ravel(), lanes)
        if isinstance(inside, Register):
            state.write(inside, np.ones(1, np.bool_), lanes)

    return run


def _vote(instruction: Instruction) -> Run:
    mode = instruction.opcode.split(".")[2]
    target, predicate, members = instruction.operands
    read, read_members = reader(predicate, PRED), reader(members, U32)

    def run(state: State, lanes: Lanes) -> None:
        _require_every_lane(read_members(state, lanes))
        state.write(_register(target), _warp.vote(mode, _whole(read, state, lanes)).ravel(), lanes)

    return run


def _barrier(instruction: Instruction) -> Run:
    """Make a step of a barrier, which those who have to be there have reached."""
    if team_of(instruction.opcode) == "block":
        if len(instruction.operands) > 1:
            raise PtxFault("a barrier of some of a block's threads is not known")
        return lambda state, lanes: state.shared.pass_barrier(lanes.index, "block")
    read = reader(instruction.operands[0], U32)

    def run(state: State, lanes: Lanes) -> None:
        _require_every_lane(read(state, lanes))
        state.shared.pass_barrier(lanes.index, "warp")

    return run


def _require_every_lane(members: Array) -> None:
    if (members != EVERY_LANE).any():
        raise PtxFault("an instruction of some of a warp's lanes is not known")


def _load_matrices(instruction: Instruction) -> Run:
    words = instruction.opcode.split(".")
    targets, address = instruction.operands
    if "x4" not in words or "m8n8" not in words or words[-1] != "b16":
        raise PtxFault("ldmatrix of another size than x4 is not known")
    locate = _access.address_reader(address, U32)

    def run(state: State, lanes: Lanes) -> None:
        loaded = _warp.load_matrices(state.shared, lanes.index, locate(state, lanes), "trans" in words)
        for register, value in zip(_parts(targets), loaded, strict=True):
            state.write(_register(register), value.ravel(), lanes)

    return run


def _multiply(instruction: Instruction) -> Run:
    words = instruction.opcode.split(".")
    shape, types = words[3:5], words[-4:]
    if (
        "m16n8k16" not in words
        or types[1] not in ("f16", "bf16")
        or types[0::3] != ["f32", "f32"]
        or types[1] != types[2]
    ):
        raise PtxFault(f"mma of {shape} and {types} is not known")
    targets = _parts(instruction.operands[0])
    left, right = ([reader(part, U32) for part in _parts(operand)] for operand in instruction.operands[1:3])
    addends = [reader(part, DTYPES["f32"]) for part in _parts(instruction.operands[3])]

    def run(state: State, lanes: Lanes) -> None:
        a, b, c = ([_whole(read, state, lanes) for read in readers] for readers in (left, right, addends))
        for register, value in zip(targets, _warp.multiply(types[1], a, b, c), strict=True):
            state.write(_register(register), value.ravel(), lanes)

    return run


def _nothing(instruction: Instruction) -> Run:
    return lambda state, lanes: None


def _parts(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def _register(operand: Operand) -> Register:
    if not isinstance(operand, Register):
        raise PtxFault("a result goes to no register")
    return operand


SPECIAL: dict[str, Callable[[Instruction], Run]] = {
    "mov": _move,
    "ld": _access.load,
    "st": _access.store,
    "cp": _access.copy,
    "cvta": _access.convert_address,
    "shfl": _exchange,
    "vote": _vote,
    "bar": _barrier,
    "barrier": _barrier,
    "ldmatrix": _load_matrices,
    "mma": _multiply,
    "bra": _nothing,
    "ret": _nothing,
    "exit": _nothing,
    "fence": _nothing,
    "membar": _nothing,
}
