"""The CUDA kernels compile for GPUs, fit into their registers, and use the instructions that make them fast.

Budgets are those of multiprocessors with 65536 registers: 168 of each of 128 threads let three blocks run at once.
"""

import os
import re
import subprocess
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest
from instantiations import ARCHITECTURES, TENSOR, Case, attention, others

from pagedcache.backends.cuda import _kernels, _params
from pagedcache.backends.cuda._kernels import Kernel
from pagedcache.backends.cuda_emulated import _nvrtc

pytestmark = pytest.mark.cuda_offline

STRUCTS = {
    "AttendParams": _params.ATTEND,
    "StoreParams": _params.STORE,
    "MoveParams": _params.MOVE,
    "Item": _params.ITEM,
    "Merge": _params.MERGE,
}


def compiled(kernel: Kernel, arch: str) -> tuple[bytes, _nvrtc.Resources]:
    """Return a kernel's cubin, and what it needs."""
    result = _nvrtc.compile(_kernels.source(kernel), f"{kernel.name}.cu", arch)
    return result.image, _nvrtc.resources(result.log)[kernel.name]


@pytest.fixture(scope="module")
def compile_kernel(nvrtc, request):
    """`compiled`, begun in other processes for all tests to come, as NVRTC does one source at a time in each."""
    tests = [item.callspec.params for item in request.session.items if "compile_kernel" in item.fixturenames]
    wanted = [(test["case"].kernel if "case" in test else test["kernel"], test["arch"]) for test in tests]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        jobs = {key: pool.submit(compiled, *key) for key in dict.fromkeys(wanted)}
        yield lambda kernel, arch: jobs[kernel, arch].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def disassemble(tmp_path):
    """Return the opcodes of a cubin's instructions."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else []
    found = [path for folder in folders for path in Path(folder).glob("*/bin/nvdisasm")]
    if not found:
        pytest.skip("needs nvidia-cuda-nvdisasm")

    def run(cubin):
        file = tmp_path / "kernel.cubin"
        file.write_bytes(cubin)
        text = subprocess.run([found[0], "-c", file], check=True, capture_output=True, text=True).stdout
        return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text)

    return run


def cases():
    """Every kernel for every architecture: those of the budgets always, the others (minutes) where asked for."""
    for case in attention():
        for arch in ARCHITECTURES:
            quick = arch == "sm_80" and case.plain and case.size in (64, 128)
            yield pytest.param(case, arch, marks=() if quick else pytest.mark.slow, id=f"{case}-{arch}")


@pytest.mark.parametrize(("case", "arch"), list(cases()))
def test_kernels_that_attend(case: Case, arch, compile_kernel, disassemble):
    cubin, needs = compile_kernel(case.kernel, arch)
    opcodes = disassemble(cubin)
    assert needs.registers <= 255
    if case.plain and case.size <= 128 and arch == "sm_80":
        assert needs.spill_stores == needs.spill_loads == 0
        assert not [opcode for opcode in opcodes if opcode.startswith(("LDL", "STL"))]
    else:
        assert needs.stack <= 16
    if case.plain and case.family == "few" and case.size == 128 and case.dtype in ("float16", "bfloat16"):
        assert needs.registers <= 168
    if case.dtype in TENSOR:
        assert any(opcode.startswith("HMMA") for opcode in opcodes)
        if case.plain:
            assert any(opcode.startswith("LDGSTS.E") and opcode.endswith(".128") for opcode in opcodes)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", others(), ids=lambda kernel: kernel.name)
def test_kernels_around_attention(kernel, arch, compile_kernel):
    _, needs = compile_kernel(kernel, arch)
    assert needs.registers <= 64
    assert needs.stack == needs.spill_stores == needs.spill_loads == 0


@pytest.mark.parametrize("kernel", others(), ids=lambda kernel: kernel.name)
def test_a_launch_gives_as_many_bytes_as_a_kernel_takes(kernel, nvrtc):
    ptx = nvrtc.compile(_kernels.source(kernel), f"{kernel.name}.cu", "compute_80").ptx
    sizes = re.findall(rf"{kernel.name}_param_0\[(\d+)\]\s*\)", ptx)
    assert sizes == [str(STRUCTS[kernel.params].itemsize)]


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_laid_out_as_in_c(name, nvrtc):
    dtype = STRUCTS[name]
    fields = [f"__builtin_offsetof({name}, {field}) == {dtype.fields[field][1]}" for field in dtype.names]
    checks = [f'static_assert({check}, "");' for check in (f"sizeof({name}) == {dtype.itemsize}", *fields)]
    nvrtc.compile(_kernels.source(_kernels.merge()) + "\n".join(checks), f"{name}.cu", "compute_80")


def test_shared_memory_of_a_launch_is_what_the_kernel_uses(nvrtc):
    """The sizes of _kernels.py are the constants of the kernels' own structs."""
    cases = {case.kernel.call.removesuffix("::run(p)"): case.kernel for case in attention()}
    lines = []
    for struct, kernel in cases.items():
        lines.append(
            f'static_assert({struct}::SHARED == {kernel.shared} && {struct}::THREADS == {kernel.threads}, "");'
        )
    nvrtc.compile(_kernels.source(_kernels.merge()) + "\n".join(lines), "shared.cu", "compute_80")


def test_a_source_that_does_not_compile_says_why(nvrtc):
    with pytest.raises(RuntimeError, match=r'broken\.cu(.|\n)*"nonsense" is undefined'):
        nvrtc.compile('extern "C" __global__ void k() { nonsense; }', "broken.cu", "sm_80")
