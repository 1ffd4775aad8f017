"""The peer's side: vLLM's own KVCacheManager, Request and block hasher, called as its scheduler calls them.

Nothing of vLLM is replaced. Counted is what its scheduler does per request and step with block memory: hashing of full
blocks, `get_computed_blocks`, `allocate_slots` (which also publishes), `get_block_ids` of what is new, `free`. Not
counted: the rest of a Request (sampling parameters, copies of the token list), the scheduler's queues, and the worker's
block tables and slot mapping, which vLLM makes of these ids elsewhere and our extend has made already.
"""

import os

from workload import BLOCK_SIZE, Meter, close_up

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch  # vLLM reads its environment while it is imported, hence so late
import vllm
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

NAME = f"vllm {vllm.__version__}"


class VllmSide:
    """One full-attention group, prefix caching on, the default hash (sha256), no events, no statistics."""

    def __init__(self, num_blocks, running, max_length):
        self.meter = Meter()
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=num_blocks + 1,  # the manager sets one aside as null block
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config, max_model_len=max_length, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.parameters = SamplingParams(max_tokens=max_length)
        self.requests = []  # running, by place
        self.named = 0

    def admit(self, prompt):
        manager, tokens = self.manager, prompt.tolist()
        request = Request(str(self.named), tokens, self.parameters, None)
        request._block_hasher = (
            self.hasher
        )  # handed over late, so that making a Request is not counted, only its hashes
        with self.meter("admit"):
            request.update_block_hashes()
            blocks, cached, _ = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, len(tokens) - cached, cached, blocks) is None:
                raise MemoryError("the trace must fit: vLLM would preempt a sequence here")
            manager.get_blocks(request.request_id).get_block_ids()
        request.num_computed_tokens = len(tokens)
        self.requests.append(request)
        self.named += 1
        return cached

    def decode(self, tokens):
        tokens, manager = tokens.tolist(), self.manager
        with self.meter("decode"):
            manager.new_step_starts()
            for request, token in zip(self.requests, tokens, strict=True):
                request.append_output_token_ids(token)
                new = manager.allocate_slots(request, 1)
                if new is None:
                    raise MemoryError("the trace must fit: vLLM would preempt a sequence here")
                new.get_block_ids(allow_none=True)
                request.num_computed_tokens += 1

    def release(self, places):
        gone = [self.requests[place] for place in places]
        with self.meter("free"):
            for request in gone:
                self.manager.free(request)
        close_up(self.requests, places)

    @property
    def num_free(self):
        return self.manager.block_pool.get_num_free_blocks()
