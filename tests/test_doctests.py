"""The examples in the docstrings run, of the compiled modules too."""

import doctest
import importlib
import pkgutil

import pytest

import pagedcache

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names():
    found = pkgutil.walk_packages(pagedcache.__path__, "pagedcache.")
    return ["pagedcache", *sorted(module.name for module in found if not module.name.endswith("__main__"))]


@pytest.mark.parametrize("name", module_names())
def test_examples_of(name):
    if name.startswith("pagedcache.interop."):
        pytest.importorskip(name.split(".")[2])
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    examples = {test.docstring: test for test in tests if test.examples}  # Cython lists a docstring twice
    report = []
    for test in examples.values():
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not report, "".join(report)


def test_there_are_examples():
    """The finder sees compiled modules and classes."""
    found = doctest.DocTestFinder().find(importlib.import_module("pagedcache.core.block_pool"))
    assert any(test.examples for test in found)
