"""What prompts may come to hold in the worst case, found out before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagedcache.cache import KVCache
from pagedcache.core import Admission
from pagedcache.errors import OutOfBlocks, OutOfSequences


@dataclass(frozen=True, slots=True)
class Need:
    """What one prompt and the most that may follow it take."""

    length: int  # tokens of the prompt
    limit: int  # most new tokens of each continuation
    blocks: int  # that all of them hold together in the worst case: the prompt once, a tail of each


class Room(NamedTuple):
    """What a cache has to give."""

    blocks: int
    rows: int  # sequences


def room_in(cache: KVCache) -> Room:
    """Return what is free."""
    return Room(cache.pool.num_free, cache.sequences.max_sequences - cache.sequences.num_sequences)


def blocks_of(cache: KVCache, length: int) -> int:
    """Return how many blocks a sequence of so many tokens takes."""
    return cache.spec.blocks_per_sequence(length, steps_in_flight=cache.sequences.steps_in_flight)


def without_head(cache: KVCache, admission: Admission) -> int:
    """Give up what one prompt found of a block that it does not share whole; return the tokens that it found.

    Until its first step closes, a sequence holds that block beside all that it was promised.
    """
    found = int(admission.cached[0])
    whole = found - found % cache.spec.block_size
    if whole < found:
        cache.truncate(admission.ids, [whole])
    return whole


def needs_of(
    prompts: Sequence[Sequence[int]], branches: int, max_tokens: int, context: int, cache: KVCache
) -> list[Need]:
    """Tell what each prompt needs of what the cache has free, or refuse them all; see `need_of`."""
    room = room_in(cache)
    return [
        need_of(f"prompt {index}", len(ids), branches, branches, max_tokens, context, cache, room)
        for index, ids in enumerate(prompts)
    ]


def need_of(
    name: str,
    length: int,
    branches: int,
    together: int,
    max_tokens: int,
    context: int,
    cache: KVCache,
    room: Room,
) -> Need:
    """Tell what a prompt needs, or refuse it.

    Parameters
    ----------
    name : str
        Of the prompt, for messages.
    length : int
        Tokens of the prompt.
    branches : int
        Sequences that go on from it.
    together : int
        How many of them have to be in the cache at the same time.
    max_tokens : int
        Most new tokens of each of them.
    context : int
        Tokens, the longest sequence that the model was trained for.
    cache : KVCache
    room : Room
        What there is for it, if nothing else of the caller's runs.

    Raises
    ------
    ValueError
        The prompt is empty or longer than the model's context, or may grow beyond the cache's max_length.
    OutOfBlocks, OutOfSequences
        It would not fit, even if alone.
    """
    free_blocks, free_rows = room
    if branches > free_rows:
        raise OutOfSequences(f"{branches} sequences go on from one prompt; the cache has room for {free_rows}")
    if not 0 < length < context:
        raise ValueError(f"{name} has {length} tokens; the model takes 1 to {context - 1}")
    limit = min(max_tokens, context - length)
    stored = length + limit - 1  # the last token is never computed
    longest = blocks_of(cache, stored)
    tail = longest - length // cache.spec.block_size
    if (least := longest + (together - 1) * tail) > free_blocks:
        raise OutOfBlocks(
            f"{name} may need {least} blocks ({together} x up to {length} + {limit} tokens), {free_blocks} are free: "
            "give the cache more memory, or ask for fewer tokens or texts"
        )
    if stored > cache.sequences.max_length:
        raise ValueError(f"{name} may grow to {stored} tokens; the cache's max_length is {cache.sequences.max_length}")
    return Need(length, limit, longest + (branches - 1) * tail)
