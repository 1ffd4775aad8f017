"""The kernels that are compiled without a GPU: those of the sizes that models have, and a few odd ones."""

from typing import NamedTuple

from pagedcache.backends.cuda import _kernels
from pagedcache.backends.cuda._kernels import Kernel

ARCHITECTURES = ("sm_80", "sm_90")
TENSOR = ("float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2")  # storage that tensor cores multiply
SIZES = (64, 80, 96, 128, 192, 256)


class Case(NamedTuple):
    """A kernel that attends."""

    family: str  # few, many64 or many128
    dtype: str
    size: int  # of K's and V's heads
    plain: bool  # without the variants of attention, of a size and an alignment that copies of 16 bytes suit
    kernel: Kernel

    def __str__(self):
        return self.kernel.name


def attention() -> list[Case]:
    """Return the kernels that attend."""
    found = [_case(family, dtype, size, full=full) for full in (False, True) for family, dtype, size in _usual()]
    for dtype in ("float16", "int8"):
        found.append(_case("few", dtype, 59))
        found.append(_case("many64", dtype, 59, full=True))
        found.append(_case("few", dtype, 128, aligned=False))
    return found


def others() -> list[Kernel]:
    """Return the kernels around attention."""
    return [
        _kernels.merge(),
        *(_kernels.store(dtype) for dtype in ("float32", *TENSOR)),
        *(_kernels.move(unit) for unit in (1, 4, 16)),
    ]


def _usual() -> list[tuple[str, str, int]]:
    few = [("few", dtype, size) for size in SIZES for dtype in ("float32", *TENSOR)]
    many64 = [("many64", dtype, size) for size in SIZES for dtype in TENSOR]
    many128 = [("many128", dtype, size) for size in SIZES if size <= 128 for dtype in TENSOR]
    return few + many64 + many128


def _case(family: str, dtype: str, size: int, *, aligned: bool = True, full: bool = False) -> Case:
    if family == "few":
        kernel = _kernels.few(dtype, size, size, aligned=aligned, full=full)
    else:
        kernel = _kernels.many(dtype, size, size, int(family[4:]), aligned=aligned, full=full)
    return Case(family, dtype, size, aligned and not full and size in SIZES, kernel)
