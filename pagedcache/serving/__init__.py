"""Running models on a paged KV cache: model runners, sampling, and a loop that generates text."""

from pagedcache.serving.beam_search import beam_search
from pagedcache.serving.conversation import Conversation, Turn
from pagedcache.serving.generate import generate
from pagedcache.serving.results import Completion, Generation, Moment, Report
from pagedcache.serving.sampler import Sampler, Sampling

__all__ = [
    "Completion",
    "Conversation",
    "Generation",
    "Moment",
    "Report",
    "Sampler",
    "Sampling",
    "Turn",
    "beam_search",
    "generate",
]
