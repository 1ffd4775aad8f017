"""What the C interface adds to the kernels: ``python benchmarks/c_step.py``; the bar is 1.05 times the kernels alone.

A decode step of 30 layers (SmolLM2-135M's heads, float16), from extend to commit, beside the same layers written and
attended to by the functions inside the library, with a plan made beforehand. Both sides run in one C program that is
compiled from the sources here, in turns, on the same memory; times are lower quartiles, which other work on the
machine moves least. Needs gcc and the source tree; run it on a quiet machine. The exit status
is 1 where the bar is missed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / "pagedcache/capi/csrc", ROOT / "backends/cpu/csrc"]
BAR = 1.05
SETTINGS = [(n, context, threads) for n in (1, 8) for context in (128, 1024) for threads in (1, 2)]


def flags() -> list[str]:
    """Options by which the wheel's library is built."""
    lines = re.findall(r"^(?:KERNEL_)?FLAGS = \[(.*)\]$", (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    return [word.strip(' "') for line in lines for word in line.split(",")]


def compiled(folder: Path) -> Path:
    """Build the program."""
    sources = [str(ROOT / "benchmarks/c_step.c"), *(str(p) for csrc in FOLDERS for p in sorted(csrc.glob("*.c")))]
    includes = [f"-I{path}" for path in (*FOLDERS, ROOT / "pagedcache/include")]
    program = folder / "c_step"
    subprocess.run(["gcc", *flags(), *includes, *sources, "-o", str(program), "-lm", "-pthread"], check=True)
    return program


def main() -> int:
    """Measure, print a table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="steps of each side in the smallest setting")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see whether it runs; no verdict")
    asked = parser.parse_args()
    most = 5 if asked.quick else asked.rounds
    missed = False
    print(f"{'sequences':>9} {'context':>7} {'threads':>7} {'interface us':>12} {'kernels us':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        for n, context, threads in SETTINGS:
            rounds = min(most, max(50, most * 128 // (n * context)))
            command = [str(program), *map(str, (n, context, threads, rounds))]
            interface, alone = map(float, subprocess.run(command, check=True, capture_output=True).stdout.split())
            missed |= interface > BAR * alone
            print(f"{n:9} {context:7} {threads:7} {interface:12.1f} {alone:10.1f} {interface / alone:6.3f}")
    if asked.quick:
        return 0
    print(f"the bar, {BAR}, is {'missed' if missed else 'kept'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
