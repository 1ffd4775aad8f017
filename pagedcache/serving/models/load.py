"""From a model file to what runs it."""

import os

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama import LlamaModel
from pagedcache.serving.models.tokenizer import Tokenizer


def load_model(path: str | os.PathLike[str]) -> tuple[LlamaModel, Tokenizer]:
    """Load a GGUF file's model and tokenizer.

    Raises
    ------
    UnsupportedModel
        The file is damaged, or holds what cannot be computed; the message says what.
    OSError
        The file cannot be read.
    """
    with GGUFFile(path) as file:
        tokenizer = Tokenizer(file.metadata)
        model = LlamaModel.from_gguf(file)
    if tokenizer.num_tokens != model.config.vocab:
        raise UnsupportedModel(
            f"{path}: the tokenizer has {tokenizer.num_tokens} tokens, the model {model.config.vocab}"
        )
    return model, tokenizer
