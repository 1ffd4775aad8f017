"""How a cache is written to a file and read from one: what the verbs of `Saving` do."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagedcache._restoring import Restoration
from pagedcache._saved_blocks import Draft, format_of, groups_of
from pagedcache.saved._manifest import Manifest
from pagedcache.saved._safe_files import replacing
from pagedcache.saved.conversion import blank
from pagedcache.saved.saved_file import CHUNK, SavedFile, SavedFileWriter
from pagedcache.spec import CacheSpec, LayerGroup
from pagedcache.tiers.block_format import BlockFormat

if TYPE_CHECKING:
    from pagedcache._saving import Namespaces, Path_, Saving

    Cache = TypeVar("Cache", bound=Saving)

__all__ = ["load", "restore", "save"]


def save(cache: "Saving", path: "Path_", ids: ArrayLike | None) -> int:
    """Write sequences, or all that the prefix cache holds, of a cache whose lock is held; how many blocks."""
    if cache.storage is None:
        raise ValueError("the cache is metadata only: its owner has the bytes, and saves them")
    form = format_of(cache.spec)
    with replacing(Path(path)) as fd:
        while True:
            os.lseek(fd, 0, os.SEEK_SET)
            os.ftruncate(fd, 0)
            draft = Draft.of(cache.sequences, ids)
            _write_file(cache, SavedFileWriter(fd, form), draft, form)
            if draft.same(Draft.of(cache.sequences, ids)):  # a finalizer may have changed who holds what
                return len(draft.blocks)


def _write_file(cache: "Saving", writer: SavedFileWriter, draft: Draft, form: BlockFormat) -> None:
    most = max(1, CHUNK // form.block_nbytes)
    for first in range(0, len(draft.blocks), most):
        writer.append(_records(cache, draft, slice(first, first + most), form))
    spec = cache.spec
    writer.finish(draft.tokens, Manifest(groups_of(spec), spec.max_step_tokens, draft.owners(form), draft.paths))


def _records(cache: "Saving", draft: Draft, some: slice, form: BlockFormat) -> NDArray[np.uint8]:
    """Return records of some of the draft's blocks, with zeros wherever nothing of theirs is."""
    layers = cache._layers()
    found = cache.backend.read_blocks(cache.storage, draft.blocks[some], layers)
    cache.synchronize()  # or the records would be used before they are there
    records = np.asarray(found)
    blank(records, form, draft.begins[some], draft.ends[some])
    for number, group in enumerate(cache.spec.groups):
        records[draft.groups[some] == number, group.layers :] = 0
    return records


def restore(cache: "Saving", path: "Path_", namespace: "Namespaces", convert: bool) -> NDArray[np.int64]:
    """Bring a file into a cache whose lock is held; the handles."""
    with SavedFile.open(path) as saved:
        return _restore(cache, saved, namespace, convert)


def _restore(cache: "Saving", saved: SavedFile, namespace: "Namespaces", convert: bool) -> NDArray[np.int64]:
    if cache.storage is None:
        raise ValueError("the cache is metadata only: it has no place for the bytes")
    return Restoration(cache, saved, namespace, convert).run()


def load(
    cls: "type[Cache]",
    path: "Path_",
    namespace: "Namespaces",
    fingerprint: bytes | None,
    dtype: str | None,
    layout: str,
    memory: int | str | None,
    num_blocks: int | None,
    options: dict[str, Any],
) -> "tuple[Cache, NDArray[np.int64]]":
    """Make a cache that fits a file, and bring in what the file holds."""
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
                return cache, _restore(cache, saved, namespace, convert=True)
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
