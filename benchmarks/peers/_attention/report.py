"""The results as lines on the screen, as JSON, as a Markdown table and as a picture."""

import json
from itertools import groupby

from _attention.bars import BEYOND_CACHES
from _attention.figures import Figures, geometric_mean

HEADLINES = {
    "decode": "Decode: batch x context, one new token each",
    "tax": "Paging tax: our kernel over random tables, against tables in order and those of our allocator at 90 % use",
    "ragged": "Ragged decode: 32 sequences, 44k tokens",
    "mixed": "Mixed: 31 decodes and one chunk",
    "floor": "Floor of a call",
    "prefill": "Prefill: one sequence, causal; rates count the visible half",
    "append": "Append: sequences x new tokens",
}


def line(f):
    """One cell in one line."""
    if f.us() is None:
        return f"{f.group:<8}{f.label:<28} not measured: {f.entry['failed'].get(f.entry['ours'], 'see failed')}"
    text = f"{f.group:<8}{f.label:<28}{f.us():>11.1f} us {rate(f):>12}"
    text += f"{f.fraction:>6.2f}" if f.fraction else " " * 6
    return text + "  " + "  ".join(_shown(f, name) for name in f.families())


def rate(f):
    return f"{f.gflops:.0f} GFLOP/s" if f.group in ("prefill", "mixed") else f"{f.gbps:.1f} GB/s"


def _shown(f, family):
    us, name = f.best(family)
    return f"{name} {us:.1f} ({us / f.us():.2f}x)"


def save_json(path, about, entries):
    path.write_text(json.dumps({"about": about, "cells": entries}, indent=1) + "\n")


def markdown(about, entries, verdicts):
    """The whole report as Markdown."""
    figures = [Figures(entry, about["by"]) for entry in entries]
    machine = about["machine"]
    counts = sorted({len(side["rounds_us"]) for entry in entries for side in entry["sides"].values()})
    rounds = " or ".join(map(str, counts))
    parts = [
        "# Attention beside its peers",
        f"{machine['cpu']}, {about['threads']} threads, {about['date']}. {about['by'].capitalize()} of "
        f"{rounds} interleaved rounds. Ratios are a peer's time over ours: above 1, ours is faster. "
        "GB/s count K and V once; the fraction is of the bandwidth read in the same round from the same memory.",
        "\n".join(f"- {version}" for version in about["versions"].values())
        + "".join(f"\n- not measured: {name} ({why})" for name, why in about["missing"].items()),
    ]
    if about["shrunk"] != 1:
        parts.append(f"**Lengths were divided by {about['shrunk']}: these figures mean nothing.**")
    for group, headline in HEADLINES.items():
        some = [f for f in figures if f.group == group and f.us()]
        if some:
            parts += [f"## {headline}", _table(some)]
    parts += ["## Bars", "```\n" + "\n".join(map(str, verdicts)) + "\n```"]
    return "\n\n".join(parts) + "\n"


def _table(figures):
    families = list(dict.fromkeys(name for f in figures for name in f.families()))
    rows = [["heads", "type", "cell", "ours", "rate", "of read", *families]]
    for (heads, dtype), some in groupby(figures, key=lambda f: (f.heads, f.dtype)):
        some = list(some)
        for f in some:
            row = [f.heads, f.dtype, f.name, f"{f.us():.1f} us", rate(f), f"{f.fraction:.2f}" if f.fraction else ""]
            rows.append(row + [_cell(f, name) for name in families])
        large = [f for f in some if f.kv_bytes > BEYOND_CACHES]
        if len(large) > 1:
            row = [heads, dtype, "**mean of > 8 MiB**", "", f"{geometric_mean([f.gbps for f in large]):.1f} GB/s"]
            fraction = geometric_mean([f.fraction for f in large])
            means = [geometric_mean([f.ratio(name) for f in large]) for name in families]
            row += [f"{fraction:.2f}" if fraction else "", *(f"**{mean:.2f}x**" if mean else "" for mean in means)]
            rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _cell(f, family):
    best = f.best(family)
    if best is None:
        return ""
    us, name = best
    variant = name.removeprefix(family).strip()
    return f"{us:.1f} us, {us / f.us():.2f}x" + (f" ({variant})" if variant else "")
