"""The loop behind `generate`, small enough to read.

Each turn admits prompts, runs one ragged batch through the model and samples. A batch holds the last token of every
sequence that is generating and as much of the prompts as the token budget leaves. When a prompt is done, its n
samples are forks of it: they share its blocks, and a block is copied only when two of them come to write into it.

Two rules decide when a prompt is admitted:

- The blocks that it may come to hold in the worst case, all its samples at full length, are promised to it. A prompt
  is admitted only when that many are not promised to others, so that decoding never runs out of blocks. They are
  promised and not allocated, hence the cache holds what is stored and no more.
- A prompt waits while one that begins with the same block is still being computed, because then it will find that
  block, and whatever else they share, in the prefix cache.

A cache in which the caller keeps sequences of his own works too: what they hold when the call starts is not promised.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pagedcache.cache import KVCache
from pagedcache.core import AdmitStatus
from pagedcache.errors import OutOfBlocks
from pagedcache.serving._compute import compute
from pagedcache.serving._needs import needs_of
from pagedcache.serving.models import LlamaModel, TextStream, Tokenizer
from pagedcache.serving.results import Completion, Report
from pagedcache.serving.sampler import Sampler, Sampling

TextCallback = Callable[[int, str, bool], None]
"""Called with a sequence's index, the next piece of its text, and whether that was the last one."""
PrefillCallback = Callable[[int, int], None]
"""Called with the prompt tokens that are done, and all there are."""


@dataclass(slots=True, eq=False)
class _Prompt:
    index: int
    tokens: list[int]
    samples: int
    limit: int  # most new tokens of each sample
    blocks: int  # that its samples hold in the worst case
    unfinished: int  # samples


@dataclass(slots=True, eq=False)
class _Sequence:
    prompt: _Prompt
    completion: Completion
    sampler: Sampler
    stream: TextStream
    id: int  # handle in the cache
    todo: list[int]  # tokens not computed yet: the rest of the prompt, or the newest token
    length: int  # tokens stored

    @property
    def is_prefilling(self) -> bool:
        return self.length < len(self.prompt.tokens)


class Run:
    """The state of one call of `generate`."""

    def __init__(
        self,
        model: LlamaModel,
        tokenizer: Tokenizer,
        cache: KVCache,
        sampling: Sampling,
        step_tokens: int,
        ends: frozenset[int],
        on_text: TextCallback | None,
        on_prefill: PrefillCallback | None,
    ) -> None:
        self.waiting: deque[_Prompt] = deque()
        self.running: list[_Sequence] = []
        self.completions: list[Completion] = []
        self.report = Report(cache.spec, model.config.context)
        self._model, self._tokenizer, self._cache = model, tokenizer, cache
        self._sampling, self._step_tokens, self._ends = sampling, step_tokens, ends
        self._on_text, self._on_prefill = on_text, on_prefill
        self._prefilled = 0  # prompt tokens done
        self._free_blocks = cache.pool.num_free  # not promised to a prompt
        self._free_rows = cache.sequences.max_sequences - cache.sequences.num_sequences

    def plan(self, prompts: Sequence[Sequence[int]], n: int, max_tokens: int) -> None:
        """Queue the prompts, or refuse them all."""
        needs = needs_of(prompts, n, max_tokens, self._model.config.context, self._cache)
        for index, need in enumerate(needs):
            self.waiting.append(_Prompt(index, need.tokens, n, need.limit, need.blocks, n))
            self.completions += [Completion(index, sample) for sample in range(n)]
        self.report.prompt_tokens = sum(len(prompt.tokens) for prompt in self.waiting)

    def admit(self) -> None:
        """Admit prompts, first come first served, until one has to wait."""
        while self.waiting:
            prompt = self.waiting[0]
            fits = prompt.blocks <= self._free_blocks and prompt.samples <= self._free_rows
            if not fits or self._is_being_computed(prompt):
                return
            admission = self._cache.admit([prompt.tokens])
            if admission.status[0] != AdmitStatus.ADMITTED:
                if not self.running:  # so nothing of ours can be waited for
                    raise OutOfBlocks(f"prompt {prompt.index} needs {prompt.blocks} blocks, and others hold them")
                return
            self.waiting.popleft()
            self._free_blocks -= prompt.blocks
            self._free_rows -= prompt.samples
            cached = int(admission.cached[0])
            self._start(prompt, 0, int(admission.ids[0]), prompt.tokens[cached:], cached)
            self.report.reused_tokens += cached
            self._count_prefilled(cached)

    def step(self) -> None:
        """Compute one ragged batch, then let every sequence that has a new token to choose choose it."""
        room = self._step_tokens
        batch: list[tuple[_Sequence, list[int]]] = []
        for sequence in self.running:
            row = sequence.todo[:room] if sequence.is_prefilling else sequence.todo
            if row:
                batch.append((sequence, row))
            room -= len(row) if sequence.is_prefilling else 0
        prefilled = self._step_tokens - room
        started = perf_counter()
        logits, copied = compute(
            self._model, self._cache, [sequence.id for sequence, _ in batch], [row for _, row in batch]
        )
        self.report.copied += copied
        seconds = perf_counter() - started
        if prefilled:
            self.report.prefill_seconds += seconds
            self._count_prefilled(prefilled)
        else:
            self.report.decode_seconds += seconds
            self.report.decode_tokens += len(batch)
        for sequence, row in batch:
            sequence.length += len(row)
            sequence.todo = sequence.todo[len(row) :]
        self._observe()
        for (sequence, _), scores in zip(batch, logits, strict=True):
            if not sequence.todo:
                for each in [sequence, *self._fork(sequence)]:
                    self._choose(each, scores)

    def _start(self, prompt: _Prompt, sample: int, handle: int, todo: list[int], length: int) -> _Sequence:
        completion = self.completions[prompt.index * prompt.samples + sample]
        sampler = Sampler(self._sampling, prompt.index, sample)
        sequence = _Sequence(prompt, completion, sampler, TextStream(self._tokenizer), handle, todo, length)
        self.running.append(sequence)
        return sequence

    def _observe(self) -> None:
        lengths = [sequence.length for sequence in self.running]
        peak = self.report.peak
        if (self._cache.pool.num_used, sum(lengths)) > (peak.blocks, peak.tokens):  # stats looks at every block
            reserved = sum(len(sequence.prompt.tokens) + sequence.prompt.limit for sequence in self.running)
            self.report.observe(self._cache.stats(), lengths, reserved)

    def _is_being_computed(self, prompt: _Prompt) -> bool:
        """Whether the first block of a prompt will soon be in the prefix cache."""
        block_size = self._cache.spec.block_size
        head = prompt.tokens[:block_size]
        computed = (each.prompt.tokens for each in self.running if each.is_prefilling)
        return len(prompt.tokens) > block_size and any(tokens[:block_size] == head for tokens in computed)

    def _fork(self, sequence: _Sequence) -> list[_Sequence]:
        """Make the other samples of a prompt, once, when it is computed."""
        others = sequence.prompt.samples - 1
        if sequence.completion.tokens or sequence.completion.sample or not others:
            return []
        handles = self._cache.fork([sequence.id], others)[0]
        return [
            self._start(sequence.prompt, sample, int(handle), [], sequence.length)
            for sample, handle in enumerate(handles, start=1)
        ]

    def _choose(self, sequence: _Sequence, scores: NDArray[np.float32]) -> None:
        """Choose a sequence's next token, and end the sequence if that is the last one."""
        token = sequence.sampler(scores)
        completion = sequence.completion
        self.report.new_tokens += 1
        completion.ended = token in self._ends
        piece = ""
        if not completion.ended:
            completion.tokens.append(token)
            sequence.todo.append(token)
            piece = sequence.stream.push(token)
        last = completion.ended or len(completion.tokens) == sequence.prompt.limit
        if last:
            piece += sequence.stream.finish()
            self._finish(sequence)
        completion.text += piece
        if self._on_text is not None and (piece or last):
            self._on_text(completion.prompt * sequence.prompt.samples + completion.sample, piece, last)

    def _finish(self, sequence: _Sequence) -> None:
        self.running.remove(sequence)
        self._cache.release([sequence.id])
        prompt = sequence.prompt
        prompt.unfinished -= 1
        if not prompt.unfinished:
            self._free_blocks += prompt.blocks
            self._free_rows += prompt.samples

    def _count_prefilled(self, tokens: int) -> None:
        self._prefilled += tokens
        if self._on_prefill is not None and tokens:
            self._on_prefill(self._prefilled, self.report.prompt_tokens)
