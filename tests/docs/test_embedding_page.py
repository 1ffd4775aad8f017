"""docs/embedding.md: every cell of the table of stacks has its test, and every test is there."""

import re

import pytest

HEADINGS = ["zero-copy in", "zero-copy out", "attention", "bfloat16", "fp8", "GPU"]


@pytest.fixture(scope="module")
def page(checkout):
    return (checkout / "docs" / "embedding.md").read_text(encoding="utf-8")


def rows(page, first):
    """The table with this in its head, as lists of cells."""
    table = page[page.index(first) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_cell_has_a_test(page):
    head, _, *stacks = rows(page, "| stack | zero-copy in")
    assert head[1:] == HEADINGS
    cells = {(re.sub(r"\[(.*)\]\(.*\)", r"\1", name), what) for name, *values in stacks
             for what, value in zip(HEADINGS, values, strict=True) if value != "no" or what != "GPU"}  # fmt: skip
    _, _, *tests = rows(page, "| stack | what | test |")
    told = [(stack, what) for stack, names, _ in tests for what in names.split(", ")]
    assert sorted(told) == sorted(cells)


def test_every_test_is_there(page, checkout):
    _, _, *tests = rows(page, "| stack | what | test |")
    for _, _, place in tests:
        path, _, name = place.strip("`").partition("::")
        text = (checkout / path).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), place
