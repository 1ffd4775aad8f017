"""Where a saved file's contents belong: layer groups that must be the same, namespaces, sequences that share."""

from typing import Any, NamedTuple

import numpy as np

from pagedcache._saved_blocks import proof_of
from pagedcache.errors import ForeignFormat
from pagedcache.keys import Namespace
from pagedcache.saved._manifest import Group, SavedPath
from pagedcache.saved.saved_file import SavedFile

__all__ = ["Origin", "namespaces_of", "origins_of", "require_groups"]


class Origin(NamedTuple):
    """What a sequence shares with one that comes before it.

    Attributes
    ----------
    parent : int, or None
        Which one.
    shared : int
        Leading blocks that are the parent's as well.
    is_whole : bool
        Whether it is the parent's beginning, up to its own last token.
    """

    parent: int | None = None
    shared: int = 0
    is_whole: bool = False


def origins_of(paths: list[SavedPath]) -> dict[int, Origin]:
    """Return, for each sequence, what it shares with another; the prefix cache sees to blocks whose tokens are known.

    By the numbers of sequences, the longest first, so that whatever is a parent comes before.
    """
    order = [k for k in sorted(range(len(paths)), key=lambda k: -paths[k].position) if paths[k].is_sequence]
    tails = np.unique([paths[k].blocks[-1, 0] for k in order if len(paths[k].blocks)])
    ends: dict[int, list[int]] = {}  # the last record of some sequence -> sequences before that have it
    heads: dict[int, list[int]] = {}  # the first record of a sequence without known tokens -> the same
    found: dict[int, Origin] = {}
    for number in order:
        path = paths[number]
        if not len(path.blocks):
            found[number] = Origin()
            continue
        first, *_, last = path.blocks[[0, -1], 0].tolist()
        whole = next((other for other in ends.get(last, []) if _is_beginning(path, paths[other])), None)
        if whole is not None:  # and then this one's parent serves others as well
            found[number] = Origin(whole, len(path.blocks), True)
            continue
        found[number] = Origin() if path.known else _longest(path, paths, heads.get(first, []))
        for record in path.blocks[np.isin(path.blocks[:, 0], tails), 0].tolist():
            ends.setdefault(record, []).append(number)
        if not path.known:
            heads.setdefault(first, []).append(number)
    return found


def _longest(path: SavedPath, paths: list[SavedPath], others: list[int]) -> Origin:
    best = Origin()
    for other in others:
        common = min(len(path.blocks), len(paths[other].blocks))
        same = path.blocks[:common, 0] == paths[other].blocks[:common, 0]
        shared = common if same.all() else int(np.argmin(same))
        if shared > best.shared and paths[other].pad == path.pad:
            best = Origin(other, shared)
    return best


def _is_beginning(path: SavedPath, base: SavedPath) -> bool:
    """Whether it could have been forked from the other; where windows have moved on since, it could not."""
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
