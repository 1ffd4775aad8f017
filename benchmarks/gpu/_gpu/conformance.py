"""The conformance suite on a device, in several processes: ``python -m _gpu.conformance DEVICE SHRINK SHARD SHARDS``.

pytest is needed; each process runs every n-th test and prints what came of it as JSON in its last line.
"""

import importlib.util
import json
import os
import subprocess
import sys

FEW = (
    "test_merge or test_copy_blocks or test_given_out or test_callers_buffers"  # of the suite, where it is to be short
)


def rows(device, shrink):
    """One row with the counts, and what failed."""
    if importlib.util.find_spec("pytest") is None:
        yield {"kind": "conformance", "failed": "pytest is not installed: the conformance suite did not run"}
        return
    count = min(8, os.cpu_count() or 1) if shrink == 1 else 1
    commands = [
        [sys.executable, "-m", "_gpu.conformance", device.name, str(shrink), str(i), str(count)] for i in range(count)
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    total = {"kind": "conformance", "passed": 0, "skipped": 0, "failures": []}
    for process in running:
        lines = process.communicate()[0].splitlines()
        try:
            found = json.loads(lines[-1])
        except (IndexError, ValueError):
            total["failures"].append(f"a process ended with status {process.returncode}: {lines[-3:]}")
            continue
        total["passed"] += found["passed"]
        total["skipped"] += found["skipped"]
        total["failures"] += found["failures"]
    yield total


class Shard:
    """A pytest plugin: keeps every n-th test, and the outcomes."""

    def __init__(self, number, count):
        self.number, self.count = number, count
        self.outcomes = {"passed": 0, "skipped": 0, "failures": []}

    def pytest_collection_modifyitems(self, items):
        items[:] = items[self.number :: self.count]

    def pytest_runtest_logreport(self, report):
        if report.failed:
            lines = str(report.longrepr).splitlines()
            self.outcomes["failures"].append(f"{report.nodeid.partition('::')[2]}: {lines[-1] if lines else ''}")
        elif report.skipped or report.when == "call":
            self.outcomes[report.outcome] += 1


def main(device, shrink, number, count):
    import pytest

    os.environ["PAGEDCACHE_GPU_DEVICE"] = device
    module = os.path.join(os.path.dirname(__file__), "suite_on_device.py")
    chosen = ["-k", FEW] if int(shrink) != 1 else []
    shard = Shard(int(number), int(count))
    pytest.main(
        [module, "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", os.path.dirname(module), *chosen],
        [shard],
    )
    print(json.dumps(shard.outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
