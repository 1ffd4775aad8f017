"""Bugs put into the kernels: each is an edit of one file, and somebody has to notice it.

`by` says who is asked: "results" runs the battery, whose scenes compare with the oracle while the emulator checks;
"threads" and "addresses" run `case`, a small one, under a sanitizer; "far" uses a pool of more than 2**31 elements.
"""

import re
from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # of backends/cuda/kernels
    right: str
    wrong: str
    by: str = "results"
    case: str = "small_few"

    def edited(self, text: str) -> str:
        """Return the text of the file with the bug, wherever its lines are broken."""
        edited, count = re.subn(r"\s+".join(map(re.escape, self.right.split())), lambda _: self.wrong, text, count=1)
        assert count, f"{self.file}.cuh has no such place: {self.right!r}"
        return edited


MUTANTS = [
    # who sees what
    Mutant("causal order off by one", "sight", "key > q.place)", "key > q.place + 1)"),
    Mutant("no end of the keys", "sight", "if (key >= item.end) return false;", ""),
    Mutant("window off by one", "sight", "at > q.position - p.window)", "at >= q.position - p.window)"),
    Mutant("bits of a mask in the other order", "sight", ">> (bit & 7) & 1", ">> (7 - (bit & 7)) & 1"),
    Mutant("slopes with the wrong sign", "sight", "x += q.slope *", "x -= q.slope *"),
    Mutant("all taken for seen by all", "sight", "if (q.place < high) high = q.place;", ""),
    Mutant("sinks forgotten", "sight", "at < p.sink_tokens ||", ""),
    # softmax
    Mutant("sum not corrected", "softmax", "sum[h] = sum[h] * correction[h] + all", "sum[h] = sum[h] + all"),
    Mutant(
        "largest of half a quad",
        "softmax",
        "most = pc_max(most, pc_exchange(most, 2));\n      const float base",
        "const float base",
    ),
    Mutant("sink logit twice", "softmax", "sum * kept + pc_exp2(sink - base)", "sum * kept + 2 * pc_exp2(sink - base)"),
    Mutant("scales of V not followed", "softmax", "correction[0] *= change;", ""),
    # products
    Mutant(
        "odd and even columns swapped",
        "product",
        "operands<0, 2>(codes[2 * x], T{})",
        "operands<1, 3>(codes[2 * x], T{})",
    ),
    Mutant("keys of the wrong half", "product", "lane % 8 + lane / 16 * 8", "lane % 8 + lane / 8 % 2 * 8"),
    Mutant("infinities for all", "product", "const bool seen = !(", "const bool seen = true || !("),
    # rows in memory
    Mutant(
        "wrong head of the group",
        "rows",
        "(i64)head * p.group + row % p.group",
        "(i64)head * p.group + row / p.group % p.group",
    ),
    Mutant("offsets of 32 bits", "rows", "(i64)block * p.k_block", "(i64)(int)((u32)block * (u32)p.k_block)", "far"),
    Mutant("tokens within a block forgotten", "rows", "+ (i64)within * p.k_slot", ""),
    Mutant("powers of two of a query lost", "rows", "(exponent + 1) << 23) *", "exponent << 23) *"),
    # copies beside the work
    Mutant("wait for one group too few", "few", "pc_copy_wait<STAGES - 1>();", "pc_copy_wait<STAGES>();"),
    Mutant("group not closed", "few", "pc_copy_commit();", "if (piece < count) pc_copy_commit();"),
    Mutant(
        "keys used before they are there",
        "many",
        "      pc_copy_wait<0>();\n      pc_sync_block();  // the keys",
        "      pc_sync_block();  // the keys",
    ),
    Mutant(
        "values used before they are there",
        "many",
        "      pc_copy_wait<0>();\n      pc_sync_block();  // the values",
        "      pc_sync_block();  // the values",
    ),
    # threads among each other
    Mutant("no barrier before offsets are read", "few", "pc_sync_warp();  // the offsets", "// the offsets", "threads"),
    Mutant("no barrier before offsets are overwritten", "few", "pc_sync_warp();  // nobody", "// nobody", "threads"),
    Mutant("no barrier after copies are waited for", "few", "pc_sync_warp();  // everyone", "// everyone", "threads"),
    Mutant(
        "no barrier before rings become results", "few", "pc_sync_block();  // the rings", "// the rings", "threads"
    ),
    Mutant(
        "scales copied before the last are read",
        "few",
        "        pc_sync_warp();  // the offsets",
        """
        if (Storage<T>::SCALED && lane < 16) copy_scales(at, scales(stage), 16, lane, mine, next, mine < item.end);
        pc_sync_warp();  // the offsets""",
        "threads",
        "small_codes",
    ),
    Mutant(
        "no barrier between warps that add up",
        "few",
        "        }\n      }\n      pc_sync_block();\n    }\n    for",
        "        }\n      }\n    }\n    for",
        "threads",
    ),
    Mutant(
        "no barrier before values are overwritten",
        "many",
        "pc_sync_block();  // the keys are there, and nobody reads",
        "// nobody reads",
        "threads",
        "small_many",
    ),
    Mutant(
        "a barrier that some do not reach",
        "many",
        "pc_sync_block();  // the values",
        "if (thread < 64) pc_sync_block();  // ",
    ),
    Mutant(
        "an exchange that some do not take part in",
        "softmax",
        "sum[h] += pc_exchange(sum[h], 1);",
        "if (sum[h] > 1) sum[h] += pc_exchange(sum[h], 1);",
    ),
    # lists
    Mutant(
        "entries of a table beyond its end",
        "few",
        "if (piece < count && token(piece) < item.end) next",
        "next",
        "addresses",
    ),
    Mutant("positions beyond the end", "sight", "&& key < item.end) x +=", ") x +=", "addresses", "small_many"),
    # merging and storing
    Mutant("parts of another head", "results", "(i64)head * units) * 16", "0) * 16"),
    Mutant("rows of a shared prefix from its begin", "merge", "row = m.shared_row + m.row + r", "row = m.row + r"),
    Mutant("parts merged without their weight", "merge", "sum += theirs * share", "sum += share"),
    Mutant("scale of the wrong range", "store", "return sizeof(T) > 1 ? 1 : 127;", "return sizeof(T) > 1 ? 1 : 128;"),
    Mutant(
        "codes cut off, not rounded", "store", "(size_bits + 0x7ffff + (size_bits >> 20 & 1)) >> 20", "size_bits >> 20"
    ),
    Mutant("the first token moved for all", "move", "p.source[i] + t * p.source_token", "p.source[i]"),
]
