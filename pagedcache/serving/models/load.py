"""From a model file to what runs it."""

import os
import reprlib

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models.gemma import GemmaModel
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama import LlamaModel
from pagedcache.serving.models.runner import Model
from pagedcache.serving.models.tokenizer import Tokenizer


def load_model(path: str | os.PathLike[str]) -> tuple[Model, Tokenizer]:
    """Load a GGUF file's model and tokenizer.

    Returns
    -------
    model : LlamaModel or GemmaModel
        As the file's ``general.architecture`` says.
    tokenizer : Tokenizer

    Raises
    ------
    UnsupportedModel
        The file is damaged, or holds what cannot be computed; the message says what.
    OSError
        The file cannot be read.
    """
    model: LlamaModel | GemmaModel
    with GGUFFile(path) as file:
        architecture = file.metadata.get("general.architecture")
        if architecture not in ("llama", "gemma3"):
            found = reprlib.repr(architecture)
            raise UnsupportedModel(f"general.architecture is {found}; only 'llama' and 'gemma3' are computed")
        tokenizer = Tokenizer(file.metadata)
        model = (LlamaModel if architecture == "llama" else GemmaModel).from_gguf(file)
    if tokenizer.num_tokens != model.config.vocab:
        raise UnsupportedModel(
            f"{path}: the tokenizer has {tokenizer.num_tokens} tokens, the model {model.config.vocab}"
        )
    return model, tokenizer
