"""What every test gets: one BLAS thread, reproducible hypothesis runs, paths of the checkout, a quick collector."""

import gc
import os

# Before NumPy is imported, and inherited by subprocesses: BLAS threads that wait for busy cores spin (docs/caveats.md).
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_finish() -> None:
    """Many tests run the collector, which would search all that the session has imported each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cxx() -> tuple[str, ...]:
    """The command of the C++ compiler that the emulator of a GPU uses; skips where there is none."""
    from pagedcache.backends.cuda_emulated._compiler import compiler
    from pagedcache.errors import UnsupportedByBackend

    try:
        return compiler()
    except UnsupportedByBackend as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The source tree; skips where the tests run without one (from a wheel)."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "setup.py").is_file():
        pytest.skip("needs the source tree")
    return root


@pytest.fixture(scope="session")
def program():
    """A function that gives the path of an example or a benchmark; skips where it is not beside the tests."""

    def find(name: str) -> Path:
        path = Path(__file__).resolve().parents[1] / name
        if not path.is_file():
            pytest.skip(f"needs {name}")
        return path

    return find


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer) of the real model; its file is fetched once and kept in the user's cache folder."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from pagedcache.serving.models import find_model, load_model

    try:
        path = find_model()
    except OSError as reason:
        pytest.skip(str(reason))
    return load_model(path)


@pytest.fixture(scope="session")
def gemma():
    """(model, tokenizer) of Gemma 3 270M; its file is made once of what the extra ``gemma`` installs."""
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from pagedcache.serving.models import find_model, load_model

    try:
        path = find_model("gemma-3-270m")
    except OSError as reason:
        pytest.skip(str(reason))
    return load_model(path)
