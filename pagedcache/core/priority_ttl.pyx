"""Eviction by priority, with a time to live for each.

    level 0   oldest <-> ... <-> newest     lists through prev and next of the records, as in LRU;
    level 1   oldest <-> ... <-> newest     by the time when the block lost its last reference
    ...

The first to go are expired blocks, idle for longer than their level's time to live: of the lowest
level that has one, the oldest. Without any it is the oldest block of the lowest level. An expired
block is found like any other until it is taken; expiry only decides what gives way.

No block is popped before a block C that continues it. Let P be C's parent, both idle.

1. since(P) >= since(C): whoever holds C holds P, and drops tail first, so that P was held when C
   was inserted. Since the clock never goes back, each list is in the order of `since`, and in one
   list C stands before P.
2. level(P) >= level(C): inserting C raised P, which was held. The level of a published block falls only
   when it is demoted, and then to the lowest, which C has too, in front of P and as old; and C's does not
   rise while it is idle.
3. ttl does not fall with the level, so that by 1 and 2 C has expired whenever P has.

So if P is popped as expired, C has expired too: in a lower list, which is looked at before, or
ahead of P in the same. If P is popped unexpired, its level is the lowest and P is its oldest; C is
not in a lower list, by 2 not in a higher one, and by 1 not behind P. Chains follow by induction.

All events are O(1) but for pop, which is O(levels).
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from pagedcache.core.eviction cimport EvictionPolicy
from pagedcache.core.records cimport BlockRecord, ZERO_BLOCK

from numbers import Real

cdef extern from *:
    int RELAXED "__ATOMIC_RELAXED"
    int64_t load "__atomic_load_n"(const int64_t *value, int order) noexcept nogil
    void store "__atomic_store_n"(int64_t *value, int64_t to, int order) noexcept nogil

cdef double LONGEST = 1e9       # seconds; more does not fit nanoseconds in int64, with room for sums


def nanoseconds(seconds, str name):
    """`seconds` as an int of nanoseconds; the error names both limits."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"{name} is {seconds} seconds; it must be 0 to {LONGEST:.0f}")
    return int(seconds * 1e9)


@cython.no_gc_clear    # the pool that is collected with it still asks it
cdef class PriorityTTL(EvictionPolicy):
    """Expired blocks first, then the least recently used of the lowest priority.

    Parameters
    ----------
    ttls : sequence of float or None
        Seconds that an idle block of each priority lives, 0 first: 1 to 64 of them, none less than the one
        before. None is for ever.

    Raises
    ------
    ValueError
        A priority would expire before a lower one. Blocks of a lower priority may continue those of a higher
        one, never the other way round, and a block must not go before what continues it.

    Examples
    --------
    One-off prompts for a minute, conversations for an hour, system prompts as long as there is room:

    >>> from pagedcache.core import BlockPool
    >>> policy = PriorityTTL([60, 3600, None])
    >>> policy.num_levels
    3
    """

    def __cinit__(self, ttls):
        cdef list ends
        cdef int level
        if isinstance(ttls, (str, bytes)) or not hasattr(ttls, "__iter__"):
            raise TypeError(f"ttls must be a list of seconds, one for each priority, not {type(ttls).__name__}")
        ends = [INT64_MAX if ttl is None else nanoseconds(ttl, "a ttl") for ttl in ttls]
        if not 1 <= len(ends) <= MAX_LEVELS:
            raise ValueError(f"ttls has {len(ends)} entries; it must have 1 to {MAX_LEVELS}")
        if ends != sorted(ends):
            raise ValueError(f"ttls is {list(ttls)}; no priority may expire before a lower one")
        self.num_levels = len(ends)
        self.hears_uses = True
        for level in range(self.num_levels):
            self.ttl[level] = ends[level]
            self.oldest[level] = ZERO_BLOCK
            self.newest[level] = ZERO_BLOCK

    def __dealloc__(self):
        free(self.level)
        free(self.since)

    def advance(self, seconds):
        """Move the policy's clock forward by `seconds`, 0 or more: for tests and simulations.

        The pool sees it from its next verb on.
        """
        cdef int64_t more = nanoseconds(seconds, "seconds")
        with cython.critical_section(self):     # it knows no pool: a verb that ticks meanwhile reads either value
            if self.skew + more > INT64_MAX // 4:
                raise ValueError(f"seconds is {seconds}; the clock would be too far ahead")
            store(&self.skew, self.skew + more, RELAXED)

    cdef int c_bind(self, BlockRecord *records, int32_t num_blocks) except -1:
        EvictionPolicy.c_bind(self, records, num_blocks)
        self.level = <uint8_t *>calloc(<size_t>num_blocks + 1, sizeof(uint8_t))
        self.since = <int64_t *>calloc(<size_t>num_blocks + 1, sizeof(int64_t))
        if not self.level or not self.since:
            raise MemoryError(f"no memory for the priorities of {num_blocks} blocks")
        self.nbytes = (<int64_t>num_blocks + 1) * (sizeof(uint8_t) + sizeof(int64_t))
        self.c_tick()
        return 0

    cdef void c_tick(self) noexcept nogil:
        cdef timespec time
        clock_gettime(CLOCK_MONOTONIC, &time)
        self.now = <int64_t>time.tv_sec * 1000000000 + time.tv_nsec + load(&self.skew, RELAXED)

    cdef void c_publish(self, int32_t block, int level) noexcept nogil:
        self.level[block] = <uint8_t>level

    cdef void c_hit(self, int32_t block, int level) noexcept nogil:
        if self.level[block] < level:
            self.level[block] = <uint8_t>level

    cdef void c_move(self, int32_t block, int32_t to) noexcept nogil:
        self.level[to] = self.level[block]

    cdef void c_insert(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int level = self.level[block]
        cdef int32_t newest = self.newest[level]
        self.c_hit(self.c_parent(block), level)
        records[block].prev = newest
        records[block].next = ZERO_BLOCK
        if newest == ZERO_BLOCK:
            self.oldest[level] = block
        else:
            records[newest].next = block
        self.newest[level] = block
        self.since[block] = self.now
        self.num_idle += 1

    cdef void c_remove(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int level = self.level[block]
        cdef int32_t older = records[block].prev
        cdef int32_t newer = records[block].next
        if older == ZERO_BLOCK:
            self.oldest[level] = newer
        else:
            records[older].next = newer
        if newer == ZERO_BLOCK:
            self.newest[level] = older
        else:
            records[newer].prev = older
        self.num_idle -= 1

    cdef int32_t c_pop(self) noexcept nogil:
        cdef int32_t block, victim = ZERO_BLOCK
        cdef int level
        for level in range(self.num_levels):
            block = self.oldest[level]
            if block == ZERO_BLOCK:
                continue
            if self.now - self.since[block] >= self.ttl[level]:
                victim = block
                break
            if victim == ZERO_BLOCK:
                victim = block
        self.c_remove(victim)
        self.level[victim] = 0
        return victim

    cdef void c_demote(self, int32_t block) noexcept nogil:
        cdef BlockRecord *records = self.records
        cdef int32_t oldest
        self.c_remove(block)
        oldest = self.oldest[0]
        records[block].prev = ZERO_BLOCK
        records[block].next = oldest
        if oldest == ZERO_BLOCK:
            self.newest[0] = block
        else:
            records[oldest].prev = block
        self.oldest[0] = block
        self.level[block] = 0
        self.since[block] = 0       # long before any other
        self.num_idle += 1

    cdef list c_order(self):
        cdef list expired = [], others = []
        cdef int level
        self.c_tick()
        for level in range(self.num_levels):
            for block in self.c_list(level):
                gone = self.now - self.since[<int32_t>block] >= self.ttl[level]
                (expired if gone else others).append(block)
        return expired + others

    cdef list c_list(self, int level):
        """Idle blocks of a level, oldest first; cut short where links go round."""
        cdef list blocks = []
        cdef int32_t block = self.oldest[level]
        while block != ZERO_BLOCK and len(blocks) <= self.num_idle:
            blocks.append(block)
            block = self.records[block].next
        return blocks
