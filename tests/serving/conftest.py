"""Models for the tests of serving: a tiny random one, and the real one where it can be had."""

import pytest
import tiny_llama

from pagedcache.serving.models import find_model, load_model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    return tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path):
    """(model, tokenizer)"""
    return load_model(tiny_path)


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer) of the real model; its file is fetched once and kept in the user's cache folder."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    try:
        path = find_model()
    except OSError as reason:
        pytest.skip(str(reason))
    return load_model(path)
