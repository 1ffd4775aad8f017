"""The trace that both sides of ``allocator.py`` serve, what they are asked to do, and what is timed.

A side is a block manager behind four methods. It keeps the running sequences in a list of places: `admit` adds one at
the end, `release` moves the last ones into the places that fall empty, as engines with a persistent batch do.

    admit(prompt) -> int     look up, allocate, publish one prompt; cached tokens
    decode(tokens)           one more token for every running sequence, slots and tables ready for a kernel
    release(places)          finish the sequences at these places, given from the last to the first
    num_free -> int          blocks that nobody holds

Each times its manager's calls alone, with `meter`; what turns the shared input into the manager's types is not timed.
"""

from collections import defaultdict
from statistics import median
from time import thread_time_ns

import numpy as np

BLOCK_SIZE = 16


class Meter:
    """Thread CPU time of what runs ``with meter(verb):``, in seconds, one entry a time.

    CPU time of this thread, since others may be using the machine. Reading that clock is a system call, a good part of
    a short verb, so that what timing nothing takes is subtracted.
    """

    def __init__(self):
        self.seconds = defaultdict(list)
        self.cost = 0
        for _ in range(1000):
            with self("nothing"):
                pass
        self.cost = median(self.seconds.pop("nothing"))

    def __call__(self, verb):
        self.verb = verb
        return self

    def __enter__(self):
        self.start = thread_time_ns()

    def __exit__(self, *exception):
        end = thread_time_ns()
        self.seconds[self.verb].append((end - self.start) * 1e-9 - self.cost)


def make_prompts(n, *, seed=0, low=1000, high=8000, prefixes=64, share=0.7, vocab=128_000):
    """Make n int32 prompts of `low`..`high` tokens; `share` of them begin with one of `prefixes` of 512..2048."""
    rng = np.random.default_rng(seed)
    common = [rng.integers(0, vocab, rng.integers(512, 2049), dtype=np.int32) for _ in range(prefixes)]
    made = []
    for _ in range(n):
        prompt = rng.integers(0, vocab, rng.integers(low, high + 1), dtype=np.int32)
        if rng.random() < share:
            prefix = common[rng.integers(prefixes)][: len(prompt)]
            prompt[: len(prefix)] = prefix
        made.append(prompt)
    return made


class Trace:
    """Serves all prompts through one side: at most `running` at a time, 64 to 95 output tokens each.

    A step admits while there is room, decodes one token of every running sequence, and releases the finished ones.
    The schedule depends on the prompts alone, so that two sides do the same in every step.
    """

    def __init__(self, side, prompts, running):
        self.side, self.prompts, self.running = side, prompts, running
        self.rng = np.random.default_rng(1)  # of the output tokens
        self.left = []  # output tokens to go, by place
        self.cached = []  # cached tokens of each prompt, in order
        self.steps = self.sequence_steps = self.blocks = 0

    def advance(self, steps):
        """Do up to `steps` steps; False when every prompt is done."""
        for _ in range(steps):
            while len(self.left) < self.running and len(self.cached) < len(self.prompts):
                self._admit(self.prompts[len(self.cached)])
            if not self.left:
                return False
            self.side.decode(self.rng.integers(0, 128_000, len(self.left), dtype=np.int32))
            self.steps += 1
            self.sequence_steps += len(self.left)
            self.left = [n - 1 for n in self.left]
            finished = [place for place in reversed(range(len(self.left))) if self.left[place] == 0]
            if finished:
                self.side.release(finished)
                close_up(self.left, finished)
        return True

    def _admit(self, prompt):
        outputs = 64 + len(self.cached) % 32
        self.cached.append(self.side.admit(prompt))
        self.left.append(outputs)
        self.blocks += -(-(len(prompt) + outputs) // BLOCK_SIZE)

    @property
    def prompt_tokens(self):
        return sum(map(len, self.prompts))


def close_up(items, places):
    """Remove the items at `places`, given from the last to the first: the last item moves into each gap."""
    for place in places:
        items[place] = items[-1]
        items.pop()
