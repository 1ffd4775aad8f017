"""One library in a process of its own: answers requests, one JSON object per line, until its input ends.

``python -m _serving.worker MODULE OPTIONS``, from `driver`. Libraries bring their own threads, which would disturb each
other in one process.
"""

import json
import os
import sys
from importlib import import_module
from time import perf_counter
from types import SimpleNamespace

STEP_TOKENS = 512  # at most, of a prefill step: what llama.cpp computes at once by default


class Worker:
    def __init__(self, module, options):
        self.side, self.options = module.Side(options), options
        self.prompt = 0  # tokens of each prompt
        self.first = []  # the token after each prompt

    def prefill(self, prompts):
        """Compute the prompts, all of one length; seconds."""
        self.prompt = len(prompts[0])
        at_once = max(1, STEP_TOKENS // self.prompt)
        begin = perf_counter()
        for start in range(0, len(prompts), at_once):
            self.first += self.side.prefill(prompts[start : start + at_once])
        return perf_counter() - begin

    def decode(self, steps, forced=None):
        """Decode after the prompts; seconds of each step, and the greedy tokens [steps + 1, sequences].

        The input of a step is `forced`, else the tokens that the one before gave.
        """
        self.side.rewind(self.prompt)
        seconds, tokens = [], [self.first]
        for number in range(steps):
            given = forced[number] if forced else tokens[-1]
            begin = perf_counter()
            tokens.append(self.side.decode(given))
            seconds.append(perf_counter() - begin)
        return {"seconds": seconds, "tokens": tokens}


def told(problem):
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:240]}"


def main(name, options):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    options = SimpleNamespace(**json.loads(options))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    try:
        module = import_module(f"_serving.{name}")
        answer(value=module.version())
        worker = Worker(module, options)
    except Exception as problem:
        answer(failed=told(problem))
        return
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(value=getattr(worker, request.pop("do"))(**request))
        except Exception as problem:
            answer(failed=told(problem))


if __name__ == "__main__":
    main(*sys.argv[1:])
