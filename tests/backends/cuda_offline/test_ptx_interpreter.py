"""Threads, warps and memory in the interpreter of PTX, and that it finds each kind of fault."""

import numpy as np
import pytest
from small_kernels import empty, run

from pagedcache.backends.cuda_emulated.ptx import PtxFault, PtxProgram

pytestmark = [pytest.mark.cuda_offline, pytest.mark.usefixtures("nvrtc")]

SHARED = "(unsigned)__cvta_generic_to_shared(s)"
COPY = f"""asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 16;"
                       ::"r"({SHARED} + 16 * t), "l"(a + 4 * i) : "memory");"""
COMMIT = 'asm volatile("cp.async.commit_group;" ::: "memory");'
WAIT = 'asm volatile("cp.async.wait_group 0;" ::: "memory");'

# ---- threads


def test_threads_take_their_own_ways():
    body = """
        int x = i, steps = 0;
        while (x > 1) {
          if (x % 2) { if (x % 3 == 0) steps += 100; x = 3 * x + 1; } else x /= 2;
          if (++steps > 1000) return;
        }
        a[i] = steps;"""

    def steps(x):
        count = 0
        while x > 1:
            count += 100 * (x % 2 and x % 3 == 0)
            x = 3 * x + 1 if x % 2 else x // 2
            count += 1
            if count > 1000:
                return 0
        return count

    out = run(body, empty(size=3 * 64), grid=3)
    np.testing.assert_array_equal(out, [steps(i) for i in range(3 * 64)])


def test_blocks_beyond_those_that_run_at_once():
    out = run("a[i] = blockIdx.x * 1000 + gridDim.x;", empty(size=64 * 70), grid=70)
    np.testing.assert_array_equal(out, np.arange(70).repeat(64) * 1000 + 70)


def test_threads_that_end_early_are_not_waited_for():
    body = """
        if (t >= 40) return;
        ((unsigned*)s)[t] = t;
        __syncthreads();
        a[i] = ((unsigned*)s)[39 - t];"""
    np.testing.assert_array_equal(run(body, empty(), shared=160)[:40], np.arange(40)[::-1])


def test_lanes_that_come_late_are_waited_for():
    body = """
        float x = t;
        for (int n = 0; n < t % 5; n++) x += 1;
        a[i] = __shfl_xor_sync(~0u, x, 1);"""
    out = run(body, empty("f4"))
    lanes = np.arange(64) ^ 1
    np.testing.assert_array_equal(out, lanes + lanes % 5)


# ---- warps


def test_exchanges_and_votes():
    body = """
        a[i] = __shfl_xor_sync(~0u, t * 10, 5);
        b[i] = __shfl_sync(~0u, t * 10, t / 4);
        c[i] = __any_sync(~0u, t == 40) + 2 * __all_sync(~0u, t < 32);
        d[i] = __ballot_sync(~0u, t % 3 == 0);"""
    a, b, c, d = (empty() for _ in range(4))
    run(body, a, b, c, d)
    lanes = np.arange(64)
    np.testing.assert_array_equal(a, 10 * (lanes ^ 5))
    np.testing.assert_array_equal(b, 10 * (lanes // 32 * 32 + lanes // 4))
    np.testing.assert_array_equal(c, np.repeat([2, 1], 32))
    assert [int(x) for x in d[[0, 63]]] == [sum((t % 3 == 0) << t % 32 for t in range(w, w + 32)) for w in (0, 32)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_matrices(kind):
    """One warp: c [16, 8] = a [16, 16] * b, where b [8, 16] is given by columns; both come through shared memory."""
    body = f"""
        unsigned* to = (unsigned*)s;
        for (int n = t; n < 128; n += 32) to[n] = a[n];
        for (int n = t; n < 64; n += 32) to[128 + n] = b[n];
        for (int n = t; n < 64; n += 32) to[192 + n] = c[n];
        __syncwarp();
        unsigned x[4], y[4], z[4];
        const unsigned at = {SHARED}, left = at + t % 16 * 32 + t / 16 * 16;
        const unsigned right = at + 512 + t % 8 * 32 + t / 8 % 2 * 16;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0,%1,%2,%3}}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(left));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0,%1,%2,%3}}, [%4];"
                     : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(right));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%0,%1,%2,%3}}, [%4];"
                     : "=r"(z[0]), "=r"(z[1]), "=r"(z[2]), "=r"(z[3]) : "r"(at + 768 + t % 16 * 16));
        for (int n = 0; n < 2; n++) {{
          float sum[4] = {{1, 1, 1, 1}};
          unsigned* w = n ? z : y;
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}}, "
                       "{{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
                       : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                       : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w[0]), "r"(w[1]));
          for (int e = 0; e < 4; e++) d[n * 128 + (t / 4 + e / 2 * 8) * 8 + t % 4 * 2 + e % 2] = sum[e];
        }}"""
    random = np.random.default_rng(0)
    a, b, c = (random.integers(-8, 8, shape).astype(np.float32) for shape in ((16, 16), (8, 16), (16, 8)))
    bits = [x.astype(np.float16).view(np.uint32) if kind == "f16" else upper_halves(x) for x in (a, b, c)]
    out = run(body, *(x.ravel() for x in bits), empty("f4", 256), threads=32, shared=1024)
    np.testing.assert_array_equal(out.reshape(2, 16, 8), [a @ b.T + 1, a @ c + 1])


def upper_halves(x):
    return np.ascontiguousarray(x.view(np.uint16)[..., 1::2]).view(np.uint32)


# ---- memory


def test_copies_that_run_beside():
    body = f"""
        const float* x = (const float*)s;
        {COPY} {COMMIT}
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"({SHARED} + 1024 + 4 * t), "l"(a + i), "r"(t % 2 ? 4 : 0) : "memory");
        {COMMIT}
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        b[i] = x[4 * t + 3];
        {WAIT}
        b[i] += x[256 + t] * 1000;"""
    x = np.arange(1, 257, dtype=np.float32)
    lanes = np.arange(64)
    out = run(body, x, empty("f4"), shared=1280)
    np.testing.assert_array_equal(out, x[4 * lanes + 3] + np.where(lanes % 2, x[:64] * 1000, 0))


def test_memory_of_threads_and_of_the_module():
    body = """
        float mine[8];
        for (int n = 0; n < 8; n++) mine[n] = table[n] + t;
        float sum = 0;
        for (int n = 0; n < 3; n++) sum += mine[(t * 7 + n) % 8];
        static __shared__ float block[64];
        block[t] = sum;
        __syncthreads();
        float* from = t % 2 ? block : mine;  // an address of one or the other kind
        b[i] = from[t % 8] + a[t % 3];"""
    table = [1, 2, 4, 8, 16, 32, 64, 128]
    before = f"__constant__ float table[8] = {{{', '.join(map(str, table))}}};"
    out = run(body, np.arange(3, dtype=np.float32), empty("f4"), before=before)
    sums = [sum(table[(t * 7 + n) % 8] + t for n in range(3)) for t in range(64)]
    expected = [(sums[t % 8] if t % 2 else table[t % 8] + t) + t % 3 for t in range(64)]
    np.testing.assert_array_equal(out, expected)


def test_vectors_of_four():
    before = "struct __align__(16) Four { unsigned x[4]; };"
    x = np.arange(256, dtype=np.uint32)
    out = run("((Four*)b)[i] = ((const Four*)a)[63 - i];", x, empty(size=256), before=before)
    np.testing.assert_array_equal(out.reshape(64, 4), x.reshape(64, 4)[::-1])


# ---- faults


def read_only(array):
    array.flags.writeable = False
    return array


def test_addresses_outside_what_is_registered():
    with pytest.raises(PtxFault, match=r"`ld\.global.*of body:3, block 0, thread 63: address"):
        run("b[i] = a[i + 1];", empty(), empty())
    with pytest.raises(PtxFault, match=r"block 1, thread 0: .*no registered memory"):
        run("a[i] = 1;", empty(), grid=2)
    x, y = empty(), empty()
    with pytest.raises(PtxFault, match="no registered memory"):
        run("b[i] = a[i];", x, y, known=[y])


FAULTS = {
    "write to what is read-only": ("b[i] = a[i]; a[i] = 1;", "thread 0: write to memory that is read-only"),
    "misaligned": ("b[i] = *(const unsigned*)((const char*)a + 2);", "access of 4 bytes is misaligned"),
    "beyond shared memory": ("((unsigned*)s)[t + 1] = 1;", r"thread 63: shared address 256 \+ 4 .*beyond the 256"),
    "nobody wrote": (
        "if (t < 63) ((unsigned*)s)[t] = 1; __syncthreads(); b[i] = ((unsigned*)s)[t];",
        "63: .*nobody wrote",
    ),
    "not converged": ("if (t % 2) b[i] = __shfl_xor_sync(~0u, t, 2);", "warp not converged, 16 of 32 lanes"),
    "mask": ("b[i] = __shfl_xor_sync(0xffffu, t, 2);", "some of a warp's lanes"),
    "barrier in a branch": (
        "if (a[t] + t < 40) __syncthreads(); b[i] = 1; __syncthreads();",
        "reached by 40 of the block's 64",
    ),
    "different barriers": (
        "if (t < 32) { __syncthreads(); b[i] = 1; } else { b[i] = 2; __syncthreads(); }",
        "reached by 32",
    ),
    "copy is not waited for": (f"{COPY} {COMMIT}", "ends while its copies are on their way"),
    "copy is used too early": (f"{COPY} {COMMIT} b[i] = s[16 * t]; {WAIT}", "a copy is on its way to"),
    "copy is not committed": (f"{COPY} {WAIT} b[i] = s[16 * t]; {COMMIT} {WAIT}", "a copy is on its way to"),
    "copy over a copy": (f"{COPY} {COPY} {COMMIT} {WAIT}", "another copy is on its way"),
    "no barrier before a read": (
        "((int*)s)[t] = t; b[i] = ((int*)s)[t ^ 1];",
        "that thread 1 wrote, with no barrier between",
    ),
    "a barrier of the warp is not enough": (
        "((int*)s)[t] = t; __syncwarp(); b[i] = ((int*)s)[t ^ 1] + ((int*)s)[t ^ 32];",
        "that thread 32 wrote, with no barrier between",
    ),
    "no barrier before a write": (
        "((int*)s)[t] = t; __syncthreads(); b[i] = ((int*)s)[t ^ 5]; ((int*)s)[t] = b[i];",
        "write to shared memory that thread 5 reads, with no barrier between",
    ),
    "unknown instruction": ("b[i] = clock64();", "is not known"),
}


@pytest.mark.parametrize(("body", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(body, message):
    with pytest.raises(PtxFault, match=message):
        run(body, read_only(empty(size=256)), empty(), shared=1024 if "cp.async" in body else 256)


def test_what_is_no_launch():
    program = PtxProgram(".visible .entry k(\n.param .u32 k_param_0\n)\n{\nret;\n}\n", "k")
    with pytest.raises(ValueError, match="8 of 4 bytes"):
        program.launch(1, 32, 0, bytes(8), [])
    with pytest.raises(ValueError, match="33 threads"):
        program.launch(1, 33, 0, bytes(4), [])
    with pytest.raises(PtxFault, match="no entry other"):
        PtxProgram("", "other")
