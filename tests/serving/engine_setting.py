"""What the tests of the engine share: prompts, ways to draw, and what came of requests."""

from pagedcache.serving import Sampling

PROMPTS = [[5, 6, 7], list(range(40)), [9], list(range(40, 73)), [1, 2, 3] * 8]
DRAWN = Sampling(temperature=1.0, seed=3)


def tokens_of(requests):
    return [completion.tokens for request in requests for completion in request.completions]


def joined(pieces):
    return [token for piece in pieces for token in piece.tokens]
