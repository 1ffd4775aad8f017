"""One step of a model on a cache: opened, computed, and closed whatever happens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.serving.models import LlamaModel


def compute(
    model: LlamaModel, cache: KVCache, ids: Sequence[int], rows: Sequence[Sequence[int]]
) -> tuple[NDArray[np.float32], int]:
    """Run each sequence's new tokens through the model and commit them.

    Parameters
    ----------
    model, cache
    ids : sequence of int
        Handles.
    rows : sequence of sequences of int
        The new tokens of each, at least one.

    Returns
    -------
    logits : ndarray of float32, shape [len(ids), vocab]
        After each sequence's last token.
    copied : int
        Blocks that were copied because a shared one was to be written.
    """
    tokens = np.array([token for row in rows for token in row], np.int32)
    step = cache.extend(ids, [len(row) for row in rows])
    try:
        copied = len(step.copies)
        logits = model.forward(tokens, step, cache)
        cache.commit(step, tokens)
    except BaseException:
        if not step.closed:  # an interrupt may come as late as when commit has done its work
            cache.abandon(step)
        raise
    return logits, copied
