"""Results compared bit for bit, in a form whose comparison is quick to explain when it fails."""

import hashlib
from typing import Any

import numpy as np

__all__ = ["bits_of"]


def bits_of(*arrays: Any) -> str:
    """Return a digest of the bytes of some arrays.

    pytest explains why two byte strings differ, which takes minutes where they are long and the
    explanation is not cut short, as in CI.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
