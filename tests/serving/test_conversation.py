"""A conversation: every turn finds in the prefix cache what the turns before it left there."""

import pytest

from pagedcache.errors import OutOfBlocks, UnsupportedModel
from pagedcache.serving import Conversation, Sampling, generate
from pagedcache.serving.models import Tokenizer


@pytest.fixture
def conversation_of(tiny):
    def make(cache, **options):
        return Conversation(*tiny, cache, **{"max_tokens": 6} | options)

    return make


def test_each_turn_finds_the_blocks_of_those_before_it(conversation_of, cache_of):
    """In blocks of 4; the last token of an answer is not computed, hence not stored."""
    conversation = conversation_of(cache_of(), system="the")
    first = conversation.say("and")
    assert (first.found_tokens, first.new_tokens) == (0, 6)
    stored = first.prompt_tokens + 5
    for message in ("the", "an", "and the"):
        turn = conversation.say(message)
        assert turn.found_tokens == stored // 4 * 4
        assert turn.prompt_tokens > stored + 1
        stored = turn.prompt_tokens + turn.new_tokens - 1
    assert conversation.turns == 4
    assert len(conversation.tokens) == stored + 1


def test_answers_are_those_of_the_whole_conversation(conversation_of, cache_of, tiny):
    model, tokenizer = tiny
    conversation, prompt, answer = conversation_of(cache_of()), [], []
    for message in ("and", "the", "an"):
        turn = conversation.say(message)
        prompt = tokenizer.chat([("user", message)], history=prompt + answer)
        (expected,) = generate(model, tokenizer, [prompt], cache_of(), max_tokens=6).completions
        answer = expected.tokens
        assert turn.text == expected.text
        assert conversation.tokens == prompt + answer


def test_text_arrives_in_pieces(conversation_of, cache_of):
    pieces, done = [], []
    turn = conversation_of(cache_of()).say(
        "the", on_text=lambda index, piece, last: pieces.append(piece), on_prefill=lambda *event: done.append(event)
    )
    assert "".join(pieces) == turn.text
    assert done == [(turn.prompt_tokens, turn.prompt_tokens)]


def test_reset_begins_anew_and_finds_the_system_message(conversation_of, cache_of):
    conversation = conversation_of(cache_of(), system="the and the and the")
    first = conversation.say("an")
    conversation.say("and")
    conversation.reset()
    assert (conversation.tokens, conversation.turns) == ([], 0)
    again = conversation.say("an")
    assert again.text == first.text
    assert again.found_tokens == (first.prompt_tokens - 1) // 4 * 4
    assert conversation.found_tokens > again.found_tokens, "sums go on"


def test_blocks_that_others_wanted_are_computed_again(conversation_of, cache_of, tiny):
    cache, undisturbed = cache_of(num_blocks=40), conversation_of(cache_of())
    conversation = conversation_of(cache)
    for message in ("and", "the"):
        expected = undisturbed.say(message)
        turn = conversation.say(message)
        assert turn.text == expected.text
        generate(*tiny, [[7] * 159], cache, max_tokens=1)  # takes every block
    assert turn.found_tokens == 0


def test_turns_with_the_same_seed_draw_different_numbers(conversation_of, cache_of, monkeypatch):
    from pagedcache.serving import conversation as module

    whole, seeds = module.generate, []
    monkeypatch.setattr(module, "generate", lambda *a, **k: seeds.append(k["sampling"].seed) or whole(*a, **k))
    conversation = conversation_of(cache_of(), sampling=Sampling(temperature=1.0, seed=7))
    conversation.say("the")
    conversation.say("the")
    conversation.reset()
    conversation.say("the")
    assert seeds == [7, 8, 7]


def test_samples_repeat_with_the_seed(conversation_of, cache_of):
    def talk(seed):
        conversation = conversation_of(cache_of(), sampling=Sampling(temperature=1.0, seed=seed))
        return [conversation.say("the").text for _ in range(2)]

    assert talk(1) == talk(1)
    assert talk(1) != talk(2)


def test_a_full_context_is_told_and_changes_nothing(conversation_of, cache_of):
    """The tiny model's context is 256 tokens."""
    conversation = conversation_of(cache_of(), max_tokens=1000)
    turn = conversation.say("the")
    assert turn.full
    assert len(conversation.tokens) == conversation.capacity == 256
    before = list(conversation.tokens)
    with pytest.raises(ValueError, match=r"with this message the conversation has 2\d\d tokens, and 256 is the most"):
        conversation.say("and")
    assert (conversation.tokens, conversation.turns) == (before, 1)
    conversation.reset()
    assert conversation.say("the").text == turn.text


def test_a_small_cache_is_full_sooner(conversation_of, cache_of):
    conversation = conversation_of(cache_of(num_blocks=12), max_tokens=1000)
    assert conversation.capacity == 48
    assert conversation.say("the").full
    with pytest.raises(ValueError, match="and 48 is the most"):
        conversation.say("and")


def test_blocks_that_others_hold_are_told(conversation_of, cache_of):
    cache = cache_of(num_blocks=20)
    mine = cache.admit([list(range(64))]).ids
    conversation = conversation_of(cache)
    with pytest.raises(OutOfBlocks, match="4 are free"):
        conversation.say("the and the and")
    assert conversation.tokens == []
    cache.release(mine)
    assert conversation.say("the and the and").new_tokens == 6


def test_an_interrupted_turn_is_as_if_nothing_was_said(conversation_of, cache_of):
    def interrupt(*event):
        raise KeyboardInterrupt

    conversation = conversation_of(cache_of())
    conversation.say("the")
    before = list(conversation.tokens)
    with pytest.raises(KeyboardInterrupt):
        conversation.say("and", on_text=interrupt)
    assert conversation.tokens == before
    turn = conversation.say("and")
    assert turn.found_tokens == (turn.prompt_tokens - 1) // 4 * 4, "what was computed of it is found"


@pytest.mark.parametrize("option", ["max_tokens", "step_tokens"])
def test_numbers_below_one_are_refused(conversation_of, cache_of, option):
    with pytest.raises(ValueError, match=f"{option} is 0; it must be at least 1"):
        conversation_of(cache_of(), **{option: 0})


def test_a_model_that_cannot_chat_is_refused(tiny, cache_of):
    plain = Tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["a", "b"],
            "tokenizer.ggml.token_type": [1, 1],
            "tokenizer.ggml.merges": [],
        }
    )
    with pytest.raises(UnsupportedModel, match="does not talk in ChatML"):
        Conversation(tiny[0], plain, cache_of())
