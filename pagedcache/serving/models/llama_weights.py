"""The weights of a llama model, taken from a GGUF file as float32."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama_config import LlamaConfig

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight + bias``."""

    weight: Float32  # [in, out]; a GGUF has [out, in], by which BLAS multiplies few tokens more slowly
    bias: Float32 | None  # [out]

    def __call__(self, x: Float32) -> Float32:
        y = x @ self.weight
        if self.bias is not None:
            y += self.bias
        return y


class Weights:
    """Takes tensors out of a file by name and expected shape, and tells which ones nobody took."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._left = set(file.tensors)

    def array(self, name: str, *shape: int) -> Float32:
        array = self.optional(name, *shape)
        if array is None:
            raise UnsupportedModel(f"{self._file.path}: the tensor {name!r} is missing")
        return array

    def optional(self, name: str, *shape: int) -> Float32 | None:
        if name not in self._left:
            return None
        found = self._file.tensors[name].shape
        if found != shape:
            raise UnsupportedModel(
                f"{self._file.path}: the tensor {name!r} has shape {found}; the metadata say {shape}"
            )
        self._left.remove(name)
        return self._file.float32(name)

    def linear(self, name: str, outputs: int, inputs: int) -> Linear:
        weight = np.ascontiguousarray(self.array(f"{name}.weight", outputs, inputs).T)
        return Linear(weight, self.optional(f"{name}.bias", outputs))

    def refuse_leftovers(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left)[:3])
            raise UnsupportedModel(
                f"{self._file.path}: {len(self._left)} tensors have no place in a llama model ({names})"
            )


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The weights of one layer."""

    attn_norm: Float32  # [width]
    attn_q: Linear  # width -> heads * head_dim
    attn_k: Linear  # width -> kv_heads * head_dim
    attn_v: Linear  # width -> kv_heads * v_head_dim
    attn_output: Linear  # heads * v_head_dim -> width
    ffn_norm: Float32  # [width]
    ffn_gate: Linear  # width -> ffn_width
    ffn_up: Linear  # width -> ffn_width
    ffn_down: Linear  # ffn_width -> width

    @classmethod
    def read(cls, weights: Weights, number: int, config: LlamaConfig) -> Self:
        c, block = config, f"blk.{number}"
        q, k, v = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.v_head_dim
        return cls(
            attn_norm=weights.array(f"{block}.attn_norm.weight", c.width),
            attn_q=weights.linear(f"{block}.attn_q", q, c.width),
            attn_k=weights.linear(f"{block}.attn_k", k, c.width),
            attn_v=weights.linear(f"{block}.attn_v", v, c.width),
            attn_output=weights.linear(f"{block}.attn_output", c.width, c.heads * c.v_head_dim),
            ffn_norm=weights.array(f"{block}.ffn_norm.weight", c.width),
            ffn_gate=weights.linear(f"{block}.ffn_gate", c.ffn_width, c.width),
            ffn_up=weights.linear(f"{block}.ffn_up", c.ffn_width, c.width),
            ffn_down=weights.linear(f"{block}.ffn_down", c.width, c.ffn_width),
        )
