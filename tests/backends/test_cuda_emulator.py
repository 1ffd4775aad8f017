"""The emulator of CUDA kernels: what its checks find, in which order threads run, how it is built."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_run import run

from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda_emulated import _compiler
from pagedcache.backends.cuda_emulated._emulator import Emulator, EmulatorError
from pagedcache.errors import UnsupportedByBackend

pytestmark = pytest.mark.usefixtures("cxx")


# ---- checks

CHECKS = {
    "different operations of a warp": (
        "if (pc_thread() < 16)\n pc_exchange(1, 1);\nelse\n pc_sync_warp();",
        r"test\.cu:4: pc_sync_warp: lanes 0000ffff of the warp are elsewhere, in pc_exchange, test\.cu:2 "
        r"\(block 0, thread 16: warp 0, lane 16\)",
    ),
    "the same operation in different lines": (
        "if (pc_thread() % 2 == 0)\n pc_any(true);\nelse\n pc_any(true);",
        r"test\.cu:4: pc_any: lanes 00000001 .*, test\.cu:2 \(block 0, thread 1: warp 0, lane 1\)",
    ),
    "an operation after lanes have exited": (
        "if (pc_thread() == 35) return;\nif (pc_thread() > 35) pc_from_lane(1, 0);",
        r"test\.cu:2: pc_from_lane: lanes 0000000f of the warp have exited \(block 0, thread 36: warp 1, lane 4\)",
    ),
    "a lane that exits while others wait for it": (
        "if (pc_thread() == 35) return;\npc_from_lane(1, 0);",
        r"test\.cu:2: pc_from_lane: the thread exits, while lanes 00000007 of its warp wait for it "
        r"\(block 0, thread 35: warp 1, lane 3\)",
    ),
    "barriers in different lines": (
        "if (pc_thread() < 32)\n pc_sync_block();\nelse\n pc_sync_block();",
        r"test\.cu:4: pc_sync_block: 32 threads of the block wait in another barrier, test\.cu:2 "
        r"\(block 0, thread 32: warp 1, lane 0\)",
    ),
    "a barrier that a warp does not reach": (
        "if (pc_thread() < 32)\n pc_sync_block();",
        r"deadlock in block 0: threads 0 to 31 wait in pc_sync_block, test\.cu:2, threads 32 to 63 have exited",
    ),
    "lanes in a barrier, lanes in an operation": (
        "if (pc_thread() == 9)\n pc_sync_warp();\npc_sync_block();",
        r"deadlock in block 0: threads 0 to 8 wait in pc_sync_block, test\.cu:3, threads 9 to 9 wait in pc_sync_warp, "
        r"test\.cu:2, threads 10 to 63 wait in pc_sync_block, test\.cu:3",
    ),
    "a copy to a misaligned place": (
        "pc_copy16(pc_shared() + 8, in, true);",
        r"test\.cu:1: pc_copy16: misaligned: byte 8 of shared memory, .* \(block 0, thread 0: warp 0, lane 0\)",
    ),
    "a copy from a misaligned place": (
        "pc_copy4(pc_shared(), (u8*)in + 2, true);",
        r"test\.cu:1: pc_copy4: misaligned",
    ),
    "a copy to beyond shared memory": (
        "pc_copy16(pc_shared() + 4096, in, true);",
        r"test\.cu:1: pc_copy16: the destination is outside shared memory: byte 4096 of 4096",
    ),
    "a copy to before shared memory": (
        "pc_copy4(pc_shared() - 4, in, true);",
        r"test\.cu:1: pc_copy4: the destination is outside shared memory: byte -4 of 4096",
    ),
    "a misaligned row of a matrix": (
        "u32 r[4];\npc_load_matrices(r, pc_shared() + 4);",
        r"test\.cu:2: pc_load_matrices: a row is misaligned: byte 4 of shared memory",
    ),
    "a row outside shared memory": (
        "u32 r[4];\npc_load_matrices_transposed(r, pc_thread() == 40 ? (void*)in : pc_shared());",
        r"test\.cu:2: pc_load_matrices_transposed: a row is outside shared memory: .* thread 40",
    ),
    "a row before shared memory": (
        "u32 r[4];\npc_load_matrices(r, pc_shared() - 16);",
        r"test\.cu:2: pc_load_matrices: a row is outside shared memory: byte -16 of 4096",
    ),
    "copies that nobody waits for": (
        "pc_copy16(pc_shared(), in, true);\npc_copy_commit();\npc_copy4(pc_shared(), in, true);\npc_copy_wait<0>();",
        r"test\.cu:3: pc_copy_wait: 1 copies have not been waited for as the thread exits",
    ),
    "writing beyond shared memory": (
        "pc_shared()[4100] = 1;",
        r"block 0 wrote beyond its 4096 bytes of shared memory, at byte 4100",
    ),
}


@pytest.mark.parametrize(("body", "message"), CHECKS.values(), ids=CHECKS.keys())
def test_check(body, message):
    with pytest.raises(EmulatorError, match=message):
        run(body, np.zeros(16, np.uint32), threads=64)


def test_the_block_is_named_and_later_launches_work():
    body = "if (pc_block() == *in) pc_copy4(pc_shared() + 1, in, true);\nout[pc_block()] = 1;"
    with pytest.raises(EmulatorError, match="block 5, thread 0"):
        run(body, np.array([5, 0], np.uint32), out=np.zeros(8, np.uint32), grid=8)
    assert run(body, np.array([9, 0], np.uint32), out=np.zeros(8, np.uint32), grid=8).all()


def test_a_missing_wait_shows_when_copies_are_late():
    body = """
        pc_copy4(pc_shared() + 4 * pc_thread(), in + pc_thread(), true);
        pc_copy_commit();
        pc_copy_wait<1>();  // one too few
        out[pc_thread()] = ((u32*)pc_shared())[pc_thread()];
        pc_copy_wait<0>();
    """
    given = np.ones(32, np.float32)
    assert np.isnan(run(body, given, out=np.zeros(32, np.float32))).all()
    assert (run(body, given, out=np.zeros(32, np.float32), late=False) == 1).all()


# ---- orders

TWICE = """
    for (int turn = 0; turn < 2; turn++) {
        out[out[256]++] = pc_thread();
        pc_sync_block();
    }
"""


def order_of(**options: Any) -> np.ndarray:
    return run(TWICE, out=np.zeros(257, np.uint32), threads=128, workers=1, **options)[:256].reshape(2, 128)


def test_orders():
    forward, reverse = order_of(), order_of(order="reverse")
    mixed, again, other = order_of(order="random"), order_of(order="random"), order_of(order="random", seed=2)
    np.testing.assert_array_equal(forward, [np.arange(128)] * 2)
    np.testing.assert_array_equal(reverse, [np.arange(128)[::-1]] * 2)
    np.testing.assert_array_equal(np.sort(mixed), forward)
    np.testing.assert_array_equal(mixed, again)
    assert (mixed[0] != mixed[1]).any() and (mixed != other).any() and (mixed != forward).any()


def test_a_race_depends_on_the_order():
    body = """
        float* shared = (float*)pc_shared();
        shared[pc_thread()] = pc_thread();
        out[pc_thread()] = pc_bits(shared[(pc_thread() + 1) % 32]);  // written by another lane, without pc_sync_warp
    """
    assert np.isnan(run(body, out=np.zeros(32, np.float32))).sum() == 31
    assert np.isnan(run(body, out=np.zeros(32, np.float32), order="reverse")).sum() == 1


def test_blocks_side_by_side_compute_the_same():
    body = """
        float sum = 0;
        for (int i = 0; i < 8; i++) {
            sum = pc_exchange(sum + pc_block() * 0.1f + pc_thread(), 1 << i % 5);
            pc_sync_block();
        }
        out[pc_block() * 64 + pc_thread()] = pc_bits(sum);
    """
    one, many = (run(body, out=np.zeros((40, 64), np.float32), threads=64, grid=40, workers=n) for n in (1, 4))
    np.testing.assert_array_equal(one, many)


def test_launches_of_several_threads_of_the_host():
    body = "pc_sync_block();\nout[pc_block() * 64 + pc_thread()] = pc_any(pc_thread() == 40);"

    def launch(_: int) -> np.ndarray:
        return run(body, out=np.zeros((6, 2, 32), np.uint32), threads=64, grid=6, workers=2)

    launch(0)
    with ThreadPoolExecutor(3) as threads:
        for got in threads.map(launch, range(30)):
            np.testing.assert_array_equal(got, np.broadcast_to([[[0], [1]]], got.shape))


# ---- sanitizers, in a process of their own

SANITIZED = """
import sys
import numpy as np
from test_cuda_emulator import run
for line in sys.argv[2:]:
    print("next", file=sys.stderr, flush=True)
    body = f"u32* shared = (u32*)pc_shared(); const int i = pc_thread();\\n{line}\\nout[i] = shared[63 - i];"
    run(body, np.ones(64, np.uint32), out=np.zeros(64, np.uint32), threads=64, grid=3, sanitize=sys.argv[1])
"""


def sanitized(sanitize: str, *lines: str) -> list[str]:
    """Return what a sanitizer says of kernels that move `in` to `out` through `shared`, each with another line 2."""
    try:
        libraries = _compiler.preload(sanitize)
    except UnsupportedByBackend as reason:
        pytest.skip(str(reason))
    environment = {
        **os.environ,
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's
        "TSAN_OPTIONS": "suppress_equal_addresses=0",  # kernels get the same shared memory
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    unmoved = (
        ["setarch", "-R"] if sanitize == "thread" and shutil.which("setarch") else []
    )  # TSan wants plain addresses
    command = [*unmoved, sys.executable, "-P", "-c", SANITIZED, sanitize, *lines]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stderr
    if said.startswith("setarch:") or "unexpected memory mapping" in said:
        pytest.skip(f"{sanitize} does not work here: {said[:300]}")
    return said.split("next\n")[1:]


def test_address_sanitizer():
    right, wrong = sanitized("address,undefined", "shared[i] = in[i]; pc_sync_block();", "out[i] = in[i + 1];")
    assert "ERROR" not in right, right
    assert re.search(r"heap-buffer-overflow(?s:.*)#0 \S+ in body\(.*test\.cu:2", wrong), wrong


def test_thread_sanitizer():
    said = sanitized(
        "thread",
        "shared[i] = in[i]; pc_sync_block();",
        "pc_copy4(shared + i, in, true); pc_copy_commit(); pc_copy_wait<0>(); pc_sync_block();",
        "shared[i] = in[i]; pc_sync_warp();",
        "pc_copy4(shared + i, in, true); pc_copy_commit(); pc_sync_block(); pc_copy_wait<0>();",
    )
    assert ["data race" in text for text in said] == [False, False, True, True], "".join(said)
    assert re.search(r"#\d body\(.*test\.cu:[23]", said[2]), said[2]


# ---- compiler and arguments


def test_a_library_is_built_once(tmp_path, monkeypatch):
    runtime = _compiler.runtime()
    monkeypatch.setattr(_compiler, "runtime", lambda sanitize: runtime)  # it takes seconds
    monkeypatch.setenv("PAGEDCACHE_CACHE_DIR", str(tmp_path))
    kernel = Kernel("nothing", "", "Nothing", 32)
    first = _compiler.library(kernel, extra="struct Nothing {};")
    built = first.stat().st_mtime_ns
    assert first.parent == tmp_path / "emulator"
    assert first == _compiler.library(kernel, extra="struct Nothing {};") and first.stat().st_mtime_ns == built
    assert first != _compiler.library(kernel, extra="struct Nothing { int x; };")
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".cpp", ".cpp", ".so", ".so"]


def test_what_does_not_compile():
    with pytest.raises(RuntimeError, match=r"compiler refuses emulator_test-\w+\.cpp:\n(?s:.*)test\.cu:1.*nonsense"):
        run("nonsense;")


@pytest.mark.parametrize("variable", ["PAGEDCACHE_CXX", "CXX"])
def test_a_compiler_that_is_not_there(variable, monkeypatch):
    monkeypatch.delenv("PAGEDCACHE_CXX", raising=False)
    monkeypatch.setenv(variable, "no-such-compiler -O2")
    with pytest.raises(UnsupportedByBackend, match=f"{variable} names a C.. compiler that is not there: no-such"):
        run("")


def test_no_compiler(tmp_path: Path, monkeypatch):
    for variable in ("PAGEDCACHE_CXX", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedByBackend, match=r"install g\+\+"):
        run("")


def test_arguments():
    with pytest.raises(ValueError, match="order='backward' is not one of forward, reverse, random"):
        Emulator("backward")
    with pytest.raises(ValueError, match="sanitize='memory' is not one of"):
        Emulator(sanitize="memory")
    with pytest.raises(ValueError, match="threads=48 is not a multiple of 32"):
        run("", threads=48)
    kernel = Kernel("nothing", "", "Nothing", 32)
    with pytest.raises(ValueError, match="nothing: params has 3 bytes, Nothing 4"):
        Emulator(extra="struct Nothing { int x; };").launch(kernel, 1, b"abc")
