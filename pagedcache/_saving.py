"""The verbs of KVCache that keep sequences or the prefix cache in a file, and bring them back."""

import os
from collections.abc import Sequence as ABCSequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._loading import Loading
from pagedcache._restoring import Restoration
from pagedcache._saved_blocks import Draft, format_of, groups_of
from pagedcache.keys import Namespace
from pagedcache.saved._manifest import Manifest
from pagedcache.saved._safe_files import replacing
from pagedcache.saved.conversion import blank
from pagedcache.saved.saved_file import CHUNK, SavedFile, SavedFileWriter
from pagedcache.spec import CacheSpec, LayerGroup
from pagedcache.tiers.block_format import BlockFormat

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
        with self._open():
            if self.storage is None:
                raise ValueError("the cache is metadata only: its owner has the bytes, and saves them")
            form = format_of(self.spec)
            with replacing(Path(path)) as fd:
                while True:
                    os.lseek(fd, 0, os.SEEK_SET)
                    os.ftruncate(fd, 0)
                    draft = Draft.of(self.sequences, ids)
                    self._write_file(SavedFileWriter(fd, form), draft, form)
                    if draft.same(Draft.of(self.sequences, ids)):  # a finalizer may have changed who holds what
                        return len(draft.blocks)

    def _write_file(self, writer: SavedFileWriter, draft: Draft, form: BlockFormat) -> None:
        most = max(1, CHUNK // form.block_nbytes)
        for first in range(0, len(draft.blocks), most):
            writer.append(self._records(draft, slice(first, first + most), form))
        spec = self.spec
        writer.finish(draft.tokens, Manifest(groups_of(spec), spec.max_step_tokens, draft.owners(form), draft.paths))

    def _records(self, draft: Draft, some: slice, form: BlockFormat) -> NDArray[np.uint8]:
        """Return records of some of the draft's blocks, with zeros wherever nothing of theirs is."""
        layers = self._layers()
        found = self.backend.read_blocks(self.storage, draft.blocks[some], layers)
        self.synchronize()  # or the records would be used before they are there
        records = np.asarray(found)
        blank(records, form, draft.begins[some], draft.ends[some])
        for number, group in enumerate(self.spec.groups):
            records[draft.groups[some] == number, group.layers :] = 0
        return records

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
        with self._open(), SavedFile.open(path) as saved:
            return self._restore(saved, namespace, convert)

    def _restore(self, saved: SavedFile, namespace: Namespaces, convert: bool) -> NDArray[np.int64]:
        if self.storage is None:
            raise ValueError("the cache is metadata only: it has no place for the bytes")
        return Restoration(self, saved, namespace, convert).run()

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
        with SavedFile.open(path) as saved:
            spec = spec_of(saved)
            if fingerprint is not None:
                format_of(replace(spec, fingerprint=fingerprint)).require(saved.form, saved.where)
            rows = sum(saved_path.is_sequence for saved_path in saved.manifest.paths)
            if memory is None and num_blocks is None:
                num_blocks = _room(saved)
            options.setdefault("max_sequences", max(256, rows))
            spec = replace(spec, dtype=dtype or spec.dtype, layout=layout)
            cache = cls(spec, memory=memory, num_blocks=num_blocks, **options)  # type: ignore[call-arg]
            try:
                with cache._open():
                    return cache, cache._restore(saved, namespace, convert=True)
            except BaseException:
                cache.close()  # type: ignore[attr-defined]
                raise


def spec_of(saved: SavedFile) -> CacheSpec:
    """Return the spec of a cache that a file was saved from, but for the layout."""
    form = saved.form
    groups = [
        LayerGroup(group.layers, group.kind, window=group.window, sink_tokens=group.sink_tokens)
        for group in saved.manifest.groups
    ]
    return CacheSpec(
        sum(group.layers for group in groups), form.kv_heads, form.head_dim, v_head_dim=form.v_head_dim,
        dtype=form.dtype, block_size=form.block_size, groups=groups, max_step_tokens=saved.manifest.max_step_tokens,
        fingerprint=bytes.fromhex(form.fingerprint),
    )  # fmt: skip


def _room(saved: SavedFile) -> int:
    """Twice the blocks that a file fills, and one more in each group for each sequence, but no more than that again."""
    if saved.num_blocks == 0:
        raise ValueError(f"{saved.where} holds no blocks: say how large the pool shall be (num_blocks= or memory=)")
    tails = len(saved.manifest.paths) * len(saved.manifest.groups)
    return 2 * saved.num_blocks + min(tails, saved.num_blocks)
