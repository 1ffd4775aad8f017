"""A conversation whose tokens stay in the prefix cache from one turn to the next.

No sequence is kept between turns. Each turn admits the whole conversation, as a server would that has other work in the
meantime, and finds in the prefix cache what is still there of it; only the rest is computed. If the memory was wanted
for something else, the turn takes longer, and that is all.
"""

import dataclasses

from pagedcache.cache import KVCache
from pagedcache.serving.generate import PrefillCallback, TextCallback, generate
from pagedcache.serving.models import Runner, Tokenizer
from pagedcache.serving.sampler import Sampling


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One message and its answer."""

    text: str  # of the answer
    ended: bool  # the model ended it, rather than max_tokens or the end of the room
    full: bool  # there was no room for more
    prompt_tokens: int  # the conversation up to the answer
    found_tokens: int  # of these, found in the prefix cache and not computed
    new_tokens: int  # of the answer


class Conversation:
    """Messages and answers, in turns.

    Parameters
    ----------
    model, tokenizer
        From :func:`pagedcache.serving.models.load_model`; the model has to talk in a known layout.
    cache : KVCache
        Made with ``model.cache_spec()``. Others may use it too.
    system : str, optional
        The system message.
    max_tokens : int
        Most tokens of one answer.
    sampling : Sampling, optional
        Greedy if not given. Turns with the same seed draw different numbers.
    step_tokens : int
        Most tokens of the conversation that are computed in one step.

    Attributes
    ----------
    tokens : list of int
        The conversation up to the last token of the last answer; empty before the first turn.
    turns : int
        Since the last reset.
    prompt_tokens, found_tokens : int
        Sums over all turns, those before a reset included; see `Turn`.

    Raises
    ------
    UnsupportedModel
        The model talks in no known layout.
    ValueError
        `max_tokens` or `step_tokens` is below 1.

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, tokenizer = load_model(find_model())                    # doctest: +SKIP
    >>> cache = KVCache(model.cache_spec(block_size=4), memory="64 MiB")  # doctest: +SKIP
    >>> conversation = Conversation(model, tokenizer, cache)           # doctest: +SKIP
    >>> conversation.say("What is the capital of France?").text        # doctest: +SKIP
    'The capital of France is Paris.'
    >>> turn = conversation.say("And of Italy?")                       # doctest: +SKIP
    >>> turn.prompt_tokens, turn.found_tokens                          # doctest: +SKIP
    (38, 20)
    """

    def __init__(
        self,
        model: Runner,
        tokenizer: Tokenizer,
        cache: KVCache,
        *,
        system: str | None = None,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        step_tokens: int = 256,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("step_tokens", step_tokens)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        tokenizer.chat([])  # raises where the model can't
        self.tokens: list[int] = []
        self.turns = 0
        self.prompt_tokens = self.found_tokens = 0
        self._model, self._tokenizer, self._cache = model, tokenizer, cache
        self._system = system
        self._max_tokens, self._step_tokens = max_tokens, step_tokens
        self._sampling = Sampling() if sampling is None else sampling

    @property
    def capacity(self) -> int:
        """Tokens that a conversation can have: the model's context, or what the cache holds if that is less."""
        return min(self._model.config.context, self._cache.sequences.max_length)

    def say(self, text: str, *, on_text: TextCallback | None = None, on_prefill: PrefillCallback | None = None) -> Turn:
        """Say something and get an answer.

        Parameters
        ----------
        text : str
            Names of control tokens in it are text.
        on_text, on_prefill : callable, optional
            As in `generate`.

        Raises
        ------
        ValueError
            There is no room for the message and one token of an answer.
        OutOfBlocks
            Others hold the blocks that the conversation needs.

        Notes
        -----
        Where this raises, or is interrupted, the conversation is as if nothing had been said.
        """
        system = [] if self.tokens or self._system is None else [("system", self._system)]
        prompt = self._tokenizer.chat([*system, ("user", text)], history=self.tokens)
        room = self.capacity - len(prompt)
        if room < 1:
            raise ValueError(
                f"with this message the conversation has {len(prompt)} tokens, and {self.capacity} is the most, answer "
                "included: say less, or reset it"
            )
        seed = self._sampling.seed
        result = generate(
            self._model,
            self._tokenizer,
            [prompt],
            self._cache,
            max_tokens=min(self._max_tokens, room),
            sampling=dataclasses.replace(self._sampling, seed=None if seed is None else seed + self.turns),
            step_tokens=self._step_tokens,
            on_text=on_text,
            on_prefill=on_prefill,
        )
        (answer,) = result.completions
        self.tokens = prompt + answer.tokens
        self.turns += 1
        self.prompt_tokens += len(prompt)
        self.found_tokens += result.report.reused_tokens
        return Turn(
            text=answer.text,
            ended=answer.ended,
            full=not answer.ended and len(answer.tokens) == room,
            prompt_tokens=len(prompt),
            found_tokens=result.report.reused_tokens,
            new_tokens=len(answer.tokens),
        )

    def reset(self) -> None:
        """Begin anew, with the same system message. What the cache holds of it will be found again."""
        self.tokens = []
        self.turns = 0
