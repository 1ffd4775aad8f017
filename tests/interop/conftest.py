"""What tests of adapters share."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def example(program):
    """A function that imports one of docs/examples by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", program(f"docs/examples/{name}.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
