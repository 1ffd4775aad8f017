"""The real model, loaded once."""

import pytest

from pagedcache.serving.models import find_model, load_model


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer); the file is fetched once and kept in the user's cache folder."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    try:
        path = find_model()
    except OSError as reason:
        pytest.skip(str(reason))
    return load_model(path)
