"""The order in which texts that grow together are printed."""

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from pagedcache.cli.screen import Screen


def test_one_text_is_printed_as_it_grows(capsys):
    screen = Screen([""], quiet=False, texts=True)
    screen.text(0, "a", False)
    assert capsys.readouterr().out == "a"
    screen.text(0, "b", True)
    assert capsys.readouterr().out == "b\n"


def test_the_others_wait_for_their_turn(capsys):
    screen = Screen(["first", "second", "third"], quiet=False, texts=True)
    screen.text(1, "b", False)
    screen.text(2, "c", True)
    assert capsys.readouterr().out == ""
    screen.text(0, "a", False)
    assert capsys.readouterr().out == "── first\na"
    screen.text(0, "A", True)
    assert capsys.readouterr().out == "A\n── second\nb"
    screen.text(1, "B", True)
    assert capsys.readouterr().out == "B\n── third\nc\n"


def test_empty_text_has_a_headline(capsys):
    screen = Screen(["first", "second"], quiet=False, texts=True)
    screen.text(0, "", True)
    screen.text(1, "b", True)
    assert capsys.readouterr().out == "── first\n\n── second\nb\n"


def test_texts_can_be_left_out(capsys):
    screen = Screen([""], quiet=True, texts=False)
    screen.text(0, "a", True)
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_no_control_characters(capsys, monkeypatch):
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    screen = Screen([""], quiet=True, texts=True)
    screen.text(0, "a\x1b[31m\x9b\r\n\tb", True)
    assert capsys.readouterr().out == "a\ufffd[31m\ufffd\ufffd\n\tb\n"


def test_progress_is_silent_where_nobody_looks(capsys):
    screen = Screen([""], quiet=False, texts=True)
    with screen.download() as progress, screen.waiting("loading"):
        progress(1, 2)
    screen.prefill(1, 2)
    screen.prefill(2, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen([""], quiet=False, texts=True)
    with screen.download() as progress:
        progress(1, 2)
    with screen:
        screen.prefill(1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "downloading the model" in err
    assert "reading the prompts" in err


def test_ways_of_serving_take_turns_on_one_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Screen(quiet=False) as screen:
        screen.serve("contiguous", 1, 2)
        screen.serve("paged", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.rindex("contiguous") < err.rindex("paged")


def test_the_first_text_ends_the_progress_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen([""], quiet=False, texts=True)
    screen.prefill(1, 3)
    assert screen._progress is not None
    screen.text(0, "a", False)
    assert screen._progress is None
    screen.prefill(2, 3)
    assert screen._progress is None
    screen.text(0, "", True)
