"""A tiny random model for the tests of serving."""

import pytest
import tiny_llama

from pagedcache.serving.models import load_model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    return tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path):
    """(model, tokenizer)"""
    return load_model(tiny_path)
