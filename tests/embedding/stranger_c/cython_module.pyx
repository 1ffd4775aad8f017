# cython: language_level=3
"""A third party's Cython module: a cache of its own, driven without the GIL."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from pagedcache.capi cimport (
    PAGEDCACHE_OK,
    pagedcache,
    pagedcache_api,
    pagedcache_config,
    pagedcache_import,
    pagedcache_stats,
    pagedcache_tensors,
)

cdef const pagedcache_api *pc = pagedcache_import()


cdef int drive(
    pagedcache *cache, const float[:, :, ::1] q, const float[:, :, ::1] kv, float[:, :, ::1] out
) noexcept nogil:
    """One sequence, one token a step; q_heads are those of q."""
    cdef int64_t sequence
    cdef int32_t one = 1
    cdef Py_ssize_t t
    cdef pagedcache_tensors tensors
    cdef int status = pc.start(cache, 1, &sequence)
    memset(&tensors, 0, sizeof(tensors))
    tensors.q_heads = <int32_t>q.shape[1]
    for t in range(q.shape[0]):
        tensors.q, tensors.k, tensors.v, tensors.out = &q[t, 0, 0], &kv[t, 0, 0], &kv[t, 0, 0], &out[t, 0, 0]
        status = status or pc.extend(cache, 1, &sequence, &one)
        status = status or pc.attend_step(cache, 0, &tensors, NULL)
        status = status or pc.commit(cache)
    return status


def decode(const float[:, :, ::1] q, const float[:, :, ::1] kv, float[:, :, ::1] out, int num_blocks, int block_size):
    """Attend token by token; returns the blocks that were used, or raises RuntimeError."""
    cdef pagedcache_config config
    cdef pagedcache_stats stats
    cdef pagedcache *cache
    cdef int status
    memset(&config, 0, sizeof(config))
    config.num_layers, config.num_blocks, config.block_size = 1, num_blocks, block_size
    config.kv_heads, config.head_dim = <int32_t>kv.shape[1], <int32_t>kv.shape[2]
    with nogil:
        status = pc.open(&config, &cache)
        if status == PAGEDCACHE_OK:
            status = drive(cache, q, kv, out)
            pc.stats(cache, &stats)
    if status != PAGEDCACHE_OK:
        words = pc.error().decode()
        pc.close(cache)
        raise RuntimeError(words)
    pc.close(cache)
    return stats.used_blocks
