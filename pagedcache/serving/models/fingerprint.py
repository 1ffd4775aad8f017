"""Which model a cache's keys and values are of."""

import hashlib
from pathlib import Path

__all__ = ["model_fingerprint"]


def model_fingerprint(path: str | Path) -> bytes:
    """Return 32 bytes that stand for a model's file: SHA-256 of it. For ``CacheSpec(fingerprint=...)``.

    Everything that keys and values depend on is in the file: weights, rotation, sizes.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
