"""``pagedcache chat``: lines in, answers and what was found in the prefix cache out."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def chat(command, model, monkeypatch):
    """Feed lines to a conversation, as if from a pipe; (exit status, standard output, standard error)."""

    def run(*lines, options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return command("chat", "--model", model, "--max-tokens", 5, "--memory", "1MiB", "--block-size", 4, *options)

    return run


def found(err):
    """(found, all) prompt tokens of each turn."""
    return [(int(a), int(b)) for a, b in re.findall(r"found (\d+) of (\d+) tokens in the prefix cache", err)]


def test_later_turns_are_found_in_the_prefix_cache(chat):
    status, out, err = chat("the", "", "  and  ", "an")
    assert status == 0
    assert out
    (first, one), (second, two), (third, three) = found(err)
    assert first == 0
    assert second == (one + 5 - 1) // 4 * 4
    assert third == (two + 5 - 1) // 4 * 4
    assert three > two > one


def test_quiet_prints_the_answers_alone(chat):
    _, out, _ = chat("the", "and")
    assert chat("the", "and", "/stats", "/reset", options=["--quiet"]) == (0, out, "")


def test_answers_do_not_depend_on_what_was_found(chat):
    """Blocks of 250 tokens are never full, hence never found."""
    _, out, _ = chat("the", "and", options=["--quiet"])
    assert chat("the", "and", options=["--block-size", 250])[1] == out


def test_reset_forgets_the_conversation_and_keeps_its_blocks(chat):
    _, out, err = chat("the", "/reset", "the", options=["--system", "and"])
    (_, one), again = found(err)
    assert again == ((one - 1) // 4 * 4, one)
    answers = out.encode()
    assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]
    assert "a new conversation" in err


def test_quit_ends(chat):
    _, out, err = chat("the", "/quit", "and")
    assert len(found(err)) == 1
    assert out == chat("the")[1]


def test_stats(chat):
    _, _, err = chat("/stats", "the", "and", "/stats")
    before, _, after = err.partition("found 0 of ")
    assert re.search(r"conversation +0 turns, 0 of at most 256 tokens", before)
    assert re.search(r"conversation +2 turns, \d+ of at most 256 tokens", after)
    turns = found(err)
    total = re.search(r"(\d+) of (\d+) tokens in the prefix cache, over all turns, (\d+) %", after)
    hits, tokens = (sum(column) for column in zip(*turns, strict=True))
    assert tuple(map(int, total.groups())) == (hits, tokens, round(100 * hits / tokens))
    assert re.search(r"blocks +\d+ of \d+ kept, with room for 4 tokens each", after)


def test_what_looks_like_a_command_is_none(chat):
    status, _, err = chat("/rest", "/usr/bin", "/a b")
    assert status == 0
    assert "/rest is no command; there are /reset, /stats and /quit" in err
    assert len(found(err)) == 2, "the other two are messages"


def test_an_answer_that_was_cut_says_so(chat):
    assert "the answer was cut after 5 tokens" in chat("the")[2]


def test_a_full_conversation(chat):
    """The tiny model's context is 256 tokens."""
    status, _, err = chat("the", "and", "/reset", "an", options=["--max-tokens", 999])
    assert status == 1, "a message had no answer"
    assert "the answer ends here because the conversation is full: /reset begins anew" in err
    assert "and 256 is the most, answer included: say less, or reset it" in err
    assert len(found(err)) == 2


def test_a_line_that_is_no_text(chat):
    status, _, err = chat("\udcff", "the")
    assert status == 1
    assert "is the input UTF-8?" in err
    assert len(found(err)) == 1, "the conversation goes on"


def test_the_end_of_input_at_once(chat):
    assert chat() == (0, "", "")


def test_sampling_is_repeatable(chat):
    first, again, other = (chat("the", "the", options=["--temperature", 1, "--seed", seed])[1] for seed in (1, 1, 2))
    assert first == again != other


@pytest.fixture
def terminal(monkeypatch):
    """Make standard input a terminal on which lines are typed; an exception among them is raised."""

    def type_in(*lines):
        typed = iter(lines)

        def read(prompt):
            assert prompt == "> "
            line = next(typed, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    return type_in


def on_terminal(command, model):
    return command("chat", "--model", model, "--max-tokens", 5, "--memory", "1MiB", "--block-size", 4)


def test_on_a_terminal(command, model, terminal, chat):
    piped = chat("the", "and")
    terminal("the", "", "and")
    status, out, err = on_terminal(command, model)
    assert (status, out) == (0, piped[1])
    assert found(err) == found(piped[2])
    assert "commands are /reset, /stats and /quit" in err


def test_interrupt_at_the_prompt_ends(command, model, terminal):
    terminal("the", KeyboardInterrupt())
    status, _, err = on_terminal(command, model)
    assert status == 130
    assert len(found(err)) == 1


def test_interrupt_ends_an_answer_and_not_the_conversation(command, model, terminal, monkeypatch):
    from pagedcache.serving.models import LlamaModel

    whole, calls = LlamaModel.forward, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 8:  # 5 are the first answer's
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(LlamaModel, "forward", interrupted)
    terminal("the", "and", "and")
    status, _, err = on_terminal(command, model)
    assert status == 0
    assert "this message and its answer are forgotten" in err
    _, (hits, two) = found(err)
    assert hits == (two - 1) // 4 * 4, "what was computed before the interrupt is found"


def test_interrupt_in_a_pipe_ends(chat, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("pagedcache.serving.models.LlamaModel.forward", interrupt)
    assert chat("the", "and")[0] == 130


def test_a_model_that_cannot_chat(chat, model, tmp_path):
    path = tmp_path / "plain.gguf"
    path.write_bytes(Path(model).read_bytes().replace(b"<|im_start|>", b"<|no_start|>"))
    status, out, err = chat("the", options=["--model", str(path)])
    assert (status, out) == (1, "")
    assert err.startswith("pagedcache: this model does not talk in ChatML")


def test_a_real_pipe(model):
    """Answers appear one after the other, as the lines come."""
    command = [sys.executable, "-m", "pagedcache", "chat", "--model", model, "--max-tokens", "3", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"the\n")
        process.stdin.flush()
        assert process.stdout.read(1), "the first answer does not wait for the second message"
        process.stdin.close()
        process.stdout.read()
    assert process.returncode == 0
