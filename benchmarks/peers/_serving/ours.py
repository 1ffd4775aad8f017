"""Our side: the NumPy runner of ``pagedcache.serving.models`` on a paged cache."""

import numpy as np

import pagedcache
from pagedcache import KVCache
from pagedcache.serving.models import load_model


def version():
    return f"pagedcache {pagedcache.__version__}, NumPy {np.__version__}"


class Side:
    """`count` sequences of at most `length` tokens each."""

    def __init__(self, options):
        self.model, _ = load_model(options.model)
        spec = self.model.cache_spec(dtype="float16" if options.kv == "f16" else "float32")
        blocks = options.count * spec.blocks_per_sequence(options.length)
        self.cache = KVCache(spec, num_blocks=blocks, threads=options.threads)
        self.ids = np.empty(0, np.int64)

    def prefill(self, prompts):
        """Add a sequence per prompt, in one step; the greedy token after each."""
        ids = self.cache.admit(prompts).ids
        self.ids = np.concatenate([self.ids, ids])
        return self._forward(ids, [len(prompt) for prompt in prompts], np.concatenate(prompts))

    def decode(self, tokens):
        """Give each sequence its next token; the greedy token after it."""
        return self._forward(self.ids, 1, np.array(tokens))

    def rewind(self, position):
        """Forget what comes after the first `position` tokens of each sequence."""
        self.cache.truncate(self.ids, [position] * len(self.ids))

    def _forward(self, ids, counts, tokens):
        step = self.cache.extend(ids, counts)
        logits = self.model.forward(tokens, step, self.cache)
        self.cache.commit(step, tokens)
        return logits.argmax(axis=-1).tolist()
