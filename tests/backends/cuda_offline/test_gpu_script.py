"""benchmarks/gpu on the emulator: that everything runs, counts and reports as it should before it meets a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagedcache import CacheSpec
from pagedcache.backends.cuda import _cupy, _explain
from pagedcache.backends.cuda_emulated._emulator import Emulator
from pagedcache.testing import BackendConformance

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu"
if not SCRIPT.is_dir():
    pytest.skip("needs the source tree", allow_module_level=True)
sys.path[:0] = [str(SCRIPT), str(ROOT / "tests" / "backends")]

from _gpu import capacity, cases, correctness, device, report, warm  # noqa: E402
from _gpu.__main__ import PARTS, good  # noqa: E402
from _gpu.adapter import HostArrays  # noqa: E402
from fake_cupy import modules  # noqa: E402

pytestmark = [pytest.mark.cuda_offline, pytest.mark.thread_unsafe]


def test_all_parts_run(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT)]), "OUT": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "_gpu", "--device", "emulated", "--shrink", "256", "--name", "try"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu-try.json").read_text())["rows"]
    assert {row["part"] for row in rows} == set(PARTS) and all(map(good, rows))
    found = {row["kind"]: row for row in rows}
    assert found["graph"]["equal"] and found["conformance"]["passed"] > 10
    assert found["kernels"]["missing"] == []
    assert {row["name"] for row in rows if row["kind"] == "capacity"} == {"paged", "contiguous"}
    assert sorted(tmp_path.iterdir()) == [tmp_path / "gpu-try.json", tmp_path / "gpu-try.md"]


def test_a_part_that_ends_badly_is_said_to_have(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT)]), "OUT": str(tmp_path)}
    code = "import sys, _gpu.__main__ as m; m.PARTS = {'none_such': 30, 'warm': 30}; sys.exit(m.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "--device", "emulated", "--shrink", "256"]
    command += ["--parts", "none_such,warm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none_such: status" in done.stdout and "warm: done" in done.stdout


def test_bytes_and_operations():
    case = cases.decode(2, 100)
    assert case.nbytes == 2 * 2 * 100 * 8 * 128 * 2 + 2 * 2 * 32 * 128 * 2 + 2 * 7 * 4
    assert case.flops == 4 * 2 * 100 * 32 * 128
    assert cases.decode(2, 100, "int8").nbytes == 2 * 2 * 100 * 8 * (128 + 4) + 2 * 2 * 32 * 128 * 2 + 2 * 7 * 4
    assert cases.prefill(4).flops == 4 * (1 + 2 + 3 + 4) * 32 * 128
    assert cases.decode(8, 8192).targets == (0.86, 0.80)
    assert cases.decode(8, 8192, "int8").targets == pytest.approx((0.688, 0.64))
    assert cases.decode(3, 5).targets is None and cases.prefill(4).targets == (0.55, 0.38)


def test_the_table_has_each_case_once_and_fits():
    every = [*cases.decodes(), *cases.prefills()]
    assert len({case.key for case in every}) == len(every) > 40
    assert max(case.nbytes for case in every) < 8 << 30
    assert all(case.targets is None or len(case.targets) == len(cases.GPUS) for case in every)


def test_every_attention_kernel_is_wanted_and_compiled():
    wanted = set()
    for case in correctness.cases(1):
        wanted |= correctness.names(case["spec"], case["options"])
    assert wanted <= {kernel.name for kernel in warm.kernels(1)}
    for kind in ("float", "f16", "bf16", "i8", "e4m3"):
        assert {f"few_{kind}_{n}_{n}{full}" for n in correctness.SIZES for full in ("", "_full")} <= wanted


def test_a_wrong_result_is_found():
    emulated = device.Emulated()
    backend = emulated.backend
    try:
        emulated.backend = Slightly(backend)
        row = correctness.compared(emulated, None, CacheSpec(1, correctness.KV_HEADS, 64, dtype="float16"), {})
    finally:
        emulated.backend = backend
    assert not row["ok"] and row["stored"] and not good(row)
    assert row["errors"][2] > row["tolerance"] > row["errors"][0]


class Slightly:
    """A backend whose third sequence comes out a little off."""

    def __init__(self, backend):
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def attend(self, *given, **options):
        out = self._backend.attend(*given, **options)
        out[2] += 0.1
        return out


def test_what_fits_in_a_budget():
    spec = CacheSpec(1, 1, 64, dtype="float16")
    lengths = np.full(50, 100)
    found = capacity.counts(spec, spec.pool_nbytes(64), lengths, 256)
    assert found == {"contiguous": 4, "paged": 64 // -(-(100 + capacity.STEPS + 1) // 16)}


def test_report_of_made_up_numbers():
    about = {"date": "2030-01-01", "device": "cuda", "shrink": 1}
    decode, prefill = cases.decode(8, 8192), cases.prefill(512)
    rows = [
        {"kind": "facts", "gpu": "NVIDIA H200"},
        {"kind": "copy", "gbps": 4000.0},
        {"kind": "product", "dtype": "float16", "by": "torch", "tflops": 800.0},
        {"kind": "compared", "dtype": "int8", "sizes": [64, 64], "layout": "NHD", "block_size": 16, "full": True,
         "errors": [0.5, 0], "tolerance": 1e-2, "stored": False, "ok": False},
        {"kind": "conformance", "passed": 400, "skipped": 2, "failures": ["test_x: boom"]},
        {"kind": "attention", "part": "decode", "case": decode.key, "heads": "32/8/128", "dtype": "float16",
         "name": "8x8192", "block_size": 16, "nbytes": 4000, "flops": 8000, "targets": decode.targets, "us": 2.0},
        {"kind": "attention", "part": "decode", "case": "x", "heads": "1/1/1", "dtype": "int8", "name": "big",
         "block_size": 1, "nbytes": 1, "flops": 1, "targets": None, "failed": "no memory"},
        {"kind": "attention", "part": "prefill", "case": prefill.key, "heads": "32/8/128", "dtype": "float16",
         "name": "512", "block_size": 16, "nbytes": 1, "flops": 800_000_000, "targets": prefill.targets, "us": 2.0},
        {"kind": "peer", "library": "torch sdpa", "case": decode.key, "us": 5.0},
        {"kind": "peer", "library": "flashinfer", "case": decode.key, "failed": "not here"},
        {"kind": "step", "name": "decode", "part": "decode", "seconds": 12.3, "outcome": "stopped after 12 s"},
    ]  # fmt: skip
    page = report.markdown(rows, about)
    assert "| 32/8/128 | float16 | 8x8192 | 16 | 2.0 | 2 | 0.0 | 0.00 | 0.86 | 0.80 | 5.0 us, 2.50x |" in page
    assert "| 1/1/1 | int8 | big | 1 | no memory |" in page
    assert "| 400.0 | 0.50 | 0.55 | 0.38 |" in page
    assert "1 cases against backend cpu, 1 wrong" in page and "5.0e-01" in page and "stored bytes differ" in page
    assert "400 passed, 2 skipped, 1 failed\n  - test_x: boom" in page
    assert "flashinfer: not here" in page and "stopped after 12 s" in page
    widths = {line.count("|") for line in page.split("## Decode")[1].split("##")[0].splitlines() if line}
    assert len(widths) == 1, "each row has every column"


@pytest.mark.slow
class TestAdapter(BackendConformance):
    """The adapter that the suite meets a GPU through, on the emulator."""

    @pytest.fixture
    def backend(self):
        return HostArrays(device.Emulated())


class TestCupyLauncher(BackendConformance):
    """The launcher of the GPU, on a CuPy that is made of NumPy, and kernels that are run by the emulator."""

    @pytest.fixture
    def backend(self, monkeypatch):
        for name, module in modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        _explain.cupy.cache_clear()
        emulator = Emulator()

        def function(kernel, gpu):
            return lambda grid, block, params, shared_mem: emulator.launch(kernel, grid[0], *params)

        monkeypatch.setattr(_cupy, "_function", function)
        yield HostArrays(device.Gpu())
        _explain.cupy.cache_clear()
