"""Tables and facts as they reach a pipe: aligned, unfolded, and with names of files as they are."""

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache.cli.tables import print_facts, print_table


def test_words_on_the_left_and_numbers_on_the_right(capsys):
    print_table([["system", "batch", "tokens/s"], ["paged-16", "37.17", "9"], ["a", "7", "1204"]])
    assert capsys.readouterr().out.splitlines() == [
        "system    batch  tokens/s",
        "─────────────────────────",
        "paged-16  37.17         9",
        "a             7      1204",
    ]


def test_rows_of_several_lines_stand_apart(capsys):
    print_table([["workload", "saved"], ["ten short\n1600 tokens", "67 %"], ["one", "2 %"]])
    assert capsys.readouterr().out.splitlines()[2:] == ["ten short     67 %", "1600 tokens", "", "one            2 %"]


def test_facts_are_neither_folded_nor_read_as_markup(capsys):
    print_facts([("requests", "of [bold]trace[/bold].csv " + 100 * "x"), ("seed", "1")])
    assert capsys.readouterr().out.splitlines() == [
        "requests  of [bold]trace[/bold].csv " + 100 * "x",
        "seed      1",
    ]
