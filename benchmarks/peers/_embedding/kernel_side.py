"""The kernel alone, by way of ctypes."""

import ctypes
import time

import numpy as np

from _embedding.cells import BLOCK_SIZE, HEAD_DIM, HEADS, KV_HEADS, LAYERS
from pagedcache.capi import API_VERSION, load_library

POINTER, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
ADDRESSES = ("k", "v", "k_scales", "v_scales")
NUMBERS = ("num_blocks", "block_size", "kv_heads", "head_dim", "v_head_dim", "dtype", "layout")
FUNCTIONS = ("error", "isa", "plan_make", "plan_free", "write", "attend")  # the table begins with these


class Layer(ctypes.Structure):
    """pagedcache_layer."""

    _fields_ = [(name, POINTER) for name in ADDRESSES] + [(name, INT32) for name in NUMBERS]


class Step(ctypes.Structure):
    """pagedcache_step."""

    _fields_ = [
        *((name, INT32) for name in ("num_sequences", "num_tokens", "table_width")),
        ("table_stride", INT64),
        *((name, POINTER) for name in ("block_tables", "qo_indptr", "kv_lens", "kv_pads", "kv_starts", "positions")),
        *((name, POINTER) for name in ("slots", "mask", "mask_indptr")),
        *((name, INT64) for name in ("window", "sink_tokens")),
    ]


class Options(ctypes.Structure):
    """pagedcache_options."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
        *((name, POINTER) for name in ("alibi_slopes", "sink_logits")),
        *((name, INT32) for name in ("exact", "threads")),
    ]


def functions():
    """The first functions of the table, by name."""
    get_api = load_library().pagedcache_get_api
    get_api.restype, get_api.argtypes = POINTER, [INT32]
    places = (POINTER * len(FUNCTIONS)).from_address(get_api(API_VERSION) + 2 * ctypes.sizeof(INT32))
    kinds = {
        "isa": ctypes.CFUNCTYPE(ctypes.c_char_p),
        "plan_make": ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, INT32, POINTER),
        "write": ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER, INT32, POINTER, INT64, INT32),
        "attend": ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER, INT32, POINTER, INT32, POINTER, POINTER),
    }
    return {name: kinds[name](places[FUNCTIONS.index(name)]) for name in kinds}


class KernelSide:
    """`write` and `attend` of every layer."""

    def __init__(self, setting):
        self.cache, ids = setting.cache()
        self.step = step = self.cache.extend(ids, 1)
        self.table, self.numbers = functions(), (setting.q, setting.k, setting.v)
        self.out = np.zeros_like(setting.q)
        self.arrays = self.cache.storage.export(writable=True)
        self.layers = [
            Layer(key.ctypes.data, value.ctypes.data, None, None, setting.num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
            for key, value in self.arrays
        ]
        self.tables = np.ascontiguousarray(step.block_tables)
        self.given = Step(
            len(ids), len(ids), self.tables.shape[1], 0, *(
                array.ctypes.data
                for array in (self.tables, step.qo_indptr, step.kv_lens, step.kv_pads, step.kv_starts, step.positions)
            ), step.slots.ctypes.data,
        )  # fmt: skip
        self.plan, self.options = POINTER(), Options(threads=1)
        where = ctypes.byref(self.layers[0]), ctypes.byref(self.given)
        if self.table["plan_make"](*where, HEADS, ctypes.addressof(self.plan)):
            raise RuntimeError("the plan of the step was refused")

    def run(self, steps):
        """Seconds of so many steps."""
        q, k, v = (array.ctypes.data for array in self.numbers)
        out, slots, plan, n = self.out.ctypes.data, self.step.slots.ctypes.data, self.plan.value, len(self.out)
        options, layers = ctypes.addressof(self.options), [ctypes.addressof(layer) for layer in self.layers]
        write, attend = self.table["write"], self.table["attend"]
        begin = time.perf_counter()
        for _ in range(steps):
            for layer in layers:
                write(layer, k, v, 0, slots, n, 1)
                attend(layer, plan, q, 0, out, 0, None, options)
        return time.perf_counter() - begin

    def rest(self, steps):
        """Seconds of as many calls through ctypes that do nothing."""
        nothing = self.table["isa"]
        begin = time.perf_counter()
        for _ in range(2 * steps * LAYERS):
            nothing()
        return time.perf_counter() - begin

    def check(self):
        """It has computed something."""
        assert self.out.any()
