"""The structs that kernels are launched with, as NumPy dtypes: the fields of ``kernels/params.cuh``, in its order."""

import numpy as np

__all__ = ["ATTEND", "GIVEN", "ITEM", "MERGE", "MOVE", "NEVER", "STORE"]

NEVER = 1 << 30
GIVEN = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}  # uint16: the bits of bfloat16


def _struct(fields: str) -> np.dtype[np.void]:
    """Return an aligned struct; each line has a type and the fields of it."""
    pairs = [(name, kind) for kind, *names in map(str.split, fields.strip().splitlines()) for name in names]
    return np.dtype(pairs, align=True)


ITEM = _struct("i4 sequence token rows row place begin end part pad start")
MERGE = _struct("i4 token rows row part count units shared_part shared_count shared_units shared_row")
ATTEND = _struct(
    """
    u8 q k v k_scales v_scales out lse part_out part_weight
    u8 count items merges tables positions mask mask_indptr sink_logits alibi_slopes
    i8 k_block k_slot k_head v_block v_slot v_head s_block s_slot s_head window sink_tokens
    i4 kv_heads group head_dim v_head_dim block_size table_width
    u4 block_magic block_shift
    i4 q_given out_given
    f4 sign scale softcap inverse_softcap
    """
)
STORE = _struct(
    """
    u8 k v slots k_pool v_pool k_scales v_scales
    i8 k_block k_slot k_head v_block v_slot v_head s_block s_slot s_head tokens
    i4 kv_heads head_dim v_head_dim block_size k_given v_given
    """
)
MOVE = _struct(
    """
    u8 sources destinations source destination
    i8 source_token source_head destination_token destination_head count
    i4 arrays tokens heads bytes
    """
)
