"""The weights of a decoder, taken from a GGUF file as float32."""

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models.gguf_file import GGUFFile

Float32 = NDArray[np.float32]
BLAS_ROWS = 4  # OpenBLAS multiplies 4 rows at once; what is left over of them mostly takes longer than 4 would
COPIED_ROWS = 256  # transposed at a time: a head of 262144 rows takes 4 times as long at once, beyond all caches


class Sizes(Protocol):
    """What the shapes of weights follow from."""

    @property
    def width(self) -> int:
        """Of the residual stream."""

    @property
    def ffn_width(self) -> int:
        """Of the feed-forward network."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> int:
        """Of queries and keys."""

    @property
    def v_head_dim(self) -> int:
        """Of values."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight + bias``."""

    weight: Float32  # [in, out]; a GGUF has [out, in], by which BLAS multiplies few tokens at half the speed
    bias: Float32 | None  # [out]

    def __call__(self, x: Float32) -> Float32:
        rows = len(x)
        if rows > 1 and rows % BLAS_ROWS:
            padded = np.zeros((rows + -rows % BLAS_ROWS, x.shape[1]), np.float32)
            padded[:rows] = x
            x = padded
        y: Float32 = (x @ self.weight)[:rows]
        if self.bias is not None:
            y += self.bias
        return y


class Weights:
    """Takes tensors out of a file by name and expected shape, and tells which ones nobody took.

    Matrices of products lie in one piece of memory: a system gives large pages to large pieces, and with them few
    tokens, for which reading the weights is most of the work, take a tenth less time.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._left = set(file.tensors)
        self._memory = np.empty(sum(math.prod(tensor.shape) for tensor in file.tensors.values()), np.float32)

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

    def linear(self, inputs: int, outputs: dict[str, int]) -> Linear:
        """Take the tensors of these names, with so many outputs each, as one."""
        parts = [
            (self.array(f"{name}.weight", count, inputs), self.optional(f"{name}.bias", count))
            for name, count in outputs.items()
        ]
        return self.stack(*parts)

    def stack(self, *parts: tuple[Float32, Float32 | None]) -> Linear:
        """Make one of several (weight [out, in], bias) that have one input: their outputs come side by side.

        One product runs faster than three: BLAS divides it among its threads once.
        """
        shape = parts[0][0].shape[1], sum(len(rows) for rows, _ in parts)
        place, self._memory = np.split(self._memory, [math.prod(shape)])
        weight, done = place.reshape(shape), 0
        for rows, _ in parts:
            for begin in range(0, len(rows), COPIED_ROWS):
                some = rows[begin : begin + COPIED_ROWS]
                weight[:, done : done + len(some)] = some.T
                done += len(some)
        if all(bias is None for _, bias in parts):
            return Linear(weight, None)
        biases = [np.zeros(len(rows), np.float32) if bias is None else bias for rows, bias in parts]
        return Linear(weight, np.concatenate(biases))

    def embedding_and_head(self, vocab: int, width: int) -> tuple[Float32, Linear]:
        """Take the embedding [vocab, width] and the product from width to vocab, which many models tie.

        A tied embedding is a view of the head's weight, transposed: BLAS wants the head that way.
        """
        embedding = self.array("token_embd.weight", vocab, width)
        own = self.optional("output.weight", vocab, width)
        head = self.stack((embedding if own is None else own, None))
        return (head.weight.T if own is None else embedding), head

    def refuse_leftovers(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left)[:3])
            architecture = self._file.metadata["general.architecture"]
            raise UnsupportedModel(
                f"{self._file.path}: {len(self._left)} tensors have no place in a {architecture} model ({names})"
            )


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer: attention and a gated feed-forward network, each with a norm before it."""

    attn_norm: Float32  # [width]
    attn_qkv: Linear  # width -> (heads + kv_heads) * head_dim + kv_heads * v_head_dim
    attn_output: Linear  # heads * v_head_dim -> width
    ffn_norm: Float32  # [width]
    ffn_gate_up: Linear  # width -> 2 * ffn_width
    ffn_down: Linear  # ffn_width -> width

    @classmethod
    def read(cls, weights: Weights, number: int, config: Sizes) -> Self:
        """Take those of one layer."""
        c, block = config, f"blk.{number}"
        q, k, v = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.v_head_dim
        return cls(
            attn_norm=weights.array(f"{block}.attn_norm.weight", c.width),
            attn_qkv=weights.linear(c.width, {f"{block}.attn_q": q, f"{block}.attn_k": k, f"{block}.attn_v": v}),
            attn_output=weights.linear(c.heads * c.v_head_dim, {f"{block}.attn_output": c.width}),
            ffn_norm=weights.array(f"{block}.ffn_norm.weight", c.width),
            ffn_gate_up=weights.linear(c.width, {f"{block}.ffn_{part}": c.ffn_width for part in ("gate", "up")}),
            ffn_down=weights.linear(c.ffn_width, {f"{block}.ffn_down": c.width}),
        )
