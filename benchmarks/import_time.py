"""What `import pagedcache` takes beyond `import numpy`, each in fresh interpreters, in turns.

    python benchmarks/import_time.py [--rounds 21]

Modules are compiled once, as pip does when it installs them. Turns, because a busy or a slow
machine then slows both. Prints medians, and fails where the bar is missed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

BAR = 60.0  # ms
WITH_BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
STATEMENTS = ("pass", "import numpy", "import pagedcache")


def milliseconds(statement: str) -> float:
    """From the start of an interpreter to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", statement], check=True, env=WITH_BYTECODE)
    return 1e3 * (time.perf_counter() - began)


def main() -> int:
    """Measure, print, and return 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    for statement in STATEMENTS:  # reads the files, and compiles what is not yet
        milliseconds(statement)
    times = [[milliseconds(statement) for statement in STATEMENTS] for _ in range(rounds)]
    nothing, numpy, ours = (statistics.median(column) for column in zip(*times, strict=True))
    beyond = statistics.median(row[2] - row[1] for row in times)
    print(f"an interpreter {nothing:.0f} ms, with numpy {numpy:.0f} ms, with pagedcache {ours:.0f} ms")
    print(f"pagedcache beyond numpy: {beyond:.0f} ms (bar: {BAR:.0f} ms)")
    return int(beyond > BAR)


if __name__ == "__main__":
    sys.exit(main())
