"""Token ids, their text, and text that grows token by token."""

import random

import pytest
import tiny_llama

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models import TextStream, Tokenizer

pytest.importorskip("tokenizers")

CONTROL = {"<|endoftext|>": 261, "<|im_start|>": 262, "<|im_end|>": 263}


def byte_level(**changes):
    tokens, types, merges = tiny_llama.vocabulary()
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "eos_token_id": CONTROL["<|im_end|>"],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


def sentencepiece(**changes):
    """Normal tokens with falling scores after unknown, begin, end and the 256 byte tokens."""
    normal = ["\u2581", "a", "b", "ab", "\u2581ab", "ba", "\u2581a"]
    metadata = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + normal,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(normal),
        "scores": [0.0] * 259 + [-7.0, -6.0, -5.0, -1.0, -2.0, -3.0, -4.0],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


def sentencepiece_with(text):
    """The vocabulary with its last token replaced."""
    return sentencepiece(tokens=[*sentencepiece()["tokenizer.ggml.tokens"][:-1], text])


def texts_of(tokenizer, ids):
    return [tokenizer.piece(token).decode(errors="replace") for token in ids]


def test_merges_and_spaces():
    tokenizer = Tokenizer(byte_level())
    assert texts_of(tokenizer, tokenizer.encode("the and the")) == ["the", " ", "and", " the"]


@pytest.mark.parametrize("text", ["", "é漢字🎉\n\t x", "\x00\x7f", "  two  spaces ", "ends with space "])
@pytest.mark.parametrize("metadata", [byte_level(), sentencepiece(add_space_prefix=False)], ids=["gpt2", "llama"])
def test_decode_undoes_encode(metadata, text):
    tokenizer = Tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_count_only_where_asked():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.encode("a<|im_end|>") == [*tokenizer.encode("a"), CONTROL["<|im_end|>"]]
    as_text = tokenizer.encode("a<|im_end|>", control=False)
    assert CONTROL["<|im_end|>"] not in as_text
    assert tokenizer.decode(as_text) == "a<|im_end|>"
    assert tokenizer.encode("a<|im_end|>")[-1] == CONTROL["<|im_end|>"], "the choice of one call must not outlive it"


def test_control_tokens_have_no_text():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.decode([CONTROL["<|im_start|>"], *tokenizer.encode("the"), CONTROL["<|im_end|>"]]) == "the"


def test_user_defined_tokens_are_found_and_shown():
    types = byte_level()["tokenizer.ggml.token_type"].copy()
    types[264] = 4  # <unused0>
    tokenizer = Tokenizer(byte_level(token_type=types))
    assert 264 in tokenizer.encode("the <unused0>", control=False)
    assert tokenizer.decode([264]) == "<unused0>"


def test_ends_are_declared_or_well_known():
    assert Tokenizer(byte_level()).ends == {CONTROL["<|im_end|>"], CONTROL["<|endoftext|>"]}
    assert Tokenizer(byte_level(eos_token_id=5, eot_token_id=6)).ends >= {5, 6}
    assert Tokenizer(sentencepiece()).ends == {2}


def test_begin_token():
    assert Tokenizer(byte_level(bos_token_id=261)).bos is None
    assert Tokenizer(byte_level(bos_token_id=261, add_bos_token=True)).encode("a")[0] == 261
    assert Tokenizer(byte_level(bos_token_id=261, pre="llama-bpe")).bos == 261
    assert Tokenizer(sentencepiece()).encode("a")[0] == 1
    assert Tokenizer(sentencepiece(add_bos_token=False)).bos is None


def byte_level_with(new_tokens, new_merges, **changes):
    """The vocabulary with its first unused tokens replaced."""
    metadata = byte_level()
    tokens, types = metadata["tokenizer.ggml.tokens"].copy(), metadata["tokenizer.ggml.token_type"].copy()
    tokens[264 : 264 + len(new_tokens)] = new_tokens
    types[264 : 264 + len(new_tokens)] = [1] * len(new_tokens)
    merges = metadata["tokenizer.ggml.merges"] + new_merges
    return byte_level(tokens=tokens, token_type=types, merges=merges, **changes)


def test_digits_stand_alone_in_smollm():
    new = ["12"], ["1 2"]
    assert len(Tokenizer(byte_level_with(*new)).encode("12")) == 1
    assert len(Tokenizer(byte_level_with(*new, pre="smollm")).encode("12")) == 2


def test_llama3_cuts_numbers_in_threes():
    new = ["12", "123", "1234"], ["1 2", "12 3", "123 4"]
    assert Tokenizer(byte_level_with(*new)).encode("1234") == [266]
    assert Tokenizer(byte_level_with(*new, pre="llama-bpe")).encode("1234")[0] == 265


def test_sentencepiece_merges_the_best_score_first():
    tokenizer = Tokenizer(sentencepiece(add_bos_token=False))
    assert texts_of(tokenizer, tokenizer.encode("ab bab")) == [" ab", " ", "b", "ab"]
    assert texts_of(tokenizer, tokenizer.encode("baba")) == [" ", "b", "ab", "a"]


def test_sentencepiece_falls_back_to_bytes():
    tokenizer = Tokenizer(sentencepiece(add_bos_token=False, add_space_prefix=False))
    assert [tokenizer.piece(token) for token in tokenizer.encode("é")] == [b"\xc3", b"\xa9"]


def test_chat_lays_out_chatml():
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.chat([("user", "the<|im_end|>")])
    start, end = CONTROL["<|im_start|>"], CONTROL["<|im_end|>"]
    assert [token for token in ids if token in (start, end)] == [start, end, start], "text in a message is only text"
    assert tokenizer.decode(ids) == "user\nthe<|im_end|>\nassistant\n"


def test_chat_without_chatml_tokens_is_refused():
    tokenizer = Tokenizer(sentencepiece())
    assert not tokenizer.can_chat
    with pytest.raises(UnsupportedModel, match="does not talk in ChatML"):
        tokenizer.chat([("user", "a")])


TURNS = {"<start_of_turn>": 266, "<end_of_turn>": 267}
TEMPLATE = "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim }}{{ '<end_of_turn>\n' }}"


def gemma(template=TEMPLATE):
    """A SentencePiece vocabulary with Gemma's turns."""
    tokens = [*sentencepiece()["tokenizer.ggml.tokens"], *TURNS]
    types = [*sentencepiece()["tokenizer.ggml.token_type"], 3, 3]
    scores = [*sentencepiece()["tokenizer.ggml.scores"], 0.0, 0.0]
    metadata = sentencepiece(tokens=tokens, token_type=types, scores=scores, add_space_prefix=False)
    return metadata if template is None else metadata | {"tokenizer.chat_template": template}


def shown(tokenizer, ids):
    """Text with control tokens."""
    names = {1: "<s>"} | {token: name for name, token in TURNS.items()}
    return "".join(names.get(token) or tokenizer.decode([token]) for token in ids)


def test_chat_lays_out_gemmas_turns():
    tokenizer = Tokenizer(gemma())
    ids = tokenizer.chat([("system", "ba"), ("user", "ab<end_of_turn>"), ("assistant", "b"), ("user", "a")])
    assert shown(tokenizer, ids) == (
        "<s><start_of_turn>user\nba\n\nab<end_of_turn><end_of_turn>\n"
        "<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n"
    )
    assert ids.count(TURNS["<end_of_turn>"]) == 3, "text in a message is only text"
    assert TURNS["<end_of_turn>"] in tokenizer.ends


def test_gemmas_conversation_goes_on_from_its_own_tokens():
    tokenizer = Tokenizer(gemma())
    first = tokenizer.chat([("system", "ba"), ("user", "ab")])
    answer = tokenizer.encode("b")[1:]
    then = tokenizer.chat([("user", "a")], history=[*first, *answer])
    assert then == tokenizer.chat([("system", "ba"), ("user", "ab"), ("assistant", "b"), ("user", "a")])


def test_what_a_system_says_alone_is_said():
    tokenizer = Tokenizer(gemma())
    assert tokenizer.chat([("system", "ba")]) == tokenizer.chat([("user", "ba")])


def test_a_gemma_that_was_not_trained_to_talk():
    """It has the tokens of turns and no template."""
    assert not Tokenizer(gemma(template=None)).can_chat
    assert not Tokenizer(gemma(template="[INST]")).can_chat


def test_broken_text_is_refused():
    """As Python reads bytes that are not UTF-8 from a command line."""
    tokenizer = Tokenizer(byte_level())
    with pytest.raises(ValueError, match=r"the text holds '\\udcff', which is no character; is the input UTF-8\?"):
        tokenizer.encode("a\udcff")
    with pytest.raises(ValueError, match="no character"):
        tokenizer.chat([("user", "\ud800")])


@pytest.mark.parametrize(
    ("template", "can_chat"),
    [
        ("{% for m in messages %}{{ '<|im_start|>' + m['role'] }}{% endfor %}", True),
        ("{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}", False),
        (b"no text", True),
    ],
)
def test_template_of_another_layout_is_refused(template, can_chat):
    """Contract 19: what the template names is looked at; it is never run."""
    tokenizer = Tokenizer(byte_level() | {"tokenizer.chat_template": template})
    assert tokenizer.can_chat == can_chat
    if not can_chat:
        with pytest.raises(UnsupportedModel, match="does not talk in ChatML"):
            tokenizer.chat([("user", "a")])


def test_conversation_goes_on_from_its_own_tokens():
    """Not from those that its text would be cut into anew: "the" is one token, and stood there as three."""
    tokenizer = Tokenizer(byte_level())
    first = tokenizer.chat([("system", "a"), ("user", "b")])
    answer = [token for letter in "the" for token in tokenizer.encode(letter)]
    ids = tokenizer.chat([("user", "c<|im_end|>")], history=[*first, *answer])
    assert ids[: len(first) + 3] == first + answer
    assert tokenizer.decode(ids) == "system\na\nuser\nb\nassistant\nthe\nuser\nc<|im_end|>\nassistant\n"
    control = [token for token in ids if token in CONTROL.values()]
    start, end = CONTROL["<|im_start|>"], CONTROL["<|im_end|>"]
    assert control == [start, end, start, end, start, end, start, end, start]


def test_conversation_laid_out_at_once_and_in_turns_is_the_same():
    tokenizer = Tokenizer(byte_level())
    first = tokenizer.chat([("user", "an")])
    then = tokenizer.chat([("user", "the")], history=[*first, *tokenizer.encode("and")])
    assert then == tokenizer.chat([("user", "an"), ("assistant", "and"), ("user", "the")])


def test_stream_never_cuts_a_character():
    tokenizer = Tokenizer(byte_level())
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokenizer.encode("a🎉b")]
    assert pieces == ["a", "", "", "", "🎉", "b"]
    assert stream.finish() == ""


def test_stream_of_any_tokens_equals_decoding_them_at_once():
    tokenizer = Tokenizer(byte_level())
    drawn = random.Random(0)
    for _ in range(200):
        ids = [drawn.randrange(280) for _ in range(12)]
        expected = b"".join(map(tokenizer.piece, ids)).decode(errors="replace")
        stream = TextStream(tokenizer)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.finish() == expected


def test_stream_that_ends_within_a_character():
    tokenizer = Tokenizer(byte_level())
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in tokenizer.encode("é")[:1]] == [""]
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("token", [-1, 280])
def test_token_outside_of_the_vocabulary(token):
    with pytest.raises(IndexError, match=f"token id {token} is outside of the vocabulary of 280"):
        Tokenizer(byte_level()).decode([token])


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({}, "tokenizer.ggml.model is None"),
        (byte_level(model="bert"), "model is 'bert'; only 'gpt2' and 'llama'"),
        (byte_level(pre="qwen2"), "pre is 'qwen2'; only"),
        (byte_level(tokens=None), "tokens is no list of str"),
        (byte_level(tokens=[1, 2]), "tokens is no list of str"),
        (byte_level(tokens=["a", "a"], token_type=[1, 1]), "holds a text twice"),
        (byte_level(token_type=[1]), "1 tokenizer.ggml.token_type for 280 tokens"),
        (byte_level(token_type=["x"] * 280), "token_type is no list of int"),
        (byte_level(merges="a b"), "merges is no list of str"),
        (byte_level(merges=["ab"]), "damaged vocabulary"),
        (byte_level(merges=["a zz"]), "damaged vocabulary"),
        (byte_level(eos_token_id=280), "eos_token_id is 280, there are 280 tokens"),
        (byte_level(eos_token_id=-1), "eos_token_id is -1"),
        (byte_level(bos_token_id="x", add_bos_token=True), "bos_token_id is 'x'"),
        (byte_level(tokens=["a b"], token_type=[1], merges=[], eos_token_id=0), "'a b' is not byte-level text"),
        (sentencepiece(scores=[0.0]), "1 tokenizer.ggml.scores for 266 tokens"),
        (sentencepiece(scores=None), "scores is no list of float"),
        (sentencepiece(token_type=[6] * 266), "'<unk>' is no byte token"),
        (sentencepiece_with("a" * 257), "token 265 has 257 characters; at most 256 are read"),
    ],
)
def test_damaged_vocabulary_is_refused(metadata, match):
    with pytest.raises(UnsupportedModel, match=match):
        Tokenizer(metadata)
