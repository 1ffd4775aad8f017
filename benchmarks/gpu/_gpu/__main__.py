"""All parts one after the other, each in a process of its own with a time limit; results are written after each.

python -m _gpu                              # the GPU that is there, within nine minutes
python -m _gpu --device emulated --shrink 64 # does everything run? no GPU is needed, and the figures mean nothing
python -m _gpu --parts ceilings,decode
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from _gpu.device import DEVICES
from _gpu.report import markdown

ALL = 480  # seconds; a build may come before
# What matters most first, and the seconds that each may take.
PARTS = {
    "ceilings": 30, "warm": 60, "correctness": 60, "conformance": 120, "decode": 90, "prefill": 30, "overhead": 30,
    "peers": 60, "sanitizer": 100, "capacity": 45,
}  # fmt: skip
RESULTS = Path(__file__).resolve().parents[2] / "results"


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="divide lengths, leave most cases out")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    parser.add_argument("--name", help="of the results: gpu-NAME.json and .md; default what the GPU is called")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # what a process of its own is to do
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def one(options):
    """Do one part; every row is on disk as soon as it is known."""
    device = DEVICES[options.device]()
    with options.rows.open("w") as file:
        for row in importlib.import_module(f"_gpu.{options.part}").rows(device, options.shrink):
            file.write(json.dumps({"part": options.part} | row) + "\n")
            file.flush()


def run(options, part, seconds):
    """Do a part in another process; return its rows, and one that says what came of it."""
    file = options.output / f"gpu-{part}.rows"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "_gpu", "--part", part, "--rows", str(file), "--device", options.device]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*command, "--shrink", str(options.shrink)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        problem = process.communicate(timeout=seconds)[1]
        lines = problem.strip().splitlines()
        outcome = f"status {process.returncode}: {lines[-1] if lines else ''}" if process.returncode else "done"
        if process.returncode:
            print(problem[-4000:], file=sys.stderr)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        process.communicate()
        outcome = f"stopped after {seconds:.0f} s"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the process was stopped within it
            break
    file.unlink(missing_ok=True)
    return [
        *rows,
        {"kind": "step", "part": part, "name": part, "seconds": time.monotonic() - begin, "outcome": outcome},
    ]


def main(argv=None):
    options = arguments(argv)
    if options.part:
        one(options)
        return 0
    begin = time.monotonic()
    options.output.mkdir(parents=True, exist_ok=True)
    about = {"date": time.strftime("%Y-%m-%d"), "device": options.device, "shrink": options.shrink}
    rows = []
    for part in options.parts.split(","):
        seconds = min(PARTS[part], begin + ALL - time.monotonic())
        if seconds < 10:
            rows.append({"kind": "step", "part": part, "name": part, "seconds": 0, "outcome": "no time was left"})
        else:
            rows += run(options, part, seconds)
        print(f"{part}: {rows[-1]['outcome']}, {rows[-1]['seconds']:.0f} s", flush=True)
        write(options, about, rows)
    return int(any(not good(row) for row in rows))


def write(options, about, rows):
    gpu = next((row["gpu"] for row in rows if row["kind"] == "facts"), options.device)
    name = options.name or "".join(c if c.isalnum() else "-" for c in gpu.lower())
    (options.output / f"gpu-{name}.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    try:
        (options.output / f"gpu-{name}.md").write_text(markdown(rows, about))
    except Exception:  # the rows are safe, and the parts that are still to come matter more
        traceback.print_exc()


def good(row):
    """Whether a row says that all is right."""
    if row["kind"] == "compared":
        return row["ok"] and row["stored"]
    if row["kind"] == "compiled":
        return not row["problems"]
    if row["kind"] == "conformance":
        return not row.get("failures") and "failed" not in row
    if row["kind"] == "sanitizer":
        return row.get("status", 0) == 0
    return row["outcome"] == "done" if row["kind"] == "step" else row.get("equal", True) and not row.get("missing")


if __name__ == "__main__":
    sys.exit(main())
