"""The command, run within the tests' own process, and a tiny model for it."""

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Path of the tiny model, as text."""
    for extra in ("click", "rich", "gguf", "threadpoolctl", "tokenizers"):
        pytest.importorskip(extra)
    import tiny_llama

    return str(tiny_llama.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def command(capsys):
    """Run the command; (exit status, standard output, standard error)."""
    from pagedcache.cli import main

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
