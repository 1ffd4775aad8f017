"""Pictures of results, with matplotlib (the extra ``plot``): each function returns a new Figure and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedcache.replay.prefix import HitRate
from pagedcache.replay.usage import Machine, SlotKind, Usage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["block_map", "hit_rate_curves", "overview", "save", "usage_over_time", "waste_by_kind"]

KINDS = {  # what the pictures call a slot, and its colour: of a palette that the colour-blind can read
    SlotKind.STORED: ("holds a token", "#0072B2"),
    SlotKind.RESERVED: ("reserved for tokens to come", "#8FC7E8"),
    SlotKind.INTERNAL: ("handed out, never used", "#E69F00"),
    SlotKind.ROUNDING: ("lost by rounding up", "#C44E52"),
    SlotKind.EXTERNAL: ("not handed out", "#E3E3E3"),
}
ON_DARK = {SlotKind.STORED, SlotKind.ROUNDING}  # kinds that are written on in white
LINES = ["#777777", "#B07AA1", "#E69F00", "#8C6D31", "#C44E52", "#59A14F"]  # of systems that reserve
PAGES = ["#0072B2", "#56B4E9", "#004466", "#33A5A5", "#7A9EC9", "#001F33"]  # of those with pages
POLICY = {  # the name, colour and style of a policy's line
    "lru": ("LRU", "#0072B2", "-"),
    "lfu-da": ("LFU-DA", "#CC79A7", "-"),
    "arc": ("ARC", "#009E73", "-"),
    "s3-fifo": ("S3-FIFO", "#D55E00", "-"),
    "never-hit-first": ("never hit first", "#56B4E9", "-"),
    "priority-ttl": ("priority and TTL", "#E69F00", "-"),
    "belady": ("Belady (knows the future)", "#444444", "--"),
}
BINS = 120  # points of the longest line over time; each is a mean
CELLS = 2**15  # slots that a map shows at most


def waste_by_kind(usages: Sequence[Usage], machine: Machine) -> Figure:
    """Draw what the memory held on average, a bar for each system, with its mean batch and throughput.

    Parameters
    ----------
    usages : sequence of Usage
    machine : Machine
        For the throughput.

    Returns
    -------
    matplotlib.figure.Figure
    """
    return drawn((9, 1.3 + 0.42 * len(usages)), lambda figure: _waste(figure, usages, machine))


def usage_over_time(usages: Sequence[Usage], machine: Machine) -> Figure:
    """Draw the share of the memory that holds tokens against the time of the bandwidth model, a line for each system.

    All serve the same requests: a line that ends early is a system that was done early.

    Parameters
    ----------
    usages : sequence of Usage
    machine : Machine
        For the time.

    Returns
    -------
    matplotlib.figure.Figure
    """
    return drawn((9, 4.2), lambda figure: _over_time(figure, usages, machine))


def block_map(usages: Sequence[Usage]) -> Figure:
    """Draw every slot of the memory at one moment, a panel for each system; of large memories a regular sample.

    Neighbouring sequences have different shades, so that pieces of contiguous memory and scattered blocks can be told.

    Parameters
    ----------
    usages : sequence of Usage

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = -(-len(usages) // 3)
    return drawn((9, 0.6 + 2.3 * rows), lambda figure: _map(figure, usages))


def overview(usages: Sequence[Usage], machine: Machine) -> Figure:
    """Draw all three pictures of a memory replay in one figure.

    Parameters
    ----------
    usages : sequence of Usage
    machine : Machine

    Returns
    -------
    matplotlib.figure.Figure
    """
    heights = [1.3 + 0.42 * len(usages), 4.2, 0.6 + 2.3 * -(-len(usages) // 3)]

    def draw(figure: Any) -> None:
        top, middle, bottom = figure.subfigures(3, 1, height_ratios=heights)
        _waste(top, usages, machine)
        _over_time(middle, usages, machine)
        _map(bottom, usages)

    return drawn((9, sum(heights)), draw)


def hit_rate_curves(rates: Sequence[HitRate], *, bytes_per_token: int | None = None) -> Figure:
    """Draw the share of prompt tokens that were found against the size of the cache, a line for each policy.

    Parameters
    ----------
    rates : sequence of HitRate
        Of one trace.
    bytes_per_token : int, optional
        Adds an axis in GiB.

    Returns
    -------
    matplotlib.figure.Figure
    """
    return drawn((9, 4.6), lambda figure: _curves(figure, rates, bytes_per_token))


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure to a .png or .svg file; the same figure always gives the same bytes.

    Raises
    ------
    ValueError
        Another ending.
    """
    import matplotlib as mpl

    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"{path}: pictures are .png or .svg, not {kind or 'without an ending'}")
    metadata = {"Date": None} if kind == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "pagedcache", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata=metadata, facecolor="white")


# -- drawing ------------------------------------------------------------------------------------------


def drawn(size: tuple[float, float], draw: Callable[[Any], None]) -> Figure:
    """Return a new figure of that size in inches, drawn on in the style of all of them."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
    }
    with mpl.rc_context({**style, "axes.titlelocation": "left", "axes.titlesize": 10.5}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
    return figure


def _waste(figure: Any, usages: Sequence[Usage], machine: Machine) -> None:
    axes = figure.subplots()
    places = range(len(usages))
    left = np.zeros(len(usages))
    for kind, (label, colour) in KINDS.items():
        shares = np.array([100 * getattr(usage, kind.name.lower()) for usage in usages])
        axes.barh(places, shares, left=left, color=colour, label=label, height=0.78)
        for place, share, start in zip(places, shares, left, strict=True):
            if share >= 4:
                text = "white" if kind in ON_DARK else "black"
                axes.text(start + share / 2, place, f"{share:.1f}", ha="center", va="center", color=text)
        left += shares
    for place, usage in enumerate(usages):
        rate = f"{machine.throughput(usage):,.0f} tokens/s"
        axes.text(101, place, f"{usage.batch:.1f} sequences, {rate}", va="center")
    axes.set_yticks(places, [usage.system for usage in usages])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 100), xlabel="mean share of the memory (%)", ylim=(len(usages) - 0.5, -0.5))
    axes.spines["left"].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=5, frameon=False, handlelength=1)


def _over_time(figure: Any, usages: Sequence[Usage], machine: Machine) -> None:
    axes = figure.subplots()
    times = [machine.seconds(usage.samples[:, 0], usage.samples[:, 1].astype(float)) for usage in usages]
    longest = max(float(seconds[-1]) for seconds in times) / 60
    labels = []
    for usage, seconds, colour in zip(usages, times, _colours(usages), strict=True):
        bins = max(2, round(BINS * seconds[-1] / 60 / longest))
        edges = np.linspace(0, seconds[-1], bins + 1)
        steps, token_steps = (np.diff(np.interp(edges, seconds, sums)) for sums in usage.samples[:, :2].T)
        share = 100 * token_steps / steps / usage.slots
        axes.plot((edges[1:] + edges[:-1]) / 120, share, color=colour, lw=1.5)
        labels.append((100 * usage.stored, float(edges[-1] / 60), usage.system, colour))
    for height, (_, end, name, colour) in zip(_apart([y for y, *_ in sorted(labels)]), sorted(labels), strict=True):
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        axes.text(end + longest / 100, height, name, color=colour, va="center", fontweight="bold", bbox=box)
    axes.set(xlim=(0, 1.16 * longest), ylim=(0, 100), title="Memory that holds tokens, until no request waits any more")
    axes.set(xlabel="time of the bandwidth model (minutes)", ylabel="share of the memory (%)")
    axes.grid(axis="y", color="#EEEEEE")
    axes.set_axisbelow(True)


def _map(figure: Any, usages: Sequence[Usage]) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    shades = {kind: np.array(to_rgb(colour)) for kind, (_, colour) in KINDS.items()}
    panels = figure.subplots(-(-len(usages) // 3), 3, squeeze=False).ravel()
    for axes, usage in zip(panels, usages, strict=False):
        stride = -(-usage.slots // CELLS)
        kinds, owners = usage.kinds[::stride], usage.owners[::stride]
        wide = max(1, round(np.sqrt(2.2 * len(kinds)) / 16)) * 16  # slots of a row
        cells = np.ones((-(-len(kinds) // wide) * wide, 3))
        for kind, colour in shades.items():
            cells[: len(kinds)][kinds == kind] = colour
        lighter = np.zeros(len(cells))
        lighter[: len(owners)] = np.where(owners < 0, 0, owners % 3) * 0.17
        cells += (1 - cells) * lighter[:, None]
        axes.imshow(cells.reshape(-1, wide, 3), aspect="auto", interpolation="nearest")
        held = np.count_nonzero(usage.kinds == SlotKind.STORED) / usage.slots
        axes.set_title(f"{usage.system}: {100 * held:.0f} %, {usage.owners.max() + 1} sequences", fontsize=9)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{wide * stride:,} slots a row", fontsize=8)
    for axes in panels[len(usages) :]:
        axes.remove()
    handles = [Patch(color=colour, label=label) for label, colour in KINDS.values()]
    figure.legend(handles=handles, loc="outside upper left", ncols=5, frameon=False, handlelength=1)


def _curves(figure: Any, rates: Sequence[HitRate], bytes_per_token: int | None) -> None:
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots()
    policies = list(dict.fromkeys(rate.policy for rate in rates))
    largest = max(rate.capacity_tokens for rate in rates)
    smallest = min(rate.capacity_tokens for rate in rates)
    everything = max(100 * rate.token_rate for rate in rates)
    axes.axhline(everything, color="#999999", lw=1, ls=":")
    axes.text(smallest, everything, f"most that was found: {everything:.1f} %", va="bottom", color="#666666")
    for number, policy in enumerate(policies):
        label, colour, style = POLICY[policy]
        points = sorted((rate.capacity_tokens, 100 * rate.token_rate) for rate in rates if rate.policy == policy)
        capacity, found = zip(*points, strict=True)
        axes.plot(capacity, found, color=colour, ls=style, marker="o", ms=3.5, lw=1.6)
        place = len(points) * (number + 1) // (len(policies) + 1)  # where lines still lie apart
        above = policy == "belady"
        axes.annotate(
            label,
            points[place],
            xytext=(-6, 5) if above else (7, -6),
            textcoords="offset points",
            ha="right" if above else "left",
            va="bottom" if above else "top",
            color=colour,
            fontweight="bold",
        )
    axes.set(xscale="log", ylim=(0, 1.12 * everything or 1), xlim=(smallest / 1.15, largest * 1.15))
    axes.set(xlabel="capacity of the cache (tokens)", ylabel="prompt tokens found in the cache (%)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#EEEEEE")
    if bytes_per_token is not None:
        gib = bytes_per_token / 2**30
        other = axes.secondary_xaxis("top", functions=(lambda tokens: tokens * gib, lambda size: size / gib))
        other.xaxis.set_major_formatter(lambda size, _: f"{size:,g}")
        other.set_xlabel("GiB of K and V")


def _colours(usages: Sequence[Usage]) -> list[str]:
    reserving, paging = iter(LINES * len(usages)), iter(PAGES * len(usages))
    return [next(paging if usage.system.startswith("paged") else reserving) for usage in usages]


def _apart(heights: Sequence[float], gap: float = 5.0) -> list[float]:
    """Ascending heights, moved up where they would stand on each other."""
    moved = list(heights)
    for i, (lower, upper) in enumerate(pairwise(range(len(moved)))):
        moved[i + 1] = max(moved[upper], moved[lower] + gap)
    return moved
