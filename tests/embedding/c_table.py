"""The C interface as tests reach it from Python: its structs, and its functions with errors as exceptions."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p

import ml_dtypes
import numpy as np

from pagedcache.capi import API_VERSION, load_library

DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3")
STORED = (np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8)
STATUSES = "OK INVALID NO_MEMORY OUT_OF_BLOCKS OUT_OF_SEQUENCES STALE STEP_OPEN NO_STEP UNSUPPORTED BROKEN".split()


def struct(name, **fields):
    """A ctypes structure of these fields; several in one call keep the header's order."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


def ints(names):
    return dict.fromkeys(names.split(), c_int32)


def pointers(names):
    return dict.fromkeys(names.split(), c_void_p)


Layer = struct(
    "pagedcache_layer",
    **pointers("k v k_scales v_scales"),
    **ints("num_blocks block_size kv_heads head_dim v_head_dim dtype layout"),
)
StepArrays = struct(
    "pagedcache_step",
    **ints("num_sequences num_tokens table_width"),
    table_stride=c_int64,
    **pointers("block_tables qo_indptr kv_lens kv_pads kv_starts positions slots mask mask_indptr"),
    window=c_int64,
    sink_tokens=c_int64,
)
Options = struct(
    "pagedcache_options",
    scale=c_double, softcap=c_double, alibi_slopes=c_void_p, sink_logits=c_void_p, exact=c_int32, threads=c_int32,
)  # fmt: skip
Config = struct(
    "pagedcache_config",
    **ints(
        "num_layers num_blocks block_size kv_heads head_dim v_head_dim dtype layout max_sequences max_length threads"
    ),
    layers=c_void_p,
)
Stats = struct(
    "pagedcache_stats",
    **ints("num_blocks free_blocks used_blocks shared_blocks num_sequences max_sequences"),
    memory_bytes=c_int64,
)
Tensors = struct(
    "pagedcache_tensors",
    **pointers("q k v out lse"),
    **ints("q_heads q_dtype kv_dtype out_dtype"),
    window=c_int64,
    sink_tokens=c_int64,
)
PROTOTYPES = {
    "error": (c_char_p,),
    "isa": (c_char_p,),
    "plan_make": (c_int, POINTER(Layer), POINTER(StepArrays), c_int32, POINTER(c_void_p)),
    "plan_free": (None, c_void_p),
    "write": (c_int, POINTER(Layer), c_void_p, c_void_p, c_int32, c_void_p, c_int64, c_int32),
    "attend": (c_int, POINTER(Layer), c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_void_p, POINTER(Options)),
    "copy_blocks": (c_int, POINTER(Layer), c_int32, c_void_p, c_int64, c_int32),
    "open": (c_int, POINTER(Config), POINTER(c_void_p)),
    "close": (None, c_void_p),
    "layer": (POINTER(Layer), c_void_p, c_int32),
    "start": (c_int, c_void_p, c_int32, c_void_p),
    "extend": (c_int, c_void_p, c_int32, c_void_p, c_void_p),
    "can_extend": (c_int, c_void_p, c_int32, c_void_p, c_void_p),
    "step": (POINTER(StepArrays), c_void_p),
    "copies": (POINTER(c_int32), c_void_p, POINTER(c_int32)),
    "attend_step": (c_int, c_void_p, c_int32, POINTER(Tensors), POINTER(Options)),
    "commit": (c_int, c_void_p),
    "abandon": (c_int, c_void_p),
    "fork": (c_int, c_void_p, c_int64, c_int64, POINTER(c_int64)),
    "truncate": (c_int, c_void_p, c_int32, c_void_p, c_void_p),
    "release": (c_int, c_void_p, c_int32, c_void_p),
    "length": (c_int64, c_void_p, c_int64),
    "stats": (None, c_void_p, POINTER(Stats)),
    "check": (c_int, c_void_p),
}
Table = struct(
    "pagedcache_api", version=c_int32, size=c_int32,
    **{name: ctypes.CFUNCTYPE(*types) for name, types in PROTOTYPES.items()},
)  # fmt: skip
STRUCTS = Layer, StepArrays, Options, Config, Stats, Tensors, Table


class CError(Exception):
    """A call of the table that failed: `status` by name, and its words."""

    def __init__(self, status, words):
        super().__init__(f"{STATUSES[status]}: {words}")
        self.status = STATUSES[status]


def table(version=API_VERSION):
    """The table, or None where the library is older."""
    get_api = load_library().pagedcache_get_api
    get_api.restype, get_api.argtypes = c_void_p, [c_int32]
    address = get_api(version)
    return Table.from_address(address) if address else None


api = table()


def require(status):
    if status:
        raise CError(status, api.error().decode())


def address(array):
    """Where a compact array is; None for None."""
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data


def number(array):
    """The dtype of q, k, v or out, as the header numbers them."""
    return [np.dtype(dtype) for dtype in STORED[:3]].index(array.dtype)


def seen(pointer, shape, dtype):
    """The numbers at an address, as an array over them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype).reshape(shape) if size else None
