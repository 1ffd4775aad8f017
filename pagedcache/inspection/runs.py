"""Who shares what: sequences as a forest of runs of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagedcache.inspection.snapshot import SequenceShot, Snapshot

__all__ = ["Run", "sharing"]


@dataclass(slots=True)
class Run:
    """Blocks that follow each other in the same sequences.

    Attributes
    ----------
    blocks : list of int
        Their ids.
    first : int
        Which logical block of its sequences the first one is.
    sequences : list of str
        Names of those that have all of them.
    branches : list of Run
        What some of them have behind it.
    """

    blocks: list[int]
    first: int
    sequences: list[str]
    branches: list["Run"] = field(default_factory=list)


def sharing(snapshot: Snapshot) -> list[Run]:
    """Return the runs that sequences begin with, the most shared first, and in each those that branch off it.

    Examples
    --------
    >>> shots = [SequenceShot("a", 12, [1, 2, 3]), SequenceShot("b", 12, [1, 2, 4])]
    >>> [run] = sharing(Snapshot(4, 5, [2, 2, 1, 1, 0], [], shots))
    >>> run.blocks, [(branch.blocks, branch.sequences) for branch in run.branches]
    ([1, 2], [([3], ['a']), ([4], ['b'])])
    """
    forest: list[Run] = []
    # Without recursion: a fork of a fork may be as deep as there are sequences.
    waiting: list[tuple[list[Run], Sequence[SequenceShot], int]] = [(forest, snapshot.sequences, 0)]
    while waiting:
        into, shots, at = waiting.pop()
        groups: dict[int, list[SequenceShot]] = {}
        for shot in shots:
            if at < len(shot.blocks):
                groups.setdefault(shot.blocks[at], []).append(shot)
        for group in sorted(groups.values(), key=len, reverse=True):
            end = _end(group, at)
            run = Run(group[0].blocks[at:end], at, [shot.name for shot in group])
            into.append(run)
            waiting.append((run.branches, group, end))
    return forest


def _end(group: Sequence[SequenceShot], at: int) -> int:
    """How far the tables of all of these are the same."""
    first = group[0].blocks
    end = at
    while end < len(first) and all(end < len(shot.blocks) and shot.blocks[end] == first[end] for shot in group):
        end += 1
    return end
