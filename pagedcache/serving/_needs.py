"""What prompts may come to hold in the worst case, found out before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks, OutOfSequences


@dataclass(frozen=True, slots=True)
class Need:
    """One prompt and the most that `branches` continuations of it take."""

    tokens: list[int]
    limit: int  # most new tokens of each continuation
    blocks: int  # that all of them hold together in the worst case: the prompt once, a tail of each


def needs_of(
    prompts: Sequence[Sequence[int]], branches: int, max_tokens: int, context: int, cache: KVCache
) -> list[Need]:
    """Tell what each prompt needs, or refuse them all.

    Parameters
    ----------
    prompts : sequence of sequences of int
        Token ids.
    branches : int
        Sequences that go on from each prompt.
    max_tokens : int
        Most new tokens of each of them.
    context : int
        Tokens, the longest sequence that the model was trained for.
    cache : KVCache

    Raises
    ------
    ValueError
        A prompt is empty or longer than the model's context, or may grow beyond the cache's max_length.
    OutOfBlocks, OutOfSequences
        A prompt would not fit into what the cache has free, even if alone.
    """
    free_blocks = cache.pool.num_free
    free_rows = cache.sequences.max_sequences - cache.sequences.num_sequences
    if prompts and branches > free_rows:
        raise OutOfSequences(f"{branches} sequences go on from one prompt; the cache has room for {free_rows}")
    needs = []
    for index, ids in enumerate(prompts):
        tokens = list(ids)
        length = len(tokens)
        if not 0 < length < context:
            raise ValueError(f"prompt {index} has {length} tokens; the model takes 1 to {context - 1}")
        limit = min(max_tokens, context - length)
        stored = length + limit - 1  # the last token is never computed
        longest = cache.spec.blocks_per_sequence(stored)
        blocks = longest + (branches - 1) * (longest - length // cache.spec.block_size)
        if blocks > free_blocks:
            raise OutOfBlocks(
                f"prompt {index} may need {blocks} blocks ({branches} x up to {length} + {limit} tokens), "
                f"{free_blocks} are free: give the cache more memory, or ask for fewer tokens or texts"
            )
        if stored > cache.sequences.max_length:
            raise ValueError(
                f"prompt {index} may grow to {stored} tokens; the cache's max_length is {cache.sequences.max_length}"
            )
        needs.append(Need(tokens, limit, blocks))
    return needs
