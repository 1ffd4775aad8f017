"""What is measured, what it has to move and to compute, and what it is meant to reach."""

from dataclasses import dataclass, replace

import numpy as np

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3": 1}
HEADS = (32, 8, 128)  # query heads, key/value heads, head size
OTHER_HEADS = ((32, 32, 128), (9, 3, 64), (8, 1, 256))

# Fractions of the measured copy bandwidth at float16, A100 and H200, by sequences and their length: from a model of how
# blocks share the memory, times 0.92; B >= 32 with the same K and V come to the same.
DECODE_TARGETS = {
    (1, 1024): (0.18, 0.08), (1, 8192): (0.62, 0.45), (1, 32768): (0.82, 0.72), (8, 1024): (0.62, 0.45),
    (8, 8192): (0.86, 0.80), (32, 2048): (0.86, 0.80), (64, 1024): (0.86, 0.80), (64, 8192): (0.90, 0.86),
    (128, 2048): (0.90, 0.86), ("zipf", 64): (0.85, 0.78), ("zipf", 128): (0.90, 0.86),
}  # fmt: skip
EIGHT_BITS = 0.80  # of these where numbers take one byte
PREFILL_TARGETS = (0.55, 0.38)  # of the measured rate of dense products
GPUS = ("A100", "H200")


@dataclass(frozen=True)
class Case:
    """Sequences of `kv_lens` tokens, the last `q_lens` of which are queries."""

    name: str
    heads: tuple[int, int, int]
    dtype: str
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    block_size: int = 16
    target: object = None  # key into DECODE_TARGETS

    @property
    def key(self):
        return f"{'/'.join(map(str, self.heads))} {self.dtype} {self.name} page {self.block_size}"

    @property
    def nbytes(self):
        """K and V with their scales, q, out and block tables, each once."""
        q_heads, kv_heads, size = self.heads
        row = size * ITEM_BYTES[self.dtype] + (4 if ITEM_BYTES[self.dtype] == 1 else 0)
        tables = 4 * sum(-(-n // self.block_size) for n in self.kv_lens)
        return 2 * sum(self.kv_lens) * kv_heads * row + 2 * sum(self.q_lens) * q_heads * size * 2 + tables

    @property
    def flops(self):
        """Of both products, over the visible keys only."""
        seen = sum(q * (kv - q) + q * (q + 1) // 2 for kv, q in zip(self.kv_lens, self.q_lens, strict=True))
        return 4 * seen * self.heads[0] * self.heads[2]

    @property
    def decodes(self):
        return set(self.q_lens) == {1}

    @property
    def uniform(self):
        return len(set(self.kv_lens)) == 1

    @property
    def targets(self):
        """Fractions on each of GPUS; None where there is no target."""
        if not self.decodes:
            return PREFILL_TARGETS
        found = DECODE_TARGETS.get(self.target)
        return found and tuple(f * (EIGHT_BITS if ITEM_BYTES[self.dtype] == 1 else 1) for f in found)

    def shrunk(self, factor):
        """The same with lengths divided, and at most 3 sequences of one key/value head."""
        group = self.heads[0] // self.heads[1]
        lens = [tuple(max(1, n // factor) for n in some[:3]) for some in (self.kv_lens, self.q_lens)]
        return replace(self, heads=(group, 1, self.heads[2]), kv_lens=lens[0], q_lens=lens[1])


def decode(batch, length, dtype="float16", heads=HEADS, block_size=16):
    return Case(f"{batch}x{length}", heads, dtype, (length,) * batch, (1,) * batch, block_size, (batch, length))


def zipf(batch, dtype="float16"):
    """Lengths from 64 to 16384, few of them long."""
    lens = np.clip(64 * np.random.default_rng(3).zipf(1.5, batch), 64, 16384)
    return Case(f"{batch} of 64..16384", HEADS, dtype, tuple(lens.tolist()), (1,) * batch, 16, ("zipf", batch))


def prefill(length, dtype="float16"):
    return Case(f"prefill {length}", HEADS, dtype, (length,), (length,))


def decodes():
    """The decode table, what matters most first."""
    batches = [key for key in DECODE_TARGETS if key[0] != "zipf"]
    for batch, length in batches:
        yield decode(batch, length)
    yield from (zipf(64), zipf(128))
    for dtype in ("bfloat16", "int8", "float8_e4m3"):
        for batch, length in ((1, 8192), (8, 8192), (64, 1024), (64, 8192)):
            yield decode(batch, length, dtype)
    for heads in OTHER_HEADS:
        for batch, length in ((1, 8192), (8, 8192), (64, 2048)):
            yield decode(batch, length, heads=heads)
    for block_size in (1, 64):
        for batch, length in ((8, 8192), (64, 1024)):
            yield decode(batch, length, block_size=block_size)
    yield from (zipf(64, "int8"), zipf(64, "bfloat16"))


def prefills():
    for dtype in ("float16", "bfloat16"):
        for length in (512, 2048, 4096, 8192):
            yield prefill(length, dtype)


def chosen(cases, shrink):
    """All cases; when they are to be small, the first of each kind."""
    if shrink == 1:
        return list(cases)
    kinds = {}
    for case in cases:
        kinds.setdefault((case.heads, case.dtype, case.block_size), case.shrunk(shrink))
    return list(kinds.values())
