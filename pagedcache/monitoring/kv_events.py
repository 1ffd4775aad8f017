"""Events of a prefix cache as bytes, in the schema that vLLM defined and routers read.

A batch is an array of three: the time, the events, the rank of the cache among its replicas. The schema has two forms
of an event, and consumers of today take both::

    map     {"type": "BlockStored", "block_hashes": [..], "parent_block_hash": .., ...}      vLLM since 0.24
    array   ["BlockStored", [..], .., ...]                                                   before, same order

Field names, their order and the form of block hashes are those of ``vllm/distributed/kv_events.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from pagedcache.core import EventKind
from pagedcache.keys import Namespace
from pagedcache.monitoring._extras import needed

__all__ = ["encode_events"]

FORMS = ("map", "array")
HASHES = ("int", "bytes")


@dataclass(slots=True)
class _Run:
    """Events of one kind that the schema tells as one: a chain of blocks stored, or blocks removed."""

    kind: int
    parent: bytes = b""
    adapter: bytes = b""
    digests: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def encode_events(
    events: NDArray[Any],
    block_size: int,
    *,
    time: float,
    namespace: Namespace | bytes | str | None = None,
    rank: int = 0,
    form: Literal["map", "array"] = "map",
    hashes: Literal["int", "bytes"] = "int",
    medium: str | None = None,
) -> bytes | None:
    """One namespace's share of what ``cache.events()`` returned, as a msgpack KVEventBatch.

    Parameters
    ----------
    events : structured array [n]
        As from ``cache.events()``.
    block_size : int
        Tokens per block.
    time : float
        Seconds since the epoch, for the batch.
    namespace : Namespace, bytes, str or None
        Whose events; those of others are left out. CLEARED is for everybody.
    rank : int
        The cache's number among replicas of one worker.
    form : {"map", "array"}
        How an event is written; see the module.
    hashes : {"int", "bytes"}
        A block's hash as the last 8 bytes of its digest, an unsigned big-endian number, which every consumer takes; or
        as the whole digest, which few do.
    medium : str, optional
        Where the blocks are, such as ``"GPU"`` or ``"CPU"``. Consumers take None for the memory that attention reads,
        and ``"CPU"`` for a slower place.

    Returns
    -------
    bytes or None
        None where there is nothing to tell.

    Raises
    ------
    ImportError
        The extra ``events`` is not installed.
    ValueError
        Another form than these.

    Notes
    -----
    Without ``events="tokens"`` the list of token ids is empty: consumers that know blocks by digest can follow, those
    that hash tokens themselves cannot. Blocks that a salt, an image or another key tells apart are left out, and what
    continues them: consumers that hash token ids would take them for the plain ones. An adapter from the first token on
    is the schema's ``lora_name``. Blocks that only moved are no news.

    Examples
    --------
    >>> from msgspec import msgpack
    >>> from pagedcache import CacheSpec, KVCache
    >>> from pagedcache.core import EventKind
    >>> cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4), num_blocks=8, events="tokens")
    >>> ids = cache.admit([[1, 2, 3, 4, 5]]).ids
    >>> cache.commit(cache.extend(ids, 5), [1, 2, 3, 4, 5])
    1
    >>> _, [stored], rank = msgpack.decode(encode_events(cache.events(), 4, time=0.0))
    >>> stored["type"], stored["parent_block_hash"], stored["token_ids"], rank
    ('BlockStored', None, [1, 2, 3, 4], 0)
    """
    if form not in FORMS or hashes not in HASHES:
        raise ValueError(f"form is {form!r} and hashes {hashes!r}; they are one of {FORMS} and one of {HASHES}")
    name = Namespace.of(namespace).name
    has_tokens = "tokens" in (events.dtype.names or ())

    def hash_of(digest: bytes) -> int | bytes:
        return digest if hashes == "bytes" else int.from_bytes(digest[-8:], "big")

    def written(run: _Run) -> Any:
        if run.kind == EventKind.CLEARED:
            fields: dict[str, Any] = {"type": "AllBlocksCleared"}
        elif run.kind == EventKind.REMOVED:
            fields = {"type": "BlockRemoved", "block_hashes": [hash_of(d) for d in run.digests], "medium": medium}
        else:
            fields = {
                "type": "BlockStored",
                "block_hashes": [hash_of(d) for d in run.digests],
                "parent_block_hash": hash_of(run.parent) if any(run.parent) else None,
                "token_ids": events["tokens"][run.rows].ravel().tolist() if has_tokens else [],
                "block_size": block_size,
                "lora_id": None,
                "medium": medium,
                "lora_name": run.adapter.decode(errors="backslashreplace") or None,
            }
        return fields if form == "map" else list(fields.values())

    batch = [written(run) for run in _runs(events, name)]
    return needed("msgspec.msgpack", "events").encode([time, batch, rank]) if batch else None


def _runs(events: NDArray[Any], name: bytes | str) -> Iterator[_Run]:
    """What the namespace is told, in order."""
    columns = ("kind", "digest", "parent", "namespace", "adapter", "keyed")
    last = _Run(0)
    for row, event in enumerate(zip(*(events[column].tolist() for column in columns), strict=True)):
        kind, digest, parent, owner, adapter, keyed = event
        if kind != EventKind.CLEARED and (kind == EventKind.MOVED or owner != name or keyed):
            continue
        goes_on = kind == last.kind and kind != EventKind.CLEARED
        if kind == EventKind.STORED and goes_on:
            goes_on = parent == last.digests[-1]  # and so it has the same adapter
        if not goes_on:
            if last.kind:
                yield last
            last = _Run(kind, parent, adapter)
        last.digests.append(digest)
        last.rows.append(row)
    if last.kind:
        yield last
