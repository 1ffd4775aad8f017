"""Running models on a paged KV cache: model runners, sampling, and a loop that generates text."""

from pagedcache.serving.beam_search import beam_search
from pagedcache.serving.comparison import WAYS, ServingRun, compare_serving
from pagedcache.serving.conversation import Conversation, Turn
from pagedcache.serving.drafting import Drafter, PromptLookup
from pagedcache.serving.engine import Engine
from pagedcache.serving.generate import generate
from pagedcache.serving.requests import Piece, Request
from pagedcache.serving.results import Completion, Finish, Generation, Moment, Report
from pagedcache.serving.sampler import Sampler, Sampling
from pagedcache.serving.step_profile import DecodeProfile, StepTimes, profile_decode

__all__ = [
    "WAYS",
    "Completion",
    "Conversation",
    "DecodeProfile",
    "Drafter",
    "Engine",
    "Finish",
    "Generation",
    "Moment",
    "Piece",
    "PromptLookup",
    "Report",
    "Request",
    "Sampler",
    "Sampling",
    "ServingRun",
    "StepTimes",
    "Turn",
    "beam_search",
    "compare_serving",
    "generate",
    "profile_decode",
]
