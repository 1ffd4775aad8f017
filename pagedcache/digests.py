"""Portable names of cached blocks: SHA-256, chained from block to block.

Inside one process the prefix index compares tokens and keys themselves. What leaves the process, a file name in
a tier or an id in an event, is a digest that every process, platform and Python version computes alike. The
inputs are framed, so that no tokens, keys or fingerprints can be mistaken for others::

    root    SHA-256("pagedcache.root.v1"  | block_size u32 | len u32 | fingerprint)
    block   SHA-256("pagedcache.block.v1" | parent, 32 bytes | tokens u32 | len u32 | key | token ids, int32)

All integers are little-endian. ``key`` is `pagedcache.keys.frame` of what starts in the block, the namespace
included. Where the namespace has a secret, each SHA-256 is HMAC-SHA-256 with it: a keyed root alone would let who
has seen the digest of one block test guesses of the next.
"""

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache.core._convert import int32_array
from pagedcache.keys import Key, Namespace, block_keys

__all__ = ["DIGEST_SIZE", "block_digest", "prompt_digests", "root_digest"]

DIGEST_SIZE = 32  # bytes

_ROOT = b"pagedcache.root.v1"
_BLOCK = b"pagedcache.block.v1"
_PAIR = Struct("<II")
_LITTLE = np.dtype("<i4")


def root_digest(block_size: int, fingerprint: bytes = b"", secret: bytes | None = None) -> bytes:
    """The parent of every first block.

    Parameters
    ----------
    block_size : int
        Tokens per block, 1 or more: blocks of another size never have the same digest.
    fingerprint : bytes
        What the K/V depends on beside tokens and keys: weights, RoPE settings. ``CacheSpec.fingerprint``.
    secret : bytes, optional
        The namespace's.

    Returns
    -------
    bytes [32]
    """
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"fingerprint must be bytes, not {type(fingerprint).__name__}")
    if not 1 <= block_size < 2**32:
        raise ValueError(f"block_size is {block_size}; it must be 1 or more")
    return _hash(_ROOT + _PAIR.pack(block_size, len(fingerprint)) + fingerprint, secret)


def block_digest(parent: bytes, tokens: ArrayLike, key: bytes = b"", secret: bytes | None = None) -> bytes:
    """Digest of one full block.

    Parameters
    ----------
    parent : bytes [32]
        Digest of the block before, or `root_digest`.
    tokens : int32 array-like [block_size]
        Token ids, 0 <= id < 2**31, in any byte order.
    key : bytes
        `pagedcache.keys.frame` of the parts that start in this block; empty where none does.
    secret : bytes, optional
        The namespace's.

    Returns
    -------
    bytes [32]

    Examples
    --------
    >>> block_digest(root_digest(4), [1, 2, 3, 4]).hex()[:16]
    '323fb6d2a9a31bfe'
    """
    if not isinstance(parent, bytes) or len(parent) != DIGEST_SIZE:
        raise ValueError(f"parent must be {DIGEST_SIZE} bytes: the digest of the block before, or root_digest()")
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, not {type(key).__name__}")
    ids = _token_ids(tokens)
    if not len(ids):
        raise ValueError("tokens is empty; only full blocks have a digest")
    return chain(parent, memoryview(ids.tobytes()), len(ids), key, secret)


def prompt_digests(
    tokens: ArrayLike,
    block_size: int,
    *,
    namespace: Namespace | bytes | str | None = None,
    keys: Sequence[Key] | None = None,
    fingerprint: bytes = b"",
) -> list[bytes]:
    """Digests of the full blocks of one prompt, first to last.

    Parameters
    ----------
    tokens : int32 array-like [length]
        Token ids, 0 <= id < 2**31, in any byte order.
    block_size : int
        Tokens per block.
    namespace, keys
        As in ``KVCache.admit``, for this prompt alone.
    fingerprint : bytes
        See `root_digest`.

    Returns
    -------
    list of bytes [32]
        ``length // block_size`` digests. Two prompts agree up to the last block in which all is equal.

    Examples
    --------
    >>> ours, theirs = (prompt_digests(range(8), 4, namespace=name) for name in (None, "theirs"))
    >>> len(ours), ours[0] == theirs[0]
    (2, False)
    """
    ids = _token_ids(tokens)
    secret = Namespace.of(namespace).secret
    digest = root_digest(block_size, fingerprint, secret)
    framed = {key.block: key.frame for key in block_keys(namespace, keys, block_size, len(ids))}
    data = memoryview(ids.tobytes())  # one copy, then slices: no Python per token
    width = block_size * _LITTLE.itemsize
    digests = []
    for block in range(len(ids) // block_size):
        digest = chain(digest, data[block * width : (block + 1) * width], block_size, framed.get(block, b""), secret)
        digests.append(digest)
    return digests


def chain(parent: bytes, ids: memoryview, count: int, key: bytes, secret: bytes | None) -> bytes:
    """block_digest of little-endian token ids, unchecked: for whoever has made sure of them."""
    return _hash(b"".join((_BLOCK, parent, _PAIR.pack(count, len(key)), key, ids)), secret)


def _hash(message: bytes, secret: bytes | None) -> bytes:
    plain, keyed = _algorithms()
    digest: bytes = plain(message).digest() if secret is None else keyed(secret, message, "sha256")
    return digest


@cache
def _algorithms() -> tuple[Any, Any]:
    """Loaded when first needed: OpenSSL takes milliseconds, and few caches have events, tiers or files."""
    import hashlib
    import hmac

    return hashlib.sha256, hmac.digest


def _token_ids(tokens: Any) -> NDArray[np.int32]:
    """Contiguous and little-endian whatever the machine is, or an error."""
    ids = int32_array(tokens, "tokens")
    if ids.size and ids.min() < 0:
        raise ValueError(f"tokens holds {ids.min()}; token ids are 0 to 2**31 - 1")
    return ids.astype(_LITTLE, copy=False)
