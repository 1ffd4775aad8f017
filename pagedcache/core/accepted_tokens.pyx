"""Which new tokens of a step a commit may accept: paths of the tree, from its root on."""

from libc.stdint cimport int32_t, int64_t

from pagedcache.core.step_buffers cimport StepBuffers


cdef int check_accepted(StepBuffers buffers, const int32_t[::1] path, const int64_t[::1] ends) except -1:
    """Raise what is wrong with indices `path`, sequence s's from ``ends[s]`` on, for an open step."""
    cdef int32_t s, first, count, k, index, start
    if ends.shape[0] != buffers.c.num_sequences + 1:
        raise ValueError(f"accepted has {ends.shape[0] - 1} lists for {buffers.c.num_sequences} sequences")
    for s in range(buffers.c.num_sequences):
        first = buffers.c.qo_indptr[s]
        count = buffers.c.qo_indptr[s + 1] - first
        start = buffers.c.kv_lens[s] - count - buffers.c.kv_pads[s]
        for k in range(<int32_t>(ends[s + 1] - ends[s])):
            index = path[ends[s] + k]
            if not 0 <= index < count or (k > 0 and index <= path[ends[s] + k - 1]):
                raise ValueError(
                    f"accepted holds {index} at {k} for sequence {s}; indices ascend within 0 to {count - 1}"
                )
            if buffers.c.positions[first + index] != start + k:
                raise ValueError(
                    f"accepted token {k} of sequence {s} is new token {index}, computed for depth "
                    f"{buffers.c.positions[first + index] - start}; the {k}th of a path has depth {k}"
                )
    return 0
