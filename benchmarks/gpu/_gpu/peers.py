"""The same shapes in other libraries: torch over dense K and V, FlashInfer and FlashAttention over the same pages."""

import time
from statistics import median

from _gpu.cases import chosen, decodes, prefills
from _gpu.device import FLUSH

SEQUENCES = 4 << 30  # bytes of K and V that a case may have, since a library's own copy comes besides
PLACES = {"cuda": "cuda", "emulated": "cpu"}  # as torch calls them
PAGE = 256  # FlashAttention takes multiples of it


def rows(device, shrink):
    torch, place = usable_torch(device), PLACES[device.name]
    if torch is None:
        yield {"kind": "peer", "library": "torch", "failed": "there is no torch for this device"}
        return
    for case in (*chosen(decodes(), shrink), *chosen(prefills(), shrink)):
        if case.dtype not in ("float16", "bfloat16") or not case.uniform or case.nbytes > SEQUENCES:
            continue
        for library, make in LIBRARIES.items():
            row = {"kind": "peer", "library": library, "case": case.key}
            try:
                call = make(torch, case, place)
                yield row | {"us": median(torch_times(call)) * 1e6}
                del call
            except Exception as problem:  # whatever a library lacks here is no reason to end
                yield row | {"failed": f"{type(problem).__name__}: {problem}".splitlines()[0][:200]}


def usable_torch(device):
    """The module, where it is installed and can use the device."""
    try:
        import torch
    except ImportError:
        return None
    return torch if device.name != "cuda" or torch.cuda.is_available() else None


def torch_times(call, samples=15):
    """As `device.times` has it, on torch's stream."""
    import torch

    if not torch.cuda.is_available():
        begin = time.perf_counter()
        call()
        return [time.perf_counter() - begin]
    call()
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(samples)]
    for begin, end in pairs:
        flush.fill_(1)
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]


def sdpa(torch, case, place):
    """Scaled dot-product attention of torch over dense caches."""
    q_heads, kv_heads, size = case.heads
    batch, new, length = len(case.kv_lens), case.q_lens[0], case.kv_lens[0]
    q, k, v = (
        torch.randn(batch, heads, rows, size, device=place).to(getattr(torch, case.dtype))
        for heads, rows in ((q_heads, new), (kv_heads, length), (kv_heads, length))
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, is_causal=not case.decodes, enable_gqa=q_heads != kv_heads)


def paged(torch, case, place, block_size):
    """q, K and V in pages, and a table of pages in random order."""
    q_heads, kv_heads, size = case.heads
    dtype = getattr(torch, case.dtype)
    width = -(-case.kv_lens[0] // block_size)
    shape = (len(case.kv_lens) * width, block_size, kv_heads, size)
    table = torch.randperm(shape[0], device=place).to(torch.int32).reshape(-1, width)
    k, v = (torch.randn(shape, device=place, dtype=dtype) for _ in range(2))
    return torch.randn(sum(case.q_lens), q_heads, size, device=place, dtype=dtype), k, v, table


def flashinfer(torch, case, place):
    import flashinfer

    if not case.decodes:
        raise NotImplementedError("prefill is not compared")
    q, k, v, table = paged(torch, case, place, case.block_size)
    room = torch.empty(256 << 20, dtype=torch.uint8, device=place)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room, "NHD", use_tensor_cores=True)
    indptr = torch.arange(0, table.numel() + 1, table.shape[1], dtype=torch.int32, device=place)
    last = torch.full(
        (len(case.kv_lens),), (case.kv_lens[0] - 1) % case.block_size + 1, dtype=torch.int32, device=place
    )
    wrapper.plan(indptr, table.flatten(), last, *case.heads, case.block_size, q_data_type=q.dtype, kv_data_type=k.dtype)
    return lambda: wrapper.run(q, (k, v))


def flash_attention(torch, case, place):
    from flash_attn import flash_attn_with_kvcache

    q, k, v, table = paged(torch, case, place, PAGE)
    lens = torch.tensor(case.kv_lens, dtype=torch.int32, device=place)
    q = q.unflatten(0, (len(case.kv_lens), -1))
    return lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, block_table=table, causal=True)


LIBRARIES = {"torch sdpa": sdpa, "flashinfer": flashinfer, "flash_attn": flash_attention}
