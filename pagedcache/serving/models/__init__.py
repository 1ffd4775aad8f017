"""Real models in NumPy, whose keys and values live in a paged cache and nowhere else."""

from pagedcache.serving.models.fetch import find_model
from pagedcache.serving.models.fingerprint import model_fingerprint
from pagedcache.serving.models.gemma import GemmaModel
from pagedcache.serving.models.gemma_config import GemmaConfig
from pagedcache.serving.models.gguf_file import GGUFFile
from pagedcache.serving.models.llama import LlamaModel
from pagedcache.serving.models.llama_config import LlamaConfig
from pagedcache.serving.models.load import load_model
from pagedcache.serving.models.runner import Model, Runner, RunnerConfig
from pagedcache.serving.models.tokenizer import TextStream, Tokenizer

__all__ = [
    "GGUFFile",
    "GemmaConfig",
    "GemmaModel",
    "LlamaConfig",
    "LlamaModel",
    "Model",
    "Runner",
    "RunnerConfig",
    "TextStream",
    "Tokenizer",
    "find_model",
    "load_model",
    "model_fingerprint",
]
