"""Beam search once more, as plainly as it can be said: every candidate sorted, every text computed anew, no cache."""

import math


def plain_beam_search(logits_of, prompt, *, beams, n, max_tokens, ends, length_penalty):
    """The n best (score, tokens, ended); `logits_of` maps token lists of one length to a list of floats for each."""
    live, finished = [(0.0, [])], []
    for length in range(1, max_tokens + 1):
        candidates = []
        for rank, logits in enumerate(logits_of([prompt + tokens for _, tokens in live])):
            largest = max(logits)
            norm = largest + math.log(math.fsum(math.exp(logit - largest) for logit in logits))
            total, tokens = live[rank]
            candidates += [(-(total + logit - norm), rank, token, tokens) for token, logit in enumerate(logits)]
        live = []
        for loss, _, token, tokens in sorted(candidates):
            if token in ends:
                finished.append((-loss / length**length_penalty, tokens, True))
            else:
                live.append((-loss, [*tokens, token]))
            if len(live) == beams:
                break
    finished += [(total / max_tokens**length_penalty, tokens, False) for total, tokens in live]
    return sorted(finished, key=lambda each: -each[0])[:n]
