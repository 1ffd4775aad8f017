"""The verbs of KVCache that keep sequences or the prefix cache in a file, and bring them back.

What they take is imported by the first call: a program that saves nothing does not wait for it at its start.
"""

import os
from collections.abc import Sequence as ABCSequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._loading import Loading
from pagedcache.keys import Namespace

__all__ = ["Saving"]

Path_ = str | os.PathLike[str]
Namespaces = Namespace | ABCSequence[Namespace] | None


class Saving(Loading):
    """Base of KVCache: what outlives the process."""

    def save(self, path: Path_, ids: ArrayLike | None = None) -> int:
        """Keep sequences, or the whole prefix cache, in one file.

        The file is there as a whole or not at all, and durable, when this returns; one that had the name is replaced.
        Its owner alone can read it, and it holds token ids and K/V as they are: see ``docs/saved_files.md``.

        Parameters
        ----------
        path : str or path
            Not a symbolic link, and in a folder that not everybody may write to.
        ids : int64 [n], optional
            Sequences of no open step, not swapped out, each once. By default all that the prefix cache holds.

        Returns
        -------
        int
            Blocks written; what sequences share is written once.

        Raises
        ------
        ValueError
            The spec has no fingerprint, the cache is metadata only, or a sequence stands within what its keys are
            about.
        InvalidSequence, SwappedOut, StepOpen
            An id names no live sequence, one that is swapped out, or one in an open step.
        TierError, OSError
            The file may not or cannot be written; what was there is as before.

        Examples
        --------
        >>> import tempfile
        >>> from pagedcache import CacheSpec, KVCache
        >>> cache = KVCache(CacheSpec(1, 1, 8, block_size=4, fingerprint=b"tiny"), num_blocks=16)
        >>> ids = cache.admit([[3, 1, 4, 1, 5]]).ids
        >>> cache.commit(cache.extend(ids, 5), [3, 1, 4, 1, 5])
        1
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = cache.save(f"{folder}/chat.kv", ids)
        ...     again, [sid] = KVCache.load(f"{folder}/chat.kv")
        >>> saved, again.sequence(sid).length, again.match([[3, 1, 4, 1, 0]]).tolist()
        (2, 5, [4])
        """
        from pagedcache._saved_cache import save

        with self._open():
            return save(self, path, ids)

    def restore(self, path: Path_, *, namespace: Namespaces = None, convert: bool = False) -> NDArray[np.int64]:
        """Bring in what `save` has kept; what is cached already is shared.

        Parameters
        ----------
        path : str or path
            Written by `save`, of a cache with the same model, shape, layer groups and block size, on any backend and in
            any layout.
        namespace : Namespace or sequence of Namespace, optional
            Those with a secret that the file's contents are in: the file does not hold secrets.
        convert : bool
            Whether blocks of another dtype are taken, rounded: see ``docs/saved_files.md``.

        Returns
        -------
        int64 [n]
            Handles, in the order in which they were saved; empty for a prefix cache.

        Raises
        ------
        CorruptFile
            The file is damaged; the message says where.
        ForeignFormat
            It is of another model, shape, dtype or version; the message names the field.
        OutOfBlocks, OutOfSequences
            There is no room for it.
        ValueError
            A sequence is longer than max_length; a namespace is missing, or has another secret; a value that is not
            finite goes where scales are. Whatever is raised, sequences and blocks are as before; only cached blocks
            may have been evicted or, where the backend failed, been added.
        """
        from pagedcache._saved_cache import restore

        with self._open():
            return restore(self, path, namespace, convert)

    @classmethod
    def load(
        cls,
        path: Path_,
        *,
        namespace: Namespaces = None,
        fingerprint: bytes | None = None,
        dtype: str | None = None,
        layout: str = "NHD",
        memory: int | str | None = None,
        num_blocks: int | None = None,
        **options: Any,
    ) -> tuple[Self, NDArray[np.int64]]:
        """Make a cache that fits a saved file, and bring in what the file holds; see `restore`.

        Parameters
        ----------
        path, namespace
            As in `restore`.
        fingerprint : bytes, optional
            The model's: the file is refused if it is another's. Without it any model's file is taken.
        dtype, layout : str, optional
            Of the new cache; by default the dtype of the file. See `CacheSpec`.
        memory, num_blocks
            Size of the pool, as in `KVCache`; by default two to three times what the file fills, which is
            little for a short chat. A file without blocks needs one of them.
        **options
            The other arguments of `KVCache`: ``backend``, ``max_sequences``, ...

        Returns
        -------
        cache : KVCache
        ids : int64 [n]
            Handles, in the order in which they were saved.
        """
        from pagedcache._saved_cache import load

        return load(cls, path, namespace, fingerprint, dtype, layout, memory, num_blocks, options)
