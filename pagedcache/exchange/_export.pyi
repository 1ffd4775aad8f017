from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class Exported:
    array: NDArray[Any]
    dtype: str
    shape: tuple[int, ...]
    ndim: int
    nbytes: int
    readonly: bool
    data_ptr: int
    def __init__(self, array: NDArray[Any], dtype: str, bits: NDArray[Any]) -> None: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __len__(self) -> int: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Sequence[int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

def export(array: Any, dtype: str | None = None, *, writable: bool | None = None) -> Exported: ...
