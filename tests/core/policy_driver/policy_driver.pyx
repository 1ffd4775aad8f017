"""What tests of eviction policies do that no verb does; and a policy of a stranger's own."""

from libc.stdint cimport int32_t

from pagedcache.core.block_pool cimport BlockPool
from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.priority_ttl cimport PriorityTTL
from pagedcache.core.records cimport NO_NODE


def set_level(BlockPool pool, int32_t block, int level):
    pool.policy.c_publish(block, level)


def raise_level(BlockPool pool, int32_t block, int level):
    pool.policy.c_hit(block, level)


def level_of(BlockPool pool, int32_t block):
    return (<PriorityTTL>pool.policy).level[block]


def order(BlockPool pool):
    pool.policy.c_tick()
    return pool.policy.c_order()


def evict(BlockPool pool, int32_t count):
    """Make `count` cached blocks vacant."""
    pool.c_make_vacant(pool.num_vacant + count)


cdef class Queue(EvictionPolicy):
    """Pops the block that became idle first, from an array of its own; keeps a log of its events."""

    cdef int32_t idle[64]
    cdef readonly list log

    def __cinit__(self):
        self.log = []

    cdef void c_insert(self, int32_t block) noexcept nogil:
        self.idle[self.num_idle] = block
        self.num_idle += 1
        with gil:
            self.log.append(("insert", block))

    cdef void c_remove(self, int32_t block) noexcept nogil:
        cdef int32_t i = 0
        while self.idle[i] != block:
            i += 1
        self.num_idle -= 1
        while i < self.num_idle:
            self.idle[i] = self.idle[i + 1]
            i += 1
        with gil:
            self.log.append(("remove", block))

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t i, block = self.idle[0]
        self.num_idle -= 1
        for i in range(self.num_idle):
            self.idle[i] = self.idle[i + 1]
        with gil:
            self.log.append(("pop", block))
        return block

    cdef list c_order(self):
        return [self.idle[i] for i in range(self.num_idle)]


def twin(BlockPool pool, int32_t block):
    """A second idle block of the node of an idle one, as another group of layers has it; its number."""
    cdef int32_t other
    pool.c_take(0, 1, &other)
    pool.records[other].node = pool.records[block].node
    if pool.policy.hears_uses:
        pool.policy.c_publish(other, 0)
        pool.policy.c_hit(other, 0)
    pool.records[other].refcount = 0
    pool.policy.c_insert(other)
    return other


def give_back(BlockPool pool, int32_t twin):
    """The idle twin is no longer published, as where its node's own block is evicted."""
    pool.policy.c_remove(twin)
    pool.records[twin].node = NO_NODE
    pool.c_put(twin)


def pop(BlockPool pool):
    """Evict one block, a twin or a node's own; which it was."""
    cdef int32_t block = pool.policy.c_pop(), node = pool.records[block].node
    if pool.index.blocks[node] == block:
        pool.index.c_remove(node)
    pool.records[block].node = NO_NODE
    pool.c_put(block)
    return block


def check_policy(BlockPool pool):
    pool.policy.c_check()
