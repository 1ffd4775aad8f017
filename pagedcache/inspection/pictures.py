"""Pictures of a snapshot, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedcache.inspection.block_map import BlockKind, block_kinds
from pagedcache.inspection.runs import Run, sharing
from pagedcache.inspection.snapshot import Snapshot
from pagedcache.replay.pictures import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture"]

KINDS = {  # what the pictures call a block, with colours that the colour-blind can tell apart
    BlockKind.FREE: ("free", "#E3E3E3"),
    BlockKind.CACHED: ("cached", "#F0CF65"),
    BlockKind.HELD: ("of one sequence", "#8FC7E8"),
    BlockKind.SHARED: ("shared", "#0072B2"),
}
MOST_ROWS = 400  # sequences that are drawn
MOST_BLOCKS = 2**16  # blocks that the map shows


def picture(snapshot: Snapshot) -> Figure:
    """Draw who shares what, a row for each sequence, above a map of all blocks.

    Parameters
    ----------
    snapshot : Snapshot
        Of its sequences the first 400 are drawn, and of its blocks the first 65,536.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = min(len(snapshot.sequences), MOST_ROWS)
    tall = min(1.2 + 0.22 * rows, 8.0) if rows else 0.4
    return drawn((9, tall + 3.2), lambda figure: _draw(figure, snapshot, tall))


def _draw(figure: Any, snapshot: Snapshot, tall: float) -> None:
    above, below = figure.subplots(2, 1, height_ratios=[tall, 3.2])
    _draw_runs(above, snapshot)
    _draw_map(below, snapshot)


def _draw_runs(axes: Any, snapshot: Snapshot) -> None:
    """One rectangle a run: as long as its blocks, as high as its sequences."""
    axes.set_title("Blocks of the sequences; what several have in common is drawn once")
    forest = sharing(snapshot)
    waiting, top = [], 0
    for run in forest:
        waiting.append((run, top))
        top += len(run.sequences)
    longest = 1
    while waiting:
        run, row = waiting.pop()
        longest = max(longest, run.first + len(run.blocks))
        if row >= MOST_ROWS:
            continue
        _draw_run(axes, run, row)
        for branch in run.branches:
            waiting.append((branch, row))
            row += len(branch.sequences)
    axes.set(xlim=(0, longest), ylim=(max(min(top, MOST_ROWS), 1), 0), yticks=[], xlabel="blocks of a sequence")


def _draw_run(axes: Any, run: Run, row: int) -> None:
    _, colour = KINDS[BlockKind.SHARED if len(run.sequences) > 1 else BlockKind.HELD]
    size = len(run.blocks), len(run.sequences)
    axes.barh(row, size[0], size[1], left=run.first, align="edge", color=colour, edgecolor="white", linewidth=0.8)
    if size[1] > 1:
        text = f"{size[0]} × {size[1]}"
        axes.text(
            run.first + size[0] / 2, row + size[1] / 2, text, color="white", ha="center", va="center", clip_on=True
        )


def _draw_map(axes: Any, snapshot: Snapshot) -> None:
    kinds = block_kinds(snapshot)[:MOST_BLOCKS]
    width = max(16, int(np.ceil(np.sqrt(len(kinds) * 4))))
    cells = np.full(-(-len(kinds) // width) * width, len(KINDS))
    cells[: len(kinds)] = kinds
    colours = [tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)) for _, colour in KINDS.values()]
    image = np.array([*colours, (1.0, 1.0, 1.0)])[cells.reshape(-1, width)]
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, width, len(cells) // width, 0))
    axes.set_title(f"All {snapshot.num_blocks:,} blocks in the order of their ids, {width} to a row")
    axes.set(xticks=[], yticks=[])
    counts = np.bincount(kinds, minlength=len(KINDS))
    for (name, colour), count in zip(KINDS.values(), counts, strict=True):
        axes.plot([], [], "s", color=colour, label=f"{name}: {count:,}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=len(KINDS), frameon=False)
