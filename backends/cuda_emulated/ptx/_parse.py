"""PTX text, taken apart: one entry's parameters, registers, shared and local memory, labels and instructions.

Only what NVRTC writes is understood: one instruction a line, and no functions besides entries.
"""

import re
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault

__all__ = [
    "DTYPES",
    "Address",
    "Constant",
    "Entry",
    "Immediate",
    "Instruction",
    "Name",
    "Operand",
    "Register",
    "Vector",
    "parse",
]

# .b types are bits: arithmetic on them is that of unsigned integers.
DTYPES: dict[str, np.dtype[np.generic]] = {
    "pred": np.dtype(np.bool_),
    **{f"{kind}{8 * size}": np.dtype(f"u{size}") for kind in "ub" for size in (1, 2, 4, 8)},
    **{f"s{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"f{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
}

ENTRY = r"\.entry\s+{name}\s*\((?P<parameters>.*?)\)(?P<directives>[^{{}}]*)\{{(?P<body>.*?)^\}}"
VARIABLE = re.compile(
    r"\.(?P<space>param|shared|local|const|global)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>[a-z]\d+)\s+"
    r"(?:\.ptr(?:\s+\.\w+)*\s+(?:\.align\s+\d+\s+)?)?(?P<name>[\w$]+)(?:\[(?P<count>\d*)\])?(?:\s*=\s*(?P<values>[^;]+))?"
)
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)")
FILE = re.compile(r"\.file\s+(\d+)\s+\"(?:[^\"]*/)?([^\"]+)\"")
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
INSTRUCTION = re.compile(r"(?:@(?P<negated>!?)(?P<guard>%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]")


@dataclass(frozen=True)
class Register:
    """A register of the entry."""

    index: int
    dtype: np.dtype[np.generic]
    name: str


@dataclass(frozen=True)
class Immediate:
    """A number in the text: an integer, or the bits of a float."""

    value: int


@dataclass(frozen=True)
class Name:
    """A special register, a label, a variable, or ``_`` for nothing."""

    name: str


@dataclass(frozen=True)
class Vector:
    """Operands in braces, or two with a bar between them."""

    parts: tuple["Operand", ...]


@dataclass(frozen=True)
class Address:
    """Operand in brackets: a place and bytes from there."""

    base: "Operand"
    offset: int


Operand: TypeAlias = Register | Immediate | Name | Vector | Address


@dataclass(frozen=True)
class Instruction:
    """One line."""

    line: int  # of the PTX, from 1
    source: str  # file and line of the CUDA source that it comes from; empty where the PTX does not say
    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool  # of the guard


@dataclass(frozen=True)
class Constant:
    """A variable of the module with its initial bytes."""

    data: bytes
    writable: bool


@dataclass
class Entry:
    """A kernel."""

    name: str
    parameters: dict[str, int] = field(default_factory=dict)  # offset in bytes
    parameter_bytes: int = 0
    registers: dict[str, Register] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)  # offset in bytes
    shared_bytes: int = 0  # before the memory that a launch asks for
    launch_shared: dict[str, int] = field(default_factory=dict)  # alignment of names for what a launch asks for
    local: dict[str, int] = field(default_factory=dict)  # offset in bytes
    local_bytes: int = 0  # of a thread
    constants: dict[str, Constant] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # index of an instruction


def parse(text: str, name: str) -> Entry:
    """Return the entry of this name."""
    text = re.sub(r"//[^\n]*", "", text)
    found = re.search(ENTRY.format(name=re.escape(name)), text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise PtxFault(f"the PTX has no entry {name}")
    entry = Entry(name)
    outside = re.sub(r"^\{.*?^\}", "", text, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"\.entry\s+[\w$]+\s*\(.*?\)", "", outside, flags=re.DOTALL)
    for part in (outside, found["parameters"], found["body"]):
        for variable in VARIABLE.finditer(part):
            _declare(entry, variable)
    first = text.count("\n", 0, found.start("body")) + 1
    lines = found["body"].split("\n")
    statements = [(first + i, statement) for i, line in enumerate(lines) for statement in _statements(line)]
    for _, statement in statements:
        if statement.startswith(".reg"):
            _declare_registers(entry, statement)
    files = dict(FILE.findall(text))
    source = ""
    for number, statement in statements:
        location = LOCATION.match(statement)
        if location:
            source = f"{files.get(location[1])}:{location[2]}"
        elif statement.endswith(":"):
            entry.labels[statement[:-1]] = len(entry.instructions)
        elif not statement.startswith("."):
            entry.instructions.append(_instruction(entry, number, source, statement))
    _place_launch_memory(entry)
    return entry


def _statements(line: str) -> list[str]:
    """Return what a line says; braces of a scope, which stand before a statement, are of no importance."""
    pieces = (piece.strip() for piece in line.split(";"))
    return [piece.lstrip("{} \t") for piece in pieces if piece.strip("{} \t")]


def _declare(entry: Entry, variable: re.Match[str]) -> None:
    """Give a variable its place in the memory of its kind."""
    if variable["count"] == "":
        entry.launch_shared[variable["name"]] = int(variable["align"] or 1)
        return
    size = DTYPES[variable["kind"]].itemsize
    align = int(variable["align"] or size)
    nbytes = size * int(variable["count"] or 1)
    if variable["space"] in ("const", "global"):
        entry.constants[variable["name"]] = _constant(variable, nbytes)
        return
    places, total = {
        "param": (entry.parameters, "parameter_bytes"),
        "shared": (entry.shared, "shared_bytes"),
        "local": (entry.local, "local_bytes"),
    }[variable["space"]]
    begin = -(-getattr(entry, total) // align) * align
    places[variable["name"]] = begin
    setattr(entry, total, begin + nbytes)


def _place_launch_memory(entry: Entry) -> None:
    """Put the memory that a launch asks for behind the rest."""
    for align in entry.launch_shared.values():
        entry.shared_bytes = -(-entry.shared_bytes // align) * align
    entry.shared.update(dict.fromkeys(entry.launch_shared, entry.shared_bytes))


def _constant(variable: re.Match[str], nbytes: int) -> Constant:
    size = DTYPES[variable["kind"]].itemsize
    try:
        numbers = [_number(number) for number in re.findall(r"[-\w]+", variable["values"] or "")]
    except ValueError:
        raise PtxFault(f"the value of {variable['name']} is not made of numbers") from None
    data = b"".join((number % (1 << 8 * size)).to_bytes(size, "little") for number in numbers)
    return Constant(data.ljust(nbytes, b"\0"), variable["space"] == "global")


def _declare_registers(entry: Entry, line: str) -> None:
    found = REGISTERS.fullmatch(line)
    if found is None:
        raise PtxFault(f"not understood: {line}")
    dtype = DTYPES[found[1]]
    for spelling in found[2].split(","):
        ranged = re.fullmatch(r"\s*([%\w]+)<(\d+)>\s*", spelling)
        names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [spelling.strip()]
        for name in names:  # scopes may have names in common
            if entry.registers.setdefault(name, Register(len(entry.registers), dtype, name)).dtype != dtype:
                raise PtxFault(f"{name} has two types")


def _instruction(entry: Entry, number: int, source: str, line: str) -> Instruction:
    found = INSTRUCTION.fullmatch(line)
    if found is None:
        raise PtxFault(f"line {number} is not understood: {line}")
    operands = tuple(_operand(entry, text) for text in OPERAND.findall(found["operands"]))
    guard = entry.registers[found["guard"]] if found["guard"] else None
    return Instruction(number, source, line, found["opcode"], operands, guard, bool(found["negated"]))


def _operand(entry: Entry, text: str) -> Operand:
    if text in entry.registers:
        return entry.registers[text]
    if text[0] == "{":
        return Vector(tuple(_operand(entry, part) for part in OPERAND.findall(text[1:-1])))
    if text[0] == "[":
        found = ADDRESS.fullmatch(text)
        if found is None:
            raise PtxFault(f"not an address: {text}")
        return Address(_operand(entry, found[1]), int(found[2] or "0", 0))
    if "|" in text:
        return Vector(tuple(_operand(entry, part) for part in text.split("|")))
    return Immediate(_number(text)) if text[0] in "-0123456789" else Name(text)


def _number(text: str) -> int:
    """Return an integer, or the bits of a float: 0f and 8 digits, 0d and 16."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    return int(text.rstrip("U"), 0)
