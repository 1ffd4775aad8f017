"""Draw what a long chat holds of a model most of whose layers see a window: the picture of docs/hybrid.md.

    python benchmarks/window_memory.py docs/images/window_memory.svg

The shape is Gemma 3 270M's: 18 layers, of which 15 see the last 512 tokens. No bytes: block tables alone, as they are
after each step of a chat whose user says 60 tokens and is answered in 140. Needs matplotlib (the extra `plot`).
"""

import argparse

import numpy as np

from pagedcache import CacheSpec, KVCache, LayerGroup
from pagedcache.replay.pictures import drawn, save

WINDOW, GROUPS = 512, 6  # the first group keeps every token
SPEC = CacheSpec(
    18, 1, 256, groups=[LayerGroup(3)] + (GROUPS - 1) * [LayerGroup(3, "sliding_window", WINDOW)], max_step_tokens=256
)
ASKED, ANSWERED = 60, 140  # tokens of a turn


def held_blocks(tokens):
    """Tokens of the chat after each step, and blocks that each group holds then: int [steps], int [steps, groups]."""
    lengths, held = [], []
    with KVCache(SPEC, num_blocks=SPEC.blocks_per_sequence(tokens), storage="metadata") as cache:
        ids = cache.admit([[]]).ids
        while cache.sequence(ids[0]).length < tokens:
            for count in [ASKED] + ANSWERED * [1]:
                cache.commit(cache.extend(ids, count), None)
                lengths.append(cache.sequence(ids[0]).length)
                held.append(cache.stats().group_blocks)
    return np.array(lengths), np.array(held)


def draw(lengths, held):
    """Return the figure: a line for the full group, one for those that slide, one if none did."""

    def lines(figure):
        axes = figure.subplots()
        every = -(-lengths // SPEC.block_size) * GROUPS
        for blocks, label, colour, style in (
            (every, "all six groups, if each kept every token", "#777777", "--"),
            (held.sum(1), "all six groups", "#0072B2", "-"),
            (held[:, 0], "the full group", "#009E73", "-"),
            (held[:, 1], f"each of the five that see {WINDOW} tokens", "#D55E00", "-"),
        ):
            axes.plot(lengths, blocks, color=colour, ls=style, lw=1.6)
            place = len(lengths) * 2 // 3 if style == "--" else -1
            axes.annotate(
                f"{label}: {blocks[-1]:,} at the end",
                (lengths[place], blocks[place]),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=colour,
                fontweight="bold",
            )
        axes.set(xlim=(0, lengths[-1]), ylim=(0, None))
        axes.set(xlabel="tokens of the chat", ylabel=f"blocks of {SPEC.block_size} tokens, 3 layers each")
        axes.grid(axis="y", color="#EEEEEE")
        axes.set_axisbelow(True)

    return drawn((8, 4.2), lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", help="a .svg or .png file")
    parser.add_argument("--tokens", type=int, default=4000, help="length of the chat (%(default)s)")
    options = parser.parse_args()
    lengths, held = held_blocks(options.tokens)
    save(draw(lengths, held), options.picture)
    full = lengths >= 2 * WINDOW
    print(f"each sliding group: {held[full, 1:].min()} to {held[full, 1:].max()} blocks once its window is full")
    print(f"the full group: {held[-1, 0]} blocks at {lengths[-1]} tokens; all groups: {held[-1].sum()}")


if __name__ == "__main__":
    main()
