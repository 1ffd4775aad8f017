"""docs/faults.md: each fault once, in order, with tests that exist and name it, or a word on why there is none."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
ROWS = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| [CIMNPRSTW]\d\d \|.*$", TEXT, re.M)]
LATER, NEVER = "not built yet", "Out of scope"


@pytest.fixture(autouse=True)
def _needs_the_source_tree(checkout):
    assert ROWS, "the page has no table"


def named_tests(cell):
    """(path, name) of the tests in a cell."""
    return re.findall(r"`([\w/.]+\.py)::(\w+)`", cell)


def words_of(path, name):
    """What a test says of itself: its source and the comments above, and what its module and class say in front."""
    source = (ROOT / path).read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    (test,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    first = min([test.lineno, *(each.lineno for each in test.decorator_list)]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join([ast.get_docstring(tree) or "", *lines[first : test.end_lineno]])


def test_every_fault_is_there_once_and_in_order():
    ids = [row[0] for row in ROWS]
    assert ids == sorted(set(ids))
    assert {len(row) for row in ROWS} == {4}
    assert all(row[1] and row[2] for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_fault_has_tests_that_name_it(row):
    fault, _, outcome, cell = row
    tests = named_tests(cell)
    assert len(tests) == cell.count("::"), "a test is not written as `path.py::name`"
    assert tests or (cell == "—" and (LATER in outcome or NEVER in outcome)), "no test, and no reason"
    for path, name in tests:
        assert Path(path).parts[0] == "tests" or path.startswith("pagedcache/testing/")
        assert re.search(rf"(?i)(?<![a-z0-9]){fault}(?![0-9])", words_of(path, name)), f"{name} does not name {fault}"


def test_ids_outside_the_list_are_in_it():
    known = {row[0] for row in ROWS}
    before = TEXT[: TEXT.index("| id |")]
    assert set(re.findall(r"\b[CIMNPRSTW]\d\d\b", before)) <= known


def test_the_numbers_in_the_text_are_those_of_the_list():
    kinds = Counter(
        ("partly" if LATER in outcome else "tested") if "::" in cell else "later" if LATER in outcome else "never"
        for _, _, outcome, cell in ROWS
    )
    said = re.search(
        r"Of (\d+) faults, (\d+) are .*?, (\d+) as far .*?, (\d+) waits? .*? and (\d+) is", TEXT, re.DOTALL
    )
    assert [int(number) for number in said.groups()] == [
        len(ROWS),
        *(kinds[k] for k in "tested partly later never".split()),
    ]
