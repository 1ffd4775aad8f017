cimport cython
from libc.stdint cimport int32_t, uint64_t

from pagedcache.core.event_log cimport EventLog
from pagedcache.core.key_table cimport KeyTable, RowKeys


cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *address) noexcept nogil


cdef extern from "siphash.h" nogil:
    ctypedef struct pc_secret:
        uint64_t k0
        uint64_t k1
    uint64_t pc_block_tag(pc_secret secret, uint64_t before, const int32_t *tokens, int32_t count) noexcept


cdef enum:
    LOOKAHEAD = 8       # tags computed, and their slots fetched, before the first is looked up
    SIBLINGS = 16       # the newest children of a node, in which a head is looked for: a bound on what a lookup costs


cdef struct Node:
    uint64_t tag        # keyed hash of every token from the start of the prompt to this block's last
    int32_t parent      # node of the block before, or NO_NODE; while vacant: the next vacant node
    int32_t child       # newest node whose parent this is, or NO_NODE; a node with children is never removed
    int32_t next        # the same parent's next older child, or NO_NODE
    int32_t previous    # its next newer one, or NO_NODE


cdef struct Head:       # what a prompt and one block have in common at their beginnings
    int32_t tokens      # 0: nothing
    int32_t block


cdef class PrefixIndex:
    cdef readonly int32_t block_size    # tokens per block
    cdef readonly int32_t num_nodes     # blocks that can be found
    cdef int32_t capacity               # most nodes: the pool's number of blocks
    cdef int32_t vacant                 # head of the list of vacant nodes
    cdef Node *nodes                    # [-1 .. capacity - 1]; NO_NODE is the parent of all first blocks
    cdef int32_t *blocks                # [capacity] physical block of each node (of layer group 0): its anchor
    cdef int32_t num_sides              # layer groups beside group 0
    cdef int32_t *companions            # [capacity, num_sides] the node's blocks of those groups; 0: none
    cdef int32_t *node_keys             # [capacity] number of what begins in the node's block; NULL: nowhere anything
    cdef KeyTable keys                  # those numbers
    cdef EventLog log                   # what is told of inserts and removals, or None
    cdef int32_t *tokens                # [num_blocks + 1, block_size] token ids by physical block
    cdef uint64_t *slots                # [num_slots] upper half: upper half of the tag; lower half: node
    cdef uint64_t num_slots
    cdef uint64_t tag_mask              # all ones, unless a test wants collisions
    cdef pc_secret secret

    cdef void c_leave(self, int32_t node, int32_t block) noexcept nogil
    cdef bint c_has(self, int32_t node, int32_t block) noexcept nogil
    cdef bint c_same_tokens(self, int32_t block, const int32_t *tokens) noexcept nogil
    cdef uint64_t c_tag(self, int32_t parent) noexcept nogil
    cdef void c_prefetch_slot(self, int32_t node) noexcept nogil
    cdef int32_t c_find(self, int32_t parent, uint64_t tag, const int32_t *tokens, int32_t key) noexcept nogil
    cdef Head c_find_head(self, int32_t parent, const int32_t *tokens, int32_t most, int32_t key) noexcept nogil
    cdef int32_t c_insert(self, int32_t parent, uint64_t tag, int32_t block, int32_t key) noexcept nogil
    cdef void c_move(self, int32_t node, int32_t block) noexcept nogil
    cdef void c_remove(self, int32_t node) noexcept nogil
    cdef void c_link(self, int32_t node) noexcept nogil
    cdef void c_unlink(self, int32_t node) noexcept nogil
    cdef int32_t c_match(
        self, const int32_t *tokens, int32_t max_blocks, const RowKeys *keys, int32_t *blocks, int32_t *last
    ) noexcept nogil
    cdef int c_allow_keys(self) except -1
    cdef int32_t c_key(self, int32_t node) noexcept nogil
    cdef int32_t c_count_children(self, int32_t node) noexcept nogil
    cpdef check(self)

    @cython.final
    cdef inline int32_t c_companion(self, int32_t node, int32_t side) noexcept nogil:
        return self.companions[<size_t>node * self.num_sides + side]

    @cython.final
    cdef inline void c_set_companion(self, int32_t node, int32_t side, int32_t block) noexcept nogil:
        self.companions[<size_t>node * self.num_sides + side] = block

    # What is asked for every block stands here, where each module can inline it.

    @cython.final
    cdef inline uint64_t c_home(self, uint64_t upper) noexcept nogil:
        # Multiplying spreads the 32-bit value over any number of slots without a division.
        return (upper * self.num_slots) >> 32

    @cython.final
    cdef inline uint64_t c_next_tag(self, uint64_t before, const int32_t *tokens, int32_t key) noexcept nogil:
        """Tag of the block of `tokens` after the block with tag `before`; fetches where it would stand.

        It does not depend on what is found, so that tags can run some blocks ahead of the finds.
        """
        cdef uint64_t tag
        if key != 0:
            before = pc_block_tag(self.secret, before, &key, 1)
        tag = pc_block_tag(self.secret, before, tokens, self.block_size) & self.tag_mask
        prefetch(&self.slots[self.c_home(tag >> 32)])
        return tag
