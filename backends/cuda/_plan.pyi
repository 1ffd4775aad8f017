from typing import final

import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]

def span_length(kv_len: int, tile: int, rows: int) -> int: ...

class List: ...

@final
class Plan:
    few: _Int32
    many64: _Int32
    many128: _Int32
    merges: _Int32
    parts: int
    plain: bool

def make_plan(
    qo_indptr: _Int32,
    kv_lens: _Int32,
    kv_starts: _Int32,
    kv_pads: _Int32,
    positions: _Int64,
    block_tables: _Int32,
    mask_indptr: _Int64 | None,
    prefixes: _Int32,
    window: int,
    sink_tokens: int,
    group: int,
    block_size: int,
    num_blocks: int,
    tensor: bool,
    widest: int,
) -> Plan | None: ...
