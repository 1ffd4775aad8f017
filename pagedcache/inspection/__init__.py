"""What is in a cache, to be looked at: snapshots, who shares what, pictures.

Examples
--------
>>> from pagedcache import CacheSpec, KVCache
>>> from pagedcache.inspection import Snapshot, sharing
>>> cache = KVCache(CacheSpec(layers=1, kv_heads=1, head_dim=8, block_size=4), num_blocks=8)
>>> ids = cache.admit([list(range(6))]).ids
>>> cache.commit(cache.extend(ids, [6]), list(range(6)))
1
>>> _ = cache.fork(ids)
>>> snapshot = Snapshot.of(cache)
>>> snapshot.used, snapshot.shared, snapshot.free
(2, 2, 6)
>>> [(len(run.blocks), len(run.sequences)) for run in sharing(snapshot)]
[(2, 2)]
"""

from pagedcache.inspection.runs import Run, sharing
from pagedcache.inspection.snapshot import SequenceShot, Snapshot

__all__ = ["Run", "SequenceShot", "Snapshot", "sharing"]
