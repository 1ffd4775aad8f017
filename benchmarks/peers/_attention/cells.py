"""What is measured: a cell is one ragged batch of one shape and storage type."""

from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
HEADS = ((32, 8, 128), (32, 32, 128), (9, 3, 64), (8, 1, 256))  # query heads, key/value heads, head size
BATCHES, CONTEXTS = (1, 8, 32), (512, 2048, 8192)
GROUPS = ("decode", "tax", "ragged", "mixed", "floor", "prefill", "append")
BLOCK_SIZE = 16  # ours; peers that want other sizes say so in their names


@dataclass(frozen=True)
class Cell:
    """Sequences of `kv_lens` tokens, the last `q_lens` of which are queries (in group "append": are written).

    `tables` are the block tables of an allocator at work, where the cell is about them.
    """

    group: str
    heads: tuple[int, int, int]
    dtype: str  # int8 stands for 8 bits a number: peers without int8 take fp8
    name: str  # within its group
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...] | None = None

    @property
    def label(self):
        return f"{'/'.join(map(str, self.heads))} {self.dtype} {self.name}"

    @property
    def words(self):
        """What ``--cells`` can choose it by, one word per field."""
        return self.group, "/".join(map(str, self.heads)), self.dtype, self.name

    @property
    def decodes(self):
        return set(self.q_lens) == {1}

    @property
    def uniform(self):
        """Whether a dense cache can hold it without padding."""
        return len(set(self.kv_lens)) == len(set(self.q_lens)) == 1

    @property
    def kv_bytes(self):
        """K and V of all sequences, once; of the new tokens alone where they are only written."""
        tokens = sum(self.q_lens if self.group == "append" else self.kv_lens)
        return 2 * tokens * self.heads[1] * self.heads[2] * ITEM_BYTES[self.dtype]

    @property
    def pool_bytes(self):
        return 2 * sum(self.kv_lens) * self.heads[1] * self.heads[2] * ITEM_BYTES[self.dtype]

    @property
    def flops(self):
        """Of both products, over the visible keys only."""
        seen = sum(q * (kv - q) + q * (q + 1) // 2 for kv, q in zip(self.kv_lens, self.q_lens, strict=True))
        return 0 if self.group == "append" else 4 * seen * self.heads[0] * self.heads[2]

    @property
    def buffers(self):
        """Caches to rotate over, so that K and V come from memory: 100 MB of them, but at most 64."""
        return min(64, -(-100_000_000 // self.pool_bytes))

    def shrunk(self, factor):
        """The same cell with lengths divided by `factor`, at least 1: for trying whether everything works."""
        shorter = [tuple(max(1, n // factor) for n in lens) for lens in (self.kv_lens, self.q_lens)]
        return replace(self, kv_lens=shorter[0], q_lens=shorter[1])

    def as_dict(self):
        return asdict(self)

    @classmethod
    def from_dict(cls, fields):
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists})


def decode(heads, dtype, batch, context, group="decode"):
    return Cell(group, heads, dtype, f"{batch}x{context}", (context,) * batch, (1,) * batch)


def ragged(heads, dtype, chunk=1):
    """32 sequences of log-uniform lengths, 44k tokens; with a `chunk`, the longest one brings so many new tokens."""
    lens = np.exp(np.random.default_rng(7).uniform(np.log(16), np.log(8192), 32)).astype(int)
    queries = np.ones(32, int)
    queries[lens.argmax()] = chunk
    name = "32 of 16..8192" if chunk == 1 else f"31+{chunk}"
    return Cell("ragged" if chunk == 1 else "mixed", heads, dtype, name, tuple(lens.tolist()), tuple(queries.tolist()))


def every_cell():
    """All cells; those named "churn" are empty until `churned` has filled them in."""
    for heads, dtype, context, batch in product(HEADS, ITEM_BYTES, CONTEXTS, BATCHES):
        yield decode(heads, dtype, batch, context)
    for heads, dtype in product(HEADS, ("fp32", "bf16")):
        yield decode(heads, dtype, 8, 2048, "tax")
        yield Cell("tax", heads, dtype, "churn", (), ())
    for heads, dtype, chunk in product((HEADS[0], HEADS[2]), ("fp32", "bf16"), (1, 512)):
        yield ragged(heads, dtype, chunk)
    for dtype in ("fp32", "bf16"):
        yield decode((9, 3, 64), dtype, 1, 16, "floor")
    yield decode((1, 1, 16), "fp32", 1, 1, "floor")
    for heads, dtype, tokens in product(HEADS, ("fp32", "bf16"), (512, 2048, 4096)):
        yield Cell("prefill", heads, dtype, f"{tokens}", (tokens,), (tokens,))
    for dtype in ("fp32", "bf16"):
        yield Cell("append", HEADS[0], dtype, "1x4096", (4096,), (4096,))
        yield Cell("append", HEADS[0], dtype, "256x1", (64,) * 256, (1,) * 256)


def quick(cell):
    """Whether the cell belongs to the subset of a minute or two."""
    if cell.group == "floor":
        return True
    if cell.heads not in ((32, 8, 128), (9, 3, 64)) or cell.dtype not in ("fp32", "bf16"):
        return False
    if cell.group == "prefill":
        return cell.name == "512" and cell.heads[0] == 32
    return cell.group == "append" or cell.name in ("1x512", "8x2048", "churn", "32 of 16..8192")


def churned(cell, steps=300):
    """Fill in a cell named "churn": the live sequences of our allocator after chat traffic at 90 % use of its pool."""
    from suites.churn import Churn  # needs pagedcache, which a peer's own environment may lack

    block_bytes = 2 * BLOCK_SIZE * cell.heads[1] * cell.heads[2] * ITEM_BYTES[cell.dtype]

    class Traffic(Churn):
        num_blocks = max(1024, min(8192, 2**28 // block_bytes))  # a pool of 256 MiB, or what fills a cache

    churn = Traffic(publish=True)
    churn.run(steps)
    step = churn.table.extend(churn.ids, 1)
    lens = tuple(step.kv_lens.tolist())
    rows = (row[: -(-n // BLOCK_SIZE)] for row, n in zip(step.block_tables, lens, strict=True))
    tables = tuple(tuple(row.tolist()) for row in rows)
    return replace(cell, kv_lens=lens, q_lens=(1,) * len(lens), tables=tables)


def choose(cells, words):
    """Keep the cells that match a word in each field for which there are words; ValueError for an unknown word."""
    cells = list(cells)
    known = [set(field) for field in zip(*(cell.words for cell in cells), strict=True)]
    for word in words:
        if not any(word in field for field in known):
            listed = "; ".join(" ".join(sorted(field)) for field in known)
            raise ValueError(f"--cells {word!r} names no cell; there are: {listed}")
    wanted = [field & set(words) or field for field in known]
    return [c for c in cells if all(word in some for word, some in zip(c.words, wanted, strict=True))]
