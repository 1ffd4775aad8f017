"""Whatever holds numbers in the CPU's memory, as a NumPy array."""

import contextlib
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedcache.exchange._dtypes import CODES, FOREIGN, as_bits, numpy_dtype
from pagedcache.exchange._take import take

__all__ = ["as_floats", "as_numpy", "bits_of"]

ON_CPU = (1, 3, 11)  # kDLCPU; the CPU's memory that is pinned by CUDA or ROCm
DEVICES = {2: "a CUDA GPU", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "a ROCm GPU", 13: "a CUDA GPU"}
VERSION = (1, 1)  # of DLPack, asked for


def as_numpy(value: Any, name: str = "value", *, copy: bool | None = None) -> NDArray[Any]:
    """Return the memory of an array of any library as a NumPy array, which keeps it alive.

    Parameters
    ----------
    value
        What has ``__dlpack__`` (torch, JAX, ONNX Runtime, `Exported`), ``__array_interface__``, the buffer
        protocol or ``__array__``, in the CPU's memory; or numbers in lists.
    name : str
        What errors call it.
    copy : bool, optional
        None: only where there is no other way, as for lists; False: never; True: always.

    Returns
    -------
    ndarray
        bfloat16 and fp8 are ml_dtypes', or unsigned integers where that is not installed. It is read-only where
        the value's owner says so, or cannot say (JAX).

    Raises
    ------
    TypeError
        The value is on another device, requires a gradient, or is nothing that can be read; or without a copy,
        where `copy` is False.

    Examples
    --------
    >>> as_numpy(memoryview(b"abc")).tolist()
    [97, 98, 99]
    """
    if type(value) is np.ndarray and not copy:  # most often
        return value
    array, kind = bits_of(value, name, copy)
    return array.view(numpy_dtype(kind)) if kind else array


def as_floats(value: Any, name: str = "value", stored: str = "") -> NDArray[Any]:
    """Return what `as_numpy` does; where ml_dtypes is not installed, bfloat16 as float32, exactly.

    uint16 stands for it even so where it is what is `stored`.

    >>> from pagedcache.exchange import export
    >>> as_floats(export(np.full(2, 0x3FC0, np.uint16), "bfloat16"), "k").astype(np.float64).tolist()
    [1.5, 1.5]
    """
    if type(value) is np.ndarray:
        return value
    bits, kind = bits_of(value, name)
    if not kind:
        return bits
    dtype = numpy_dtype(kind)
    array: NDArray[Any] = bits.view(dtype)
    if kind == "bfloat16" and dtype == np.uint16 and stored != kind:
        array = np.left_shift(bits, np.uint32(16), dtype=np.uint32).view(np.float32)
    return array


def bits_of(value: Any, name: str, copy: bool | None = None) -> tuple[NDArray[Any], str]:
    """Return what `as_numpy` does, but bfloat16 and fp8 as unsigned integers and with their name, which else is ''.

    >>> from pagedcache.exchange import export
    >>> bits, kind = bits_of(export(np.zeros(3, np.uint8), "float8_e5m2"), "k")
    >>> bits.dtype.name, kind
    ('uint8', 'float8_e5m2')
    """
    if isinstance(value, np.ndarray):
        return as_bits(np.array(value, copy=copy))
    why: Exception | None = None
    if type(value).__module__ == "torch" and not copy and _has_numpy_type(getattr(value, "dtype", None)):
        with contextlib.suppress(TypeError, RuntimeError):  # what is wrong is said below
            return value.numpy(), ""  # a quarter of the time of DLPack
    if hasattr(value, "__dlpack__"):
        try:
            array, kind = take(_capsule(value), type(value))
        except Exception as error:
            why = error  # such as a type that only NumPy's protocols have
        else:
            return (array.copy() if copy else array), kind if kind in FOREIGN else ""
    _refuse_elsewhere(value, name)
    if getattr(value, "requires_grad", False) is True:
        raise TypeError(f"{name} is {_kind(value)} that requires a gradient: give {name}.detach()") from why
    try:
        return as_bits(np.array(value, copy=copy))
    except Exception as error:
        if copy is False and why is None:
            raise TypeError(f"{name} is {_kind(value)}; it must be an array, whose memory is used as it is") from error
        raise TypeError(f"{name} is {_kind(value)}, which NumPy cannot read: {why or error}") from error


@functools.cache
def _has_numpy_type(dtype: Any) -> bool:
    """Whether NumPy has a dtype of torch's: it is slow to say that it has not."""
    name = str(dtype).removeprefix("torch.")
    return name in CODES and name not in FOREIGN


def _capsule(value: Any) -> Any:
    """Return what the value exports, with a flag for read-only memory where it knows that."""
    try:
        return value.__dlpack__(max_version=VERSION)
    except TypeError:  # it is older than DLPack 1.0
        return value.__dlpack__()


def _refuse_elsewhere(value: Any, name: str) -> None:
    where = ""
    if (place := getattr(value, "__dlpack_device__", None)) is not None:
        try:
            device, number = (int(part) for part in place())
        except Exception:  # a tensor of torch without memory
            where = str(getattr(value, "device", "a device that DLPack does not know"))
        else:
            named = DEVICES.get(device, f"a device of DLPack type {device}, number")
            where = "" if device in ON_CPU else f"{named} {number}"
    elif hasattr(value, "__cuda_array_interface__"):
        where = "a CUDA GPU"
    if where:
        raise TypeError(
            f"{name} is {_kind(value)} on {where}; here it must be in the CPU's memory: give {name}.cpu() (torch), "
            f"{name}.get() (CuPy) or jax.device_get({name})"
        )


def _kind(value: Any) -> str:
    return type(value).__name__
