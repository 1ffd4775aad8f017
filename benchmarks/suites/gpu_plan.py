"""The plan of a step for a GPU, which is made on the CPU: once per step, for all layers."""

from .common import BLOCK_SIZE, running_table

GROUP = 4  # query heads of a KV head


def plan_of_step(step):
    """Plan a step without variants, as backend cuda does for float16 storage."""
    import numpy as np

    from pagedcache.backends.cuda._plan import make_plan

    return make_plan(
        step.qo_indptr,
        step.kv_lens,
        step.kv_starts,
        step.kv_pads,
        step.positions,
        step.block_tables,
        None,
        np.empty((0, 3), np.int32),
        window=2**62,
        sink_tokens=0,
        group=GROUP,
        block_size=BLOCK_SIZE,
        num_blocks=1 << 20,
        tensor=True,
        widest=128,
    )


class Plan:
    """A decode step of sequences at 2048 tokens: eight spans of 256 keys each."""

    params = (32, 256)
    param_names = ("sequences",)

    def setup(self, sequences):
        self.table, ids = running_table(sequences, 2048, room=16)
        self.step = self.table.extend(ids, 1)
        plan_of_step(self.step)  # imports

    def time_plan(self, sequences):
        plan_of_step(self.step)
