"""Types of the native module."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedcache.backends.protocol import StepLike
from pagedcache.spec import CacheSpec

def compiled() -> tuple[str, ...]: ...
def supported() -> tuple[str, ...]: ...
def current() -> str: ...
def use(name: str) -> None: ...
def has_native() -> bool: ...

WIDEST: int

class Layer:
    block_size: int
    num_blocks: int
    kv_heads: int
    def __init__(self, spec: CacheSpec, group: int, num_blocks: int, arrays: tuple[npt.NDArray[Any], ...]) -> None: ...

class Plan:
    @staticmethod
    def of(
        layer: Layer,
        step: StepLike,
        group: int,
        tokens: int,
        q_group: int,
        window: int | None,
        sink_tokens: int,
        mask: Any,
        mask_indptr: Any,
    ) -> Plan | None: ...
    @staticmethod
    def make(
        layer: Layer,
        step: StepLike,
        group: int,
        tokens: int,
        q_group: int,
        window: int,
        sink_tokens: int,
        mask: Any,
        mask_indptr: Any,
    ) -> Plan | None: ...

def attend(
    layer: Layer,
    plan: Plan,
    q: npt.NDArray[Any],
    out: npt.NDArray[Any],
    lse: npt.NDArray[np.float32] | None,
    scale: float,
    softcap: float | None,
    slopes: npt.NDArray[np.float32] | None,
    sink_logits: npt.NDArray[np.float32] | None,
    native: bool,
    threads: int,
) -> None: ...
def usual_attend(
    layer: Layer, q: Any, k: Any, v: Any, step: StepLike, scale: Any, out: Any, lse: Any, threads: int
) -> npt.NDArray[Any] | None: ...
def are_slots(layer: Layer, slots: Any) -> bool: ...
def are_finite(array: npt.NDArray[Any]) -> bool: ...
def store(
    layer: Layer, k: npt.NDArray[Any], v: npt.NDArray[Any], slots: npt.NDArray[np.int64], threads: int
) -> None: ...
def copy_rows(
    src: npt.NDArray[Any],
    from_rows: npt.NDArray[np.int64] | None,
    dst: npt.NDArray[Any],
    to_rows: npt.NDArray[np.int64] | None,
    nbytes: int,
    threads: int,
) -> None: ...
