"""What a command tells about its cache, in words."""

from collections.abc import Sequence

from pagedcache._sizes import readable
from pagedcache.cache import KVCache
from pagedcache.serving import Conversation, DecodeProfile, Report, ServingRun, Turn


def summary(report: Report, max_tokens: int, *, searched: bool = False) -> list[tuple[str, str]]:
    """Return a generation's report as names and values.

    Parameters
    ----------
    report : Report
    max_tokens : int
        As asked for.
    searched : bool
        Whether it is that of a beam search.
    """
    peak = report.peak
    rates = []
    if report.prefill_seconds:
        computed = report.prompt_tokens - report.reused_tokens
        rates.append(f"{computed / report.prefill_seconds:.0f} prompt tokens a second")
    if report.decode_seconds:
        rates.append(f"{report.decode_tokens / report.decode_seconds:.1f} new tokens a second")
    beams = ""
    if searched and peak.sequences:
        alone = peak.blocks_alone // peak.sequences  # beams are of equal length
        beams = f", {100 * peak.blocks / alone:.0f} % of what one of the {count(peak.sequences, 'beam')} takes alone"
    return [
        (
            "prompts",
            f"{count(report.prompt_tokens, 'token')}, {report.reused_tokens} of them found in the prefix cache",
        ),
        ("texts", count(report.new_tokens, "token")),
        ("speed", ", then ".join(rates)),
        ("stored", f"{count(peak.tokens, 'token')} of {count(peak.sequences, 'sequence')}, at the fullest moment"),
        (
            "blocks",
            f"{peak.blocks}, with room for {report.spec.block_size} tokens each; {peak.shared} of them shared "
            f"({peak.blocks_alone} if nothing were), {report.copied} copied",
        ),
        ("memory", f"{readable(report.paged_nbytes)} in blocks{beams}"),
        (
            "contiguous",
            f"{readable(report.contiguous_nbytes)} if each sequence reserves its prompt and {max_tokens} tokens, "
            f"{readable(report.context_nbytes)} if it reserves the model's {report.context}",
        ),
    ]


def turn_note(turn: Turn, max_tokens: int) -> str:
    """Return a turn's account in one line."""
    note = f"found {turn.found_tokens} of {count(turn.prompt_tokens, 'token')} in the prefix cache"
    if turn.full:
        return f"{note}; the answer ends here because the conversation is full: /reset begins anew"
    return note if turn.ended else f"{note}; the answer was cut after {count(max_tokens, 'token')}"


def chat_summary(conversation: Conversation, cache: KVCache) -> list[tuple[str, str]]:
    """Return a conversation's state as names and values."""
    stats, found, total = cache.stats(), conversation.found_tokens, conversation.prompt_tokens
    rate = f", {100 * found / total:.0f} %" if total else ""
    kept = stats.published * cache.spec.bytes_per_block
    return [
        (
            "conversation",
            f"{count(conversation.turns, 'turn')}, {len(conversation.tokens)} of at most "
            f"{count(conversation.capacity, 'token')}",
        ),
        ("found", f"{found} of {count(total, 'token')} in the prefix cache, over all turns{rate}"),
        ("blocks", f"{stats.published} of {stats.num_blocks} kept, with room for {cache.spec.block_size} tokens each"),
        ("memory", f"{readable(kept)} of {readable(stats.num_blocks * cache.spec.bytes_per_block)}"),
        ("evictions", count(stats.evictions, "block")),
    ]


def decode_summary(profile: DecodeProfile) -> list[tuple[str, str]]:
    """Return where the time of decode steps went as names and values."""
    shares = {
        "attention": profile.attention_share,
        "bookkeeping": profile.bookkeeping_share,
        "model": 1 - profile.cache_share,
    }
    tokens, step = profile.batch * profile.context, profile.seconds
    return [
        ("batch", f"{count(profile.batch, 'sequence')} of {count(profile.context, 'token')} and more"),
        ("prefill", f"{profile.prefill_seconds:.2f} s, {tokens / profile.prefill_seconds:.0f} tokens a second"),
        (
            "decode step",
            f"{1e3 * step:.2f} ms, {profile.batch / step:.1f} tokens a second (median of "
            f"{count(len(profile.steps), 'step')})",
        ),
        *((name, f"{1e3 * share * step:.3f} ms, {100 * share:.1f} %") for name, share in shares.items()),
    ]


def serving_table(runs: Sequence[ServingRun]) -> list[list[str]]:
    """Return ways of serving side by side, below the names of the columns; rates relative to the first."""
    head = ["way", "new tokens/s", "times", "slots with a token", "batch", "found", "preempted", "first token"]
    return [head] + [
        [
            run.way,
            f"{run.tokens_per_second:.1f}",
            f"{run.tokens_per_second / runs[0].tokens_per_second:.2f}",
            f"{100 * run.utilisation:.1f} %",
            f"{run.batch:.1f}",
            f"{100 * run.found_tokens / run.prompt_tokens:.0f} %",
            str(run.preemptions),
            f"{run.first_token_seconds:.1f} s",
        ]
        for run in runs
    ]


def count(number: int, word: str) -> str:
    """Return a number and what it counts."""
    return f"{number} {word}{'' if number == 1 else 's'}"
