"""``--cache-dir``: what earlier calls have computed is found, and nothing else is different."""

import io
import json
import re
import stat


def generated(command, model, *arguments):
    """The completion's tokens and how many of the prompt's were not computed."""
    status, out, err = command("generate", "--model", model, "--json", "--block-size", "4", *arguments)
    assert status == 0, err
    told = json.loads(out)
    return told["completions"][0]["tokens"], told["report"]["reused_tokens"], told["completions"][0]["text"]


def test_yesterdays_prompt_is_not_computed_again(command, model, tmp_path):
    folder = tmp_path / "kept"
    text = "The quick brown fox jumps over the lazy dog"
    plain = generated(command, model, "--raw", text)
    first = generated(command, model, "--raw", text, "--cache-dir", folder)
    again = generated(command, model, "--raw", text, "--cache-dir", folder)
    assert first[0] == again[0] == plain[0] and first[1] == 0 < again[1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_conversation_goes_on(command, model, tmp_path):
    text = "The quick brown fox"
    _, _, answer = generated(command, model, "--raw", text, "--cache-dir", tmp_path / "kept")
    longer = text + answer.encode("ascii", "ignore").decode()[:8] + " and then"
    plain = generated(command, model, "--raw", longer)
    assert generated(command, model, "--raw", longer, "--cache-dir", tmp_path / "kept")[0] == plain[0]


def test_another_model_is_refused(command, model, tmp_path):
    import tiny_llama

    other = tiny_llama.write(tmp_path / "other.gguf", seed=1)
    generated(command, model, "--raw", "some text", "--cache-dir", tmp_path / "kept")
    status, _, err = command(
        "generate", "--model", other, "--raw", "--block-size", "4", "x", "--cache-dir", tmp_path / "kept"
    )
    assert status == 1 and "fingerprint" in err and "Traceback" not in err


def test_a_size_that_is_none(command, model, tmp_path):
    status, _, err = command(
        "generate", "--model", model, "x", "--cache-dir", tmp_path / "kept", "--cache-size", "lots"
    )
    assert status == 2 and "lots" in err


def test_chat_finds_it_too(command, model, tmp_path, monkeypatch):
    found = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello there, how are you doing today?\n"))
        status, _, err = command("chat", "--model", model, "--block-size", "4", "--cache-dir", tmp_path / "kept")
        assert status == 0
        found.append(int(re.search(r"found (\d+) of", err)[1]))
    assert found[0] == 0 < found[1]


def test_a_model_with_windows_is_refused_in_a_line(command, tmp_path):
    import tiny_gemma

    model = tiny_gemma.write(tmp_path / "gemma.gguf")
    status, _, err = command("generate", "--model", model, "--raw", "x", "--cache-dir", tmp_path / "kept")
    assert status == 1 and "layer groups" in err and "Traceback" not in err
