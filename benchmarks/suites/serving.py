"""The engine's own work in a step: who runs, slots and tables, tokens in and out. The model is a table of logits."""

import numpy as np

from .common import BLOCK_SIZE


class Constant:
    """A model whose logits are there already."""

    class config:
        context = 1 << 20
        vocab = 1 << 20

    def __init__(self, rows, vocab=8):
        self.logits = np.random.default_rng(0).random((rows, vocab), np.float32)

    def forward(self, tokens, step, cache, *, at=None):
        return self.logits[: step.num_sequences if at is None else len(at)]


def running_engine(sequences, tokens=64, **options):
    """Return an engine that decodes so many sequences, each with a long way to go."""
    from pagedcache import CacheSpec, KVCache
    from pagedcache.serving import Engine

    spec = CacheSpec(1, 1, 8, block_size=BLOCK_SIZE)
    cache = KVCache(spec, num_blocks=1 << 17, storage="metadata", max_sequences=sequences)
    engine = Engine(Constant(sequences), cache, step_tokens=1 << 16, **options)
    for token in range(sequences):
        engine.submit([token + 1] * tokens, max_tokens=8000)
    for _ in range(3):
        engine.step()
    return engine


class Scheduler:
    """One decode step."""

    params = (32, 256)
    param_names = ("sequences",)

    def setup(self, sequences):
        self.engine = running_engine(sequences)

    def time_step(self, sequences):
        self.engine.step()


class Admission:
    """256 requests of 64 tokens, from submission through their prompts to two tokens each."""

    def setup(self):
        self.prompts = np.random.default_rng(0).integers(0, 1 << 20, (256, 64)).tolist()

    def time_submit_and_run(self):
        from pagedcache import CacheSpec, KVCache
        from pagedcache.serving import Engine

        cache = KVCache(CacheSpec(1, 1, 8, block_size=BLOCK_SIZE), num_blocks=4096, storage="metadata")
        engine = Engine(Constant(256), cache, step_tokens=4096)
        for prompt in self.prompts:
            engine.submit(prompt, max_tokens=2)
        engine.run()
