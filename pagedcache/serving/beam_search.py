"""Beam search on a paged cache: beams are sequences that share every block up to where they part."""

from collections.abc import Sequence

from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._checks import check_beams, check_numbers
from pagedcache.serving._needs import needs_of
from pagedcache.serving.engine import Engine
from pagedcache.serving.generate import PrefillCallback
from pagedcache.serving.models import Runner, Tokenizer
from pagedcache.serving.results import Completion, Finish, Generation


def beam_search(
    model: Runner,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    *,
    beams: int = 4,
    n: int = 1,
    max_tokens: int = 64,
    length_penalty: float = 1.0,
    ends: frozenset[int] | None = None,
    step_tokens: int = 256,
    on_prefill: PrefillCallback | None = None,
    on_step: PrefillCallback | None = None,
) -> Generation:
    """Find the likeliest continuations of each prompt, one prompt after the other.

    At each step the `beams` best continuations live on. Those that go on from the same one share its blocks; a block
    is copied only when two of them come to write into it.

    Parameters
    ----------
    model, tokenizer
        From :func:`pagedcache.serving.models.load_model`.
    prompts : sequence of sequences of int
        Token ids.
    cache : KVCache
        Made with ``model.cache_spec()``. Nothing of this call is left in it but its prefix cache.
    beams : int
        Continuations that are followed at a time.
    n : int
        Texts per prompt, the best ones; at most `beams`.
    max_tokens : int
        Most new tokens per text; the model's context may end it sooner.
    length_penalty : float
        A text's score is the sum of the log-probabilities of its new tokens, the one that ended it included, divided
        by the number of them to this power, from 0 to 10: 0 ranks by the sum, 1 by the mean.
    ends : frozenset of int, optional
        Tokens that end a text; the tokenizer's own if not given.
    step_tokens : int
        Most prompt tokens in one step; longer prompts take several.
    on_prefill, on_step : callable, optional
        Called with the prompt tokens that are done and all there are, and with the steps after the prompts that are
        done and the most there may be.

    Returns
    -------
    Generation
        For each prompt its `n` best texts, best first; `Completion.score` is set.

    Raises
    ------
    ValueError
        A prompt is empty or longer than the model's context, or an argument is out of range.
    OutOfBlocks, OutOfSequences
        A prompt with its beams would not fit into the cache even if alone. Nothing was computed.

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, tokenizer = load_model(find_model())                         # doctest: +SKIP
    >>> prompt = tokenizer.encode("The capital of France is")               # doctest: +SKIP
    >>> with KVCache(model.cache_spec(), memory="64 MiB") as cache:         # doctest: +SKIP
    ...     beam_search(model, tokenizer, [prompt], cache, max_tokens=3).completions[0].text
    ' Paris. The'
    """
    check_numbers(beams=beams, n=n, max_tokens=max_tokens, step_tokens=step_tokens)
    if ends is None:
        ends = tokenizer.ends
    check_beams(beams, n, length_penalty, model.config.vocab - len(ends))
    needs = needs_of(prompts, beams, max_tokens, model.config.context, cache)  # all prompts, or none
    prompt_tokens = sum(need.length for need in needs)

    def tell(done: int, _: int) -> None:
        if on_prefill is not None:
            on_prefill(done, prompt_tokens)

    engine = Engine(
        model,
        cache,
        tokenizer,
        ends=ends,
        step_tokens=step_tokens,
        preemption="never",
        observe=True,
        on_prefill=tell,
    )
    completions: list[Completion] = []
    steps, most_steps = 0, sum(need.limit - 1 for need in needs)
    with engine:
        for index, prompt in enumerate(prompts):
            request = engine.submit(prompt, max_tokens=max_tokens, n=n, beams=beams, length_penalty=length_penalty)
            while not request.done:
                begun = request.first_token is not None
                engine.step()
                steps += begun
                if begun and on_step is not None:
                    on_step(steps, most_steps)
            if request.completions[0].finish is Finish.REFUSED:
                raise OutOfBlocks(f"prompt {index} needs {request.blocks} blocks, and others hold them")
            completions += request.completions
    return Generation(completions, engine.report)
