"""What a call costs besides the kernels: launches, graphs, plans."""

import time
from statistics import median

import numpy as np

from _gpu.cases import decode
from _gpu.device import host_time
from _gpu.pool import Pool

LAYERS = 32


def rows(device, shrink):
    count = 200 if shrink == 1 else 2
    yield from launches(device, count)
    yield graph(device, decode(8, 1024) if shrink == 1 else decode(2, 40).shrunk(1), count)
    for batch in (1, 8, 64, 256) if shrink == 1 else (1, 2):
        yield plans(device, decode(batch, 1024) if shrink == 1 else decode(batch, 40).shrunk(1))


def launches(device, count):
    """A call over almost nothing: what the host takes for it, and the GPU."""
    pool = Pool(device, decode(1, 16))
    k, v = pool.new_tokens()

    def both():
        device.backend.write_and_attend(pool.storage, 0, pool.q, k, v, pool.step, out=pool.out)

    for name, call in (("attend", pool.attend), ("write_and_attend", both)):
        host, whole = host_time(device, call, count)
        gpu = median(device.times(call))
        yield {"kind": "call", "name": name, "host_us": host * 1e6, "whole_us": whole * 1e6, "gpu_us": gpu * 1e6}


def graph(device, case, count):
    """The layers of a step, launched one by one and replayed as one graph; both have to say the same."""
    pool = Pool(device, case, layers=LAYERS)
    tokens = len(case.kv_lens)
    workspace = device.backend.workspace(
        pool.storage, case.heads[0], max_sequences=tokens, max_tokens=tokens, max_length=max(case.kv_lens)
    )
    workspace.plan(pool.step)

    def layers(step):
        for layer in range(LAYERS):
            pool.attend(step, layer)

    layers(pool.step)
    expected = device.host(pool.out).copy()
    replay = device.captured(lambda: layers(workspace))
    pool.out[...] = 0
    replay()
    device.synchronize()
    found = device.host(pool.out)
    direct, by_workspace, replayed = (
        host_time(device, call, max(1, count // LAYERS))[1]
        for call in (lambda: layers(pool.step), lambda: layers(workspace), replay)
    )
    return {
        "kind": "graph", "case": case.key, "layers": LAYERS, "equal": bool(np.array_equal(found, expected)),
        "direct_us": direct * 1e6 / LAYERS, "workspace_us": by_workspace * 1e6 / LAYERS,
        "replay_us": replayed * 1e6 / LAYERS, "workspace_bytes": workspace.nbytes,
    }  # fmt: skip


def plans(device, case):
    """What the host takes for the schedule of a step: its first attend makes one, a workspace is told to."""
    pool = Pool(device, case)
    tokens = len(case.kv_lens)
    workspace = device.backend.workspace(
        pool.storage, case.heads[0], max_sequences=tokens, max_tokens=tokens, max_length=max(case.kv_lens)
    )
    pool.attend()
    first, plan = [], []
    for _ in range(7):
        step = pool.new_step()
        device.synchronize()
        for found, call in (
            (first, lambda step=step: pool.attend(step)),
            (plan, lambda step=step: workspace.plan(step)),
        ):
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
    later = host_time(device, pool.attend, 2)[0]
    return {
        "kind": "plan",
        "sequences": tokens,
        "schedule_us": (median(first) - later) * 1e6,
        "plan_us": median(plan) * 1e6,
    }
