"""Generating text for several prompts at once on a paged KV cache."""

from collections.abc import Callable, Sequence

from pagedcache.cache import KVCache
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._checks import check_numbers
from pagedcache.serving._needs import needs_of
from pagedcache.serving.engine import Engine
from pagedcache.serving.models import Runner, Tokenizer
from pagedcache.serving.requests import Piece
from pagedcache.serving.results import Finish, Generation
from pagedcache.serving.sampler import Sampling

TextCallback = Callable[[int, str, bool], None]
"""Called with a sequence's index, the next piece of its text, and whether that was the last one."""
PrefillCallback = Callable[[int, int], None]
"""Called with the prompt tokens that are done, and all there are."""


def generate(
    model: Runner,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    *,
    n: int = 1,
    max_tokens: int = 64,
    sampling: Sampling | None = None,
    ends: frozenset[int] | None = None,
    step_tokens: int = 256,
    on_text: TextCallback | None = None,
    on_prefill: PrefillCallback | None = None,
) -> Generation:
    """Continue each prompt n times.

    Parameters
    ----------
    model, tokenizer
        From :func:`pagedcache.serving.models.load_model`.
    prompts : sequence of sequences of int
        Token ids, from ``tokenizer.encode`` or ``tokenizer.chat``.
    cache : KVCache
        Made with ``model.cache_spec()``. Nothing of this call is left in it but its prefix cache.
    n : int
        Samples per prompt.
    max_tokens : int
        Most new tokens per sample; the model's context may end it sooner.
    sampling : Sampling, optional
        Greedy if not given.
    ends : frozenset of int, optional
        Tokens that end a text; the tokenizer's own if not given.
    step_tokens : int
        Most prompt tokens in one step; longer prompts take several.
    on_text, on_prefill : callable, optional
        Called as text and prompts progress. Sequence ``prompt * n + sample`` is one sample of one prompt.

    Returns
    -------
    Generation

    Raises
    ------
    ValueError
        A prompt is empty or longer than the model's context, or an argument is below 1.
    OutOfBlocks, OutOfSequences
        A prompt with its samples would not fit into the cache even if alone. Nothing was computed.

    Examples
    --------
    >>> from pagedcache import KVCache
    >>> from pagedcache.serving.models import find_model, load_model
    >>> model, tokenizer = load_model(find_model())                         # doctest: +SKIP
    >>> prompt = tokenizer.chat([("user", "What is the capital of France?")])  # doctest: +SKIP
    >>> with KVCache(model.cache_spec(), memory="64 MiB") as cache:         # doctest: +SKIP
    ...     generate(model, tokenizer, [prompt], cache).completions[0].text
    'The capital of France is Paris.'
    """
    check_numbers(n=n, max_tokens=max_tokens, step_tokens=step_tokens)
    needs_of(prompts, n, max_tokens, model.config.context, cache)  # all prompts, or none
    engine = Engine(
        model,
        cache,
        tokenizer,
        ends=ends,
        step_tokens=step_tokens,
        preemption="never",
        observe=True,
        on_prefill=on_prefill,
    )

    def tell(piece: Piece) -> None:
        if on_text is not None and (piece.text or piece.last):
            on_text(piece.completion.prompt * n + piece.completion.sample, piece.text, piece.last)

    with engine:
        requests = [
            engine.submit(prompt, n=n, max_tokens=max_tokens, sampling=sampling, on_piece=tell if on_text else None)
            for prompt in prompts
        ]
        engine.run()
    for request in requests:
        if request.completions[0].finish is Finish.REFUSED:
            raise OutOfBlocks(f"prompt {request.number} needs {request.blocks} blocks, and others hold them")
    return Generation([each for request in requests for each in request.completions], engine.report)
