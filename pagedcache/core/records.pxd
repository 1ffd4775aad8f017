"""The record that pool, eviction policy and prefix index keep of a block, and their sentinels."""

from libc.stdint cimport int32_t

cdef enum:
    NO_NODE = -1        # the block is not published; also the parent of a first block
    ZERO_BLOCK = 0      # reserved, never handed out; its record is the head of the list of idle blocks
    GROUP = 4           # blocks of an aligned group; the reader's prefetch wants runs of ids


cdef struct BlockRecord:
    int32_t refcount    # table entries, steps, pins, callers, the fence queue; 0 = vacant or cached
    int32_t prev        # neighbours in the eviction policy's list (cached blocks) or the fence queue's
    int32_t next        #
    int32_t node        # prefix-index node that publishes the block, or NO_NODE
