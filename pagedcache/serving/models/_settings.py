"""Reading the keys of one architecture from GGUF metadata, each checked: the file may come from a stranger."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from pagedcache.errors import UnsupportedModel

MAX_SIZE = 1 << 24  # of every count; real models stay far under it

# Keys that change the arithmetic of a decoder, and the values that leave it as it is computed here.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0,),
    "rope.scale_linear": (1.0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}


class Settings:
    """The ``architecture.*`` keys of a file's metadata.

    Parameters
    ----------
    metadata : mapping
        ``GGUFFile.metadata``.
    architecture : str
        The one that is computed; any other raises UnsupportedModel, as does whatever is not computed in it.
    **neutral : tuple
        Further keys, dots written as two underscores, and the values that they may have.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str, **neutral: tuple[object, ...]) -> None:
        self._metadata, self._architecture = metadata, architecture
        if (found := metadata.get("general.architecture")) != architecture:
            raise UnsupportedModel(
                f"general.architecture is {reprlib.repr(found)}; only {architecture!r} is computed here"
            )
        for name, legal in (_NEUTRAL | {key.replace("__", "."): values for key, values in neutral.items()}).items():
            if (value := self.get(name, legal[0])) not in legal:
                raise self.refused(name, value, f"only {' or '.join(map(repr, legal))} is computed")

    def get(self, name: str, default: object = None) -> Any:
        """Return a value as it stands in the file."""
        return self._metadata.get(f"{self._architecture}.{name}", default)

    def size(self, name: str, default: int | None = None, *, maximum: int = MAX_SIZE) -> int:
        """Return a count."""
        value = self.get(name, default)
        if type(value) is not int or not 0 < value <= maximum:
            raise self.refused(name, value, f"one number from 1 to {maximum} is needed")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a real number above 0."""
        value = self.get(name, default)
        if type(value) is not float or not 0 < value < math.inf:
            raise self.refused(name, value, "a positive number is needed")
        return value

    def vocab(self) -> int:
        """Return the size of the vocabulary, which few files give but by its tokens."""
        return self.size("vocab_size", len(self._metadata.get("tokenizer.ggml.tokens", ())))

    def refused(self, name: str, value: object, why: str) -> UnsupportedModel:
        """Make the exception for a value that is not as it should be."""
        return UnsupportedModel(f"{self._architecture}.{name} is {reprlib.repr(value)}; {why}")
