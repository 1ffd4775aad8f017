"""A manager of pages with sequences over it, and what they should hold."""

import numpy as np

from pagedcache.simple import BlockManager, PagedAttention, SequenceManager
from pagedcache.testing import reference_attention

HEADS, DIM, PAGE = 2, 8, 4


class Setting:
    """A manager of `pages` pages, sequences over it, and the dense K/V that each should hold."""

    def __init__(self, pages=8, dtype="float32"):
        self.manager = BlockManager(pages, PAGE, HEADS, DIM, dtype=dtype)
        self.sequences = SequenceManager(self.manager)
        self.attention = PagedAttention(self.manager)
        self.random = np.random.default_rng(0)

    def token(self):
        return self.random.standard_normal((2, HEADS, DIM), dtype=np.float32)

    def fill(self, seq_id, count):
        """Make a sequence of `count` random tokens; their K/V [2, count, heads, dim]."""
        self.sequences.create_sequence(seq_id)
        tokens = [self.token() for _ in range(count)]
        for position, (key, value) in enumerate(tokens):
            self.sequences.append_kv(seq_id, position, key, value)
        return np.stack(tokens, axis=1) if tokens else np.zeros((2, 0, HEADS, DIM), np.float32)

    def stored(self, seq_id):
        """K/V [2, tokens, heads, dim] as they lie in the pages of a sequence."""
        table = self.sequences.sequences[seq_id]
        pages = [self.manager.pages[table.get_physical_page(i)] for i in range(-(-table.num_tokens // PAGE))]
        empty = np.zeros((0, HEADS, DIM))
        both = [np.concatenate([empty, *(getattr(p, kind) for p in pages)]) for kind in ("keys", "values")]
        return np.stack(both)[:, : table.num_tokens]

    def state(self):
        """Everything that a refused call may not change."""
        counts = [page.ref_count for page in self.manager.pages]
        tables = {name: (dict(t.logical_to_physical), t.num_tokens) for name, t in self.sequences.sequences.items()}
        kv = {name: self.stored(name).tobytes() for name in tables}
        return counts, self.manager.free_pages, self.manager.allocated_pages, tables, kv


def dense(query, kv):
    """float64 attention of independent queries [batch, q_heads, dim] over K/V [2, tokens, heads, dim]."""
    return np.concatenate([reference_attention(each[None], *kv)[0] for each in query])
