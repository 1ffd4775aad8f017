"""Decode of parallel sequences: the NumPy runner against llama.cpp, on the same float32 weights, in one run.

From the root of this repository; the peer has an environment of its own:

    pip install ".[models]"
    python -m venv llama && llama/bin/pip install -r benchmarks/peers/serving_requirements.txt
    python benchmarks/peers/serving.py --python llama/bin/python

The model is the one that ``pagedcache chat`` fetches; a float32 copy is made of it (half a GB, in a folder that goes
away). Each library runs in a process of its own, on as many CPUs as `--threads`. Both get the same prompts, as many as
`--parallel` says, and decode them together: a step gives each sequence a token and finds the likeliest next one. The
sides take turns, rounds of `--steps` steps after the same prompts; a figure is the median over all steps of all rounds.
The input of each step is what our side found in a round that does not count, so that a near-tie that goes the other way
does not lead the sides apart; what they find is compared.

Not equal on both sides: llama.cpp's steps are C++ from end to end, ours NumPy. K and V are float16 on either side, as
is llama.cpp's default, with ``--kv f32`` float32, for which llama.cpp's flash attention is off.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PAUSE = 0.05  # seconds between sides, in which threads that spin for work fall asleep
BAR = {16: 0.7}  # the least ratio to llama.cpp, by parallel sequences
ALIKE = 0.98  # of the tokens found, at least so many are the same


class Worker:
    """The other end of _serving/worker.py."""

    def __init__(self, name, python, options):
        environment = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PAGEDCACHE_NUM_THREADS"), str(options["threads"])
        )
        paths = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.process = subprocess.Popen(
            [python, "-m", "_serving.worker", name, json.dumps(options)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.name, self.steps = name, []
        self.version = self._answer()

    def ask(self, do, **fields):
        time.sleep(PAUSE)
        print(json.dumps({"do": do, **fields}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"failed": f"status {self.process.wait()}"}
        if "failed" in answer:
            raise SystemExit(f"{self.name}: {answer['failed']}")
        return answer["value"]

    def stop(self):
        with self.process:  # closes the pipes, by which the worker ends, and waits for it
            self.process.stdin.close()


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; default the model that was fetched")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment with the peer")
    parser.add_argument("--parallel", default="4,16", help="numbers of sequences, with commas between them")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=24, help="decode steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16", help="type of K and V")
    parser.add_argument("--ours-only", action="store_true", help="no peer: our own figures")
    return parser.parse_args(argv)


def prompts_of(model, count, length):
    """Pieces of our documentation, no two the same."""
    from pagedcache.serving.models import load_model

    text = "\n\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    tokens = list(map(int, load_model(model)[1].encode(text)))
    stride = (len(tokens) - length) // count
    if stride < 1:
        raise SystemExit(f"the documentation has {len(tokens)} tokens, too few for {count} prompts of {length}")
    return [tokens[i * stride : i * stride + length] for i in range(count)]


def measure(workers, prompts, options):
    """Print tokens per second of each worker; the ratio of ours to the peer's."""
    count = len(prompts)
    for worker in workers:
        seconds = worker.ask("prefill", prompts=prompts)
        print(f"  {worker.name:10} prefill {count * options.prompt / seconds:6.0f} tokens/s", flush=True)
    expected = workers[0].ask("decode", steps=options.steps)["tokens"]
    for worker in workers[1:]:
        found = worker.ask("decode", steps=options.steps, forced=expected)["tokens"]
        alike = float(np.mean(np.equal(expected, found)))
        print(f"  of {np.size(found)} tokens found, {alike:.1%} are the same")
        if alike < ALIKE:
            raise SystemExit(f"{worker.name} does not compute what ours does")
    for number in range(options.rounds):
        for worker in workers if number % 2 else reversed(workers):
            worker.steps += worker.ask("decode", steps=options.steps, forced=expected)["seconds"]
    rates = [count / median(worker.steps) for worker in workers]
    for worker, rate in zip(workers, rates, strict=True):
        print(f"  {worker.name:10} decode  {rate:6.1f} tokens/s  (step {1e3 * count / rate:.1f} ms, "
              f"least {1e3 * min(worker.steps):.1f})", flush=True)  # fmt: skip
    return rates[0] / rates[1] if len(rates) > 1 else None


def main(argv=None):
    options = arguments(argv)
    from _serving.float32 import write_float32

    from pagedcache.serving.models import find_model

    counts = [int(count) for count in options.parallel.split(",")]
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "float32.gguf"
        write_float32(options.model or find_model(), model)
        for count in counts:
            prompts = prompts_of(model, count, options.prompt)
            length = -(-(options.prompt + options.steps) // 256) * 256  # llama.cpp rounds up to this
            settings = {
                "model": str(model), "threads": options.threads, "kv": options.kv, "count": count, "length": length,
            }  # fmt: skip
            workers = [Worker("ours", sys.executable, settings)]
            if not options.ours_only:
                workers.append(Worker("llama_cpp", options.python, settings))
            print(f"{count} sequences, K and V {options.kv}, {options.threads} threads: "
                  + " against ".join(worker.version for worker in workers), flush=True)  # fmt: skip
            ratio = measure(workers, prompts, options)
            for worker in workers:
                worker.stop()
            if ratio is not None:
                least = BAR.get(count)
                verdict = "" if least is None else f", bar {least}: {'met' if ratio >= least else 'MISSED'}"
                print(f"  ratio {ratio:.2f}{verdict}", flush=True)
                ok = ok and (least is None or ratio >= least)
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
