import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

def span_length(kv_len: int, tile: int, rows: int) -> int: ...

class Plan:
    few: Int32
    many64: Int32
    many128: Int32
    merges: Int32
    parts: int
    plain: bool

def make_plan(
    qo_indptr: Int32,
    kv_lens: Int32,
    kv_starts: Int32,
    kv_pads: Int32,
    positions: Int64,
    block_tables: Int32,
    mask_indptr: Int64 | None,
    prefixes: Int32,
    window: int,
    sink_tokens: int,
    group: int,
    block_size: int,
    num_blocks: int,
    tensor: bool,
    widest: int,
) -> Plan | None: ...
