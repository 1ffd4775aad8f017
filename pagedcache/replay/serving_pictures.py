"""The picture of traces that were served, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedcache.replay.pictures import drawn
from pagedcache.replay.serve import Served

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["serving_course"]

COLOURS = ["#0072B2", "#E69F00", "#59A14F", "#C44E52"]  # of runs
BINS = 240  # points of a line over time; each is a mean


def serving_course(runs: Mapping[str, Served]) -> Figure:
    """Draw how runs went: what of the memory held tokens, who ran and waited, and how long requests waited.

    Parameters
    ----------
    runs : mapping of str to Served
        By name, at most four.

    Returns
    -------
    matplotlib.figure.Figure
    """
    return drawn((9, 7.6), lambda figure: _draw(figure, runs))


def _draw(figure: Any, runs: Mapping[str, Served]) -> None:
    memory, queue, waits = figure.subplots(3, 1, height_ratios=[1, 1, 1.1])
    for colour, (name, served) in zip(COLOURS, runs.items(), strict=False):
        minutes, (share, running, waiting) = _binned(served)
        memory.plot(minutes, 100 * share, color=colour, lw=1.4, label=name)
        queue.plot(minutes, running, color=colour, lw=1.4)
        queue.plot(minutes, waiting, color=colour, lw=1.1, ls=":")
        seconds = np.sort(served.first_token)
        if len(seconds):
            waits.plot(seconds, 100 * np.arange(1, len(seconds) + 1) / len(seconds), color=colour, lw=1.6)
    memory.set(ylabel="slots with a token (%)", ylim=(0, None), title="Memory of the running sequences")
    queue.set(xlabel="time (minutes)", ylabel="sequences", ylim=(0, None), title="Running (solid) and waiting (dotted)")
    waits.set(xscale="log", ylim=(0, 102), xlabel="seconds until the first token", ylabel="requests (%)")
    waits.set_title("How long requests waited: so many percent had their first token by then")
    for axes in (memory, queue, waits):
        axes.grid(color="#EEEEEE")
        axes.set_axisbelow(True)
    memory.sharex(queue)
    memory.tick_params(labelbottom=False)
    if len(runs) > 1:
        figure.legend(*memory.get_legend_handles_labels(), loc="outside upper left", ncols=4, frameon=False)


def _binned(served: Served) -> tuple[Any, Any]:
    """Return times in minutes, and means of the course between them, [3, bins]."""
    ends = np.concatenate([[0.0], served.course[:, 0]])
    sums = np.zeros((len(ends), 3))
    sums[1:] = np.cumsum(np.diff(ends)[:, None] * served.course[:, 1:], axis=0)
    edges = np.linspace(0, ends[-1], BINS + 1)
    integrals = np.stack([np.interp(edges, ends, column) for column in sums.T])
    return (edges[1:] + edges[:-1]) / 120, np.diff(integrals) / np.diff(edges)
