"""Text to token ids and back, with the vocabulary that a GGUF file carries.

Cutting text into tokens is the work of the `tokenizers` library. Going back needs none: every token stands for fixed
bytes, and their stream is decoded as UTF-8, so that a character spread over several tokens appears with its last one.
"""

import codecs
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagedcache.errors import UnsupportedModel
from pagedcache.serving.models._chat import layout_of
from pagedcache.serving.models._vocabulary import Vocabulary


class Tokenizer:
    """The tokenizer of one model; safe to share between threads.

    Parameters
    ----------
    metadata : mapping
        ``GGUFFile.metadata``, of which the ``tokenizer.ggml.*`` keys are read; which layout's tokens
        ``tokenizer.chat_template`` names is looked at, and nothing else of it.

    Attributes
    ----------
    num_tokens : int
        Size of the vocabulary; ids are ``0 <= id < num_tokens``.
    bos : int or None
        The token that `encode` puts first, where this model wants one.
    ends : frozenset of int
        Tokens that end a text.

    Raises
    ------
    UnsupportedModel
        The vocabulary is damaged or of a kind that is not read.

    Examples
    --------
    >>> tokenizer = Tokenizer({
    ...     "tokenizer.ggml.model": "gpt2",
    ...     "tokenizer.ggml.pre": "gpt-2",
    ...     "tokenizer.ggml.tokens": ["h", "i", "hi", "Ġ", "Ġhi", "<|endoftext|>"],
    ...     "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3],
    ...     "tokenizer.ggml.merges": ["h i", "Ġ hi"],
    ... })
    >>> tokenizer.encode("hi hi")
    [2, 4]
    >>> tokenizer.decode([2, 4, 5])
    'hi hi'
    >>> tokenizer.ends
    frozenset({5})
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = Vocabulary(metadata)
        self.num_tokens = len(vocabulary.texts)
        self.bos = vocabulary.bos
        self.ends = vocabulary.ends
        self._ids = vocabulary.ids
        self._layout = layout_of(self._ids.keys(), metadata.get("tokenizer.chat_template"))
        self._pieces = vocabulary.pieces()
        self._encoder = vocabulary.encoder()
        self._lock = threading.Lock()  # whether control tokens count is state of the encoder, no argument of its calls

    def encode(self, text: str, *, control: bool = True) -> list[int]:
        """Cut text into token ids, the model's begin token first where it has one.

        Parameters
        ----------
        text : str
        control : bool
            Whether names of control tokens in `text`, such as ``<|im_end|>``, mean those tokens. Pass False for text
            that you did not write yourself.

        Raises
        ------
        ValueError
            The text holds half of a surrogate pair, which is no character.
        """
        return ([] if self.bos is None else [self.bos]) + self._cut(text, control=control)

    @property
    def can_chat(self) -> bool:
        """Whether the model's chat layout is a known one, ChatML or Gemma's."""
        return self._layout is not None

    def chat(self, messages: Iterable[tuple[str, str]], *, history: Sequence[int] = ()) -> list[int]:
        """Lay out (role, text) messages as the model knows them and open the assistant's answer.

        The chat template in a model file is a program, so it is never run. Control tokens within a message are text.

        Parameters
        ----------
        messages : iterable of (str, str)
        history : sequence of int
            Token ids of the conversation so far, up to the last token of the assistant's last answer: the messages
            go on from there. What the cache holds of these tokens is found, which it might not be of tokens that the
            answer's text were cut into anew.

        Raises
        ------
        UnsupportedModel
            The model talks in no known layout.
        ValueError
            As in `encode`.
        """
        layout = self._layout
        if layout is None:
            raise UnsupportedModel(
                "this model does not talk in ChatML or as Gemma does, the only chat layouts that are known: "
                "write its own layout into the prompt instead"
            )
        begin, end = self._ids[layout.begin], self._ids[layout.end]
        new_line = self._cut("\n", control=False)
        ids = [] if self.bos is None or self.bos == begin else [self.bos]
        if history:
            ids = [*history, end, *new_line]
        for role, text in layout.messages(messages):
            ids += [begin, *self._cut(f"{role}\n{text}", control=False), end, *new_line]
        return [*ids, begin, *self._cut(f"{layout.answers}\n", control=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn token ids into text; control tokens have none, broken UTF-8 becomes U+FFFD."""
        stream = TextStream(self)
        return "".join([*map(stream.push, ids), stream.finish()])

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for; an id outside of the vocabulary raises IndexError."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token id {token} is outside of the vocabulary of {self.num_tokens} tokens")
        return self._pieces[token]

    def _cut(self, text: str, *, control: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair: how Python reads bytes that are not UTF-8
            bad = text[error.start]
            raise ValueError(f"the text holds {bad!r}, which is no character; is the input UTF-8?") from None
        with self._lock:
            self._encoder.encode_special_tokens = not control
            return list(self._encoder.encode(text, add_special_tokens=False).ids)


class TextStream:
    """Turns one sequence's tokens into text as they come, and never cuts a character in two.

    Examples
    --------
    >>> halves = Tokenizer({
    ...     "tokenizer.ggml.model": "gpt2",
    ...     "tokenizer.ggml.tokens": ["Ã", "©"],
    ...     "tokenizer.ggml.token_type": [1, 1],
    ...     "tokenizer.ggml.merges": [],
    ... })
    >>> stream = TextStream(halves)
    >>> stream.push(0), stream.push(1), stream.finish()
    ('', 'é', '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take the next token and return the characters that it completes."""
        return self._decoder.decode(self._tokenizer.piece(token))

    def finish(self) -> str:
        """Return U+FFFD if the stream ends within a character, else nothing."""
        return self._decoder.decode(b"", final=True)
