"""Generating text for several prompts at once on a paged KV cache."""

from collections.abc import Sequence

from pagedcache.cache import KVCache
from pagedcache.serving._run import PrefillCallback, Run, TextCallback
from pagedcache.serving.models import LlamaModel, Tokenizer
from pagedcache.serving.results import Generation
from pagedcache.serving.sampler import Sampling


def generate(
    model: LlamaModel,
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
    for name, value in (("n", n), ("max_tokens", max_tokens), ("step_tokens", step_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if sampling is None:
        sampling = Sampling()
    if ends is None:
        ends = tokenizer.ends
    run = Run(model, tokenizer, cache, sampling, step_tokens, ends, on_text, on_prefill)
    run.plan(prompts, n, max_tokens)
    try:
        while run.waiting or run.running:
            run.admit()
            run.step()
    finally:
        cache.release([sequence.id for sequence in run.running])
    return Generation(run.completions, run.report)
