"""What a sequence of a table with several layer groups must show: what each group sees of it, and still has."""

from dataclasses import dataclass, field

Side = tuple[int | None, int, bool]  # window, sink tokens, is chunked


def lowest_seen(side: Side, position: int, pad: int) -> int:
    """The first row coordinate behind the sinks that a query at `position` sees."""
    window, _, chunked = side
    if window is None:
        return pad
    return position - (position - pad) % window if chunked else max(pad, position - window + 1)


def seen(side: Side, position: int, pad: int) -> list[int]:
    """All of them, the sinks first."""
    first = lowest_seen(side, position, pad)
    return [*range(pad, min(first, pad + side[1])), *range(first, position + 1)]


def kept(side: Side, pad: int, block_size: int) -> int:
    """Leading blocks that hold sinks, and are never released."""
    return -(-(pad + side[1]) // block_size) if side[1] else 0


@dataclass
class Sequence:
    """Committed tokens, and from where on each side group still has its blocks."""

    tokens: list[int]
    pad: int
    promised: int  # positions that admit has promised blocks for; 0 once something else has happened to it
    first: list[int]  # per side group: first block behind the sinks that was not released
    away: bool = False
    prompt: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.pad + len(self.tokens)

    def slide(self, sides: list[Side], block_size: int) -> None:
        """Blocks that no query at the position sees are released."""
        for g, side in enumerate(sides):
            if side[0] is None:
                continue
            self.first[g] = max(self.first[g], lowest_seen(side, self.position, self.pad) // block_size)

    def lowest_cut(self, sides: list[Side], block_size: int) -> int:
        """The lowest position at which every group has what a query there sees."""
        sinks = [kept(side, self.pad, block_size) for side in sides]
        return next(
            at
            for at in range(self.pad, self.position + 1)
            if at == self.position
            or all(
                first <= end or lowest_seen(side, at, self.pad) >= first * block_size
                for side, first, end in zip(sides, self.first, sinks, strict=True)
            )
        )
