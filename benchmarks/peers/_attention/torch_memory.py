"""torch tensors over the memory and the values of ``data``."""

import numpy as np
import torch

from _attention import data

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.bfloat16}


def tensor(array, dtype):
    """The array's values as a tensor of the cell's type."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(TYPES[dtype])
    return torch.from_numpy(array)


def huge(shape, dtype):
    """A tensor of zeros in huge pages."""
    raw = data.huge_array(int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def start(threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
