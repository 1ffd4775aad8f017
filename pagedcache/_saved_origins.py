"""Where a saved file's contents belong: layer groups that must be the same, namespaces, sequences that share."""

from typing import Any

import numpy as np

from pagedcache._saved_blocks import proof_of
from pagedcache.errors import ForeignFormat
from pagedcache.keys import Namespace
from pagedcache.saved._manifest import Group, SavedPath
from pagedcache.saved.saved_file import SavedFile

__all__ = ["namespaces_of", "parents_of", "require_groups"]


def parents_of(paths: list[SavedPath]) -> dict[int, int | None]:
    """Return, for each sequence, one before it of which it is the beginning, blocks included; or None.

    Numbers of sequences, the longest first, so that whatever is a parent comes before. Where there are windows, only
    one at the same position is a parent: what a longer one has let go of is not there.
    """
    order = [k for k in sorted(range(len(paths)), key=lambda k: -paths[k].position) if paths[k].is_sequence]
    tails = np.unique([paths[k].blocks[-1, 0] for k in order if len(paths[k].blocks)])
    owners: dict[int, list[int]] = {}  # the last record of some sequence -> sequences that have it, and came before
    found: dict[int, int | None] = {}
    for number in order:
        path = paths[number]
        others = owners.get(int(path.blocks[-1, 0]), []) if len(path.blocks) else []
        found[number] = next((other for other in others if _is_beginning(path, paths[other])), None)
        if found[number] is None:  # else its parent serves as well
            for record in path.blocks[np.isin(path.blocks[:, 0], tails), 0].tolist():
                owners.setdefault(record, []).append(number)
    return found


def _is_beginning(path: SavedPath, base: SavedPath) -> bool:
    same = path.known, path.priority, path.owner, path.keys, path.pad
    return (
        same == (base.known, base.priority, base.owner, base.keys, base.pad)
        and (base.position == path.position or path.blocks.shape[1] == 1)
        and np.array_equal(base.blocks[: len(path.blocks)], path.blocks)
    )


def require_groups(ours: list[Group], theirs: list[Group], where: str) -> None:
    """ForeignFormat, naming the field, unless the layer groups are the same."""
    if len(ours) != len(theirs):
        raise ForeignFormat(f"{where} holds blocks of {len(theirs)} layer groups; this cache has {len(ours)}")
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in ("layers", "kind", "window", "sink_tokens"):
            if getattr(own, name) != getattr(other, name):
                raise ForeignFormat(
                    f"{where} holds blocks of layer group {number} with {name} {getattr(other, name)!r}; this cache "
                    f"has {getattr(own, name)!r}"
                )


def namespaces_of(saved: SavedFile, given: Any) -> list[Namespace]:
    """Return the namespaces of a file, with the secrets that the caller has given."""
    offered = [given] if isinstance(given, Namespace) else list(given or [])
    for namespace in offered:
        if not isinstance(namespace, Namespace):
            raise TypeError(f"namespace must be a Namespace or a list of them, not {type(namespace).__name__}")
    by_name = {namespace.name: namespace for namespace in offered}
    found = []
    for owner in saved.manifest.owners:
        namespace = by_name.pop(owner.name, Namespace(owner.name))
        if proof_of(namespace, saved.form) != owner.proof:
            had = "without a secret" if owner.proof is None else "with another secret"
            raise ValueError(
                f"{saved.where} holds blocks of namespace {owner.name!r}, which was saved {had}: give namespace= as it "
                "was then"
            )
        found.append(namespace)
    if by_name:
        raise ValueError(f"{saved.where} holds nothing of namespace {next(iter(by_name))!r}")
    return found
