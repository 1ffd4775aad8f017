"""The verbs in their usual order, for tests that are about something else."""

from typing import Any

import numpy as np

from pagedcache.core import SequenceTable


def feed(table: SequenceTable, ids: Any, news: list[Any], known: bool = True, see: Any = None) -> int:
    """Extend each row by its new tokens, let `see` look at the step, commit; the number of blocks published."""
    step = table.extend(ids, [len(new) for new in news])
    if see is not None:
        see(step)
    flat = np.concatenate([np.asarray(new, np.int32) for new in news]) if news else np.empty(0, np.int32)
    return table.commit(step, flat if known else None)


def prefill(table: SequenceTable, prompt: Any, see: Any = None, **options: Any) -> int:
    """Admit one prompt and commit what the prefix cache did not have; its handle."""
    admission = table.admit([prompt], **options)
    assert admission.status[0] == 0, "the test's prompt was not admitted"
    sid = int(admission.ids[0])
    feed(table, [sid], [list(prompt)[int(admission.cached[0]) :]], see=see)
    return sid


def blocks_of(table: SequenceTable, sid: int) -> list[int]:
    """Every block of the row: those in use, then those allotted and not yet written."""
    return [int(b) for b in table.block_table(sid)]


def position_of(table: SequenceTable, sid: int) -> int:
    """The next row coordinate."""
    return int(table.position(sid))


def snapshot(table: SequenceTable, *sids: int) -> tuple[Any, ...]:
    """Everything a caller can see, to compare before and after a call that must change nothing."""
    stats = table.stats()
    counters = (stats.free, stats.cached, stats.used, stats.sequences, stats.shared)
    counters += (stats.published, stats.tokens, stats.copies, stats.evictions, stats.query_tokens, stats.hit_tokens)
    return counters, [blocks_of(table, s) for s in sids], [position_of(table, s) for s in sids]
