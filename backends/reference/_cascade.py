"""Attention of a step: sequence by sequence, and to a shared prefix once for all who share it.

The queries of neighbours that begin with the same blocks attend to these together, as if they
were queries of one sequence: K and V of the prefix are gathered once, and the products are large.
Then each sequence attends to the rest of its own keys, and the two results are merged.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pagedcache.backends.host.merge import merged
from pagedcache.backends.host.rule import Rule
from pagedcache.backends.host.sight import Sight
from pagedcache.backends.reference._attention import attend
from pagedcache.backends.reference._reader import LayerReader

__all__ = ["attend_batch"]

Float32 = npt.NDArray[np.float32]


def attend_batch(
    layer: LayerReader,
    q: Float32,
    sights: list[Sight],
    groups: list[tuple[range, int]],
    rule: Rule,
    out: Float32,
    lse: Float32,
) -> None:
    """Fill `out` and `lse` with the attention of all queries of a step.

    Parameters
    ----------
    q : float32 [tokens, q_heads, head_dim]
        Times the scale; sequence after sequence.
    sights : list of Sight
        One per sequence.
    groups : list of (range, int)
        Neighbours, and how many leading keys they share; they see them all through the first one's table.
    """
    ends = np.cumsum([0] + [len(sight.places) for sight in sights]).tolist()
    prefix = {i: keys for members, keys in groups for i in members}
    for i, sight in enumerate(sights):
        mine = slice(ends[i], ends[i + 1])
        rest = replace(sight, begin=prefix[i]) if i in prefix else sight
        if len(sight.places):
            attend(layer, q[mine], rest, rule, out[mine], lse[mine])
    once = replace(rule, sink_logits=None)  # they are in the denominators of the rests
    for members, keys in groups:
        mine = slice(ends[members.start], ends[members.stop])
        if mine.start == mine.stop:
            continue
        together = _together([sights[i] for i in members], keys)
        first_out, first_lse = np.empty_like(out[mine]), np.empty_like(lse[mine])
        attend(layer, q[mine], together, once, first_out, first_lse)
        out[mine], lse[mine] = merged(np.stack([first_out, out[mine]]), np.stack([first_lse, lse[mine]]))


def _together(sights: list[Sight], keys: int) -> Sight:
    """All queries of some sequences, and the leading keys, which are older than the new tokens of each."""
    places = np.concatenate([sight.places for sight in sights])
    positions = np.concatenate([sight.positions for sight in sights])
    return replace(
        sights[0], new=keys, end=keys, places=places, positions=positions, new_positions=places[:0], tree=None
    )
