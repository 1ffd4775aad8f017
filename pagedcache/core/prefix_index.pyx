"""Finds published blocks by content: an exact trie of blocks in one open-addressing hash table.

A node stands for one full block of tokens after a given parent node: identity is (parent, tokens, key),
not a hash; the key is the number of what begins in the block besides its tokens (see key_table). The tag,
a keyed hash chained from the first token, only says where to look; a find then compares tag, parent, key
and the stored tokens. The parent was found in the same way, so that a match of
any length is exact by induction and no collision can serve another prompt's K/V.

    slots   [ tag's upper half | node ]   linear probing, backward-shift delete, at most half full
    nodes   { tag, parent, child, next, previous }     vacant ones are chained through parent
    blocks  node -> physical block                     tokens: physical block -> its token ids

A parent outlives its children (the pool evicts tail first), so that a node number is never reused
while a child names it. Probing stops after PROBE_LIMIT slots, or EQUAL_LIMIT of them with the same half tag,
whatever the tags are: what finds no slot is not published.

Where a prompt goes on with no whole block, the newest SIBLINGS children of the last one found are compared with it
token by token, for the longest common head. They are a doubly linked list, the newest first, so that both ends of a
child's life are O(1).
"""

import os

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from pagedcache.core.arguments cimport Int32s, int32s_of, new_int64s
from pagedcache.core.key_table cimport key_at
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK

from pagedcache.core._checks import require

cdef enum:
    PROBE_LIMIT = 128   # slots; looking at neighbours is cheap
    EQUAL_LIMIT = 64    # of these with the upper half of the tag sought, whose nodes and tokens must be compared

cdef uint64_t EMPTY = <uint64_t>-1
cdef uint64_t LOWER = 0xFFFFFFFF


@cython.no_gc_clear    # a table that is collected still uses it
cdef class PrefixIndex:
    """Index of the published blocks of one pool.

    Parameters
    ----------
    num_blocks : int
        Usable blocks of the pool.
    block_size : int
        Tokens per block.
    keys : KeyTable
        What blocks depend on besides tokens.
    num_sides : int, optional
        Layer groups beside the first: of each of them a node may have a block too.
    tag_bits : int, optional
        Bits of the hash that count, 0..64. Less than 64 forces collisions: for tests only.
    """

    def __cinit__(
        self, int32_t num_blocks, int32_t block_size, KeyTable keys not None, *, int32_t num_sides=0, int tag_bits=64
    ):
        cdef int32_t node
        cdef bytes key = os.urandom(16)
        self.keys = keys
        self.block_size = block_size
        self.capacity = num_blocks
        self.num_slots = 2 * <uint64_t>num_blocks + 2
        self.tag_mask = 0 if tag_bits == 0 else EMPTY << (64 - tag_bits)
        self.secret.k0 = int.from_bytes(key[:8], "little")
        self.secret.k1 = int.from_bytes(key[8:], "little")
        self.nodes = <Node *>malloc((<size_t>num_blocks + 1) * sizeof(Node))
        self.blocks = <int32_t *>malloc(num_blocks * sizeof(int32_t))
        self.tokens = <int32_t *>calloc((<size_t>num_blocks + 1) * block_size, sizeof(int32_t))
        self.slots = <uint64_t *>malloc(self.num_slots * sizeof(uint64_t))
        self.num_sides = num_sides
        self.companions = <int32_t *>calloc(<size_t>num_blocks * num_sides + 1, sizeof(int32_t))
        if not (self.nodes and self.blocks and self.tokens and self.slots and self.companions):
            raise MemoryError(f"no memory for a prefix index of {num_blocks} blocks of {block_size} tokens")
        memset(self.slots, 0xFF, self.num_slots * sizeof(uint64_t))
        self.nodes += 1
        self.nodes[NO_NODE].tag = 0
        self.nodes[NO_NODE].child = NO_NODE
        for node in range(num_blocks):
            self.nodes[node].parent = node + 1 if node + 1 < num_blocks else NO_NODE
        self.vacant = 0

    def __dealloc__(self):
        if self.nodes:
            free(self.nodes - 1)
        free(self.blocks)
        free(self.companions)
        free(self.node_keys)
        free(self.tokens)
        free(self.slots)

    def __reduce__(self):
        raise TypeError("a PrefixIndex cannot be pickled or copied: it belongs to one pool")

    @property
    def nbytes(self):
        """Bytes held, without the stored token ids (those are 4 bytes per token of the pool)."""
        per_node = sizeof(Node) + sizeof(int32_t) * (self.num_sides + (1 if self.node_keys == NULL else 2))
        return self.capacity * per_node + sizeof(Node) + self.num_slots * sizeof(uint64_t)

    cdef int c_allow_keys(self) except -1:
        """Make room for the nodes' keys; as long as none exists there is none."""
        if self.node_keys == NULL:
            self.node_keys = <int32_t *>calloc(self.capacity, sizeof(int32_t))
            if not self.node_keys:
                raise MemoryError(f"no memory for the keys of {self.capacity} blocks")
        return 0

    cdef inline int32_t c_key(self, int32_t node) noexcept nogil:
        return 0 if self.node_keys == NULL else self.node_keys[node]

    cdef uint64_t c_tag(self, int32_t parent) noexcept nogil:
        """Tag of a node; 0 before the first block."""
        return self.nodes[parent].tag

    cdef void c_prefetch_slot(self, int32_t node) noexcept nogil:
        prefetch(&self.slots[self.c_home(self.nodes[node].tag >> 32)])

    cdef int32_t c_find(self, int32_t parent, uint64_t tag, const int32_t *tokens, int32_t key) noexcept nogil:
        """The node of these tokens and this key after `parent`, or NO_NODE."""
        cdef uint64_t upper = tag >> 32
        cdef uint64_t i = self.c_home(upper)
        cdef uint64_t slot
        cdef int32_t node, equal = 0, _probe
        for _probe in range(PROBE_LIMIT):
            slot = self.slots[i]
            if slot == EMPTY or equal == EQUAL_LIMIT:
                return NO_NODE
            if slot >> 32 == upper:
                equal += 1
                node = <int32_t>(slot & LOWER)
                if (self.nodes[node].tag == tag and self.nodes[node].parent == parent and self.c_key(node) == key
                        and self.c_same_tokens(self.blocks[node], tokens)):
                    return node
            i = i + 1 if i + 1 < self.num_slots else 0
        return NO_NODE

    cdef inline bint c_same_tokens(self, int32_t block, const int32_t *tokens) noexcept nogil:
        cdef size_t start = <size_t>block * self.block_size
        return memcmp(self.tokens + start, tokens, self.block_size * sizeof(int32_t)) == 0

    cdef Head c_find_head(self, int32_t parent, const int32_t *tokens, int32_t most, int32_t key) noexcept nogil:
        """The block after `parent` with the longest beginning of `tokens`, at most `most` of them.

        Whatever begins in the block is the same too: its key is. The newest of equals is taken, and of many children
        the newest are looked at.
        """
        cdef Head best
        cdef const int32_t *stored
        cdef int32_t node = self.nodes[parent].child, same, _sibling
        best.tokens, best.block = 0, ZERO_BLOCK
        for _sibling in range(SIBLINGS):
            if node == NO_NODE or best.tokens == most:
                break
            if self.c_key(node) == key:
                stored = self.tokens + <size_t>self.blocks[node] * self.block_size
                same = 0
                while same < most and stored[same] == tokens[same]:
                    same += 1
                if same > best.tokens:
                    best.tokens, best.block = same, self.blocks[node]
            node = self.nodes[node].next
        return best

    cdef inline void c_link(self, int32_t node) noexcept nogil:
        """Make the node the newest child of its parent."""
        cdef Node *parent = &self.nodes[self.nodes[node].parent]
        self.nodes[node].next = parent.child
        self.nodes[node].previous = NO_NODE
        if parent.child != NO_NODE:
            self.nodes[parent.child].previous = node
        parent.child = node

    cdef inline void c_unlink(self, int32_t node) noexcept nogil:
        cdef Node *entry = &self.nodes[node]
        if entry.previous == NO_NODE:
            self.nodes[entry.parent].child = entry.next
        else:
            self.nodes[entry.previous].next = entry.next
        if entry.next != NO_NODE:
            self.nodes[entry.next].previous = entry.previous

    cdef int32_t c_insert(self, int32_t parent, uint64_t tag, int32_t block, int32_t key) noexcept nogil:
        """Publish `block`, which holds its tokens already; NO_NODE beyond the limits of probing.

        The caller has looked: c_find said NO_NODE.
        """
        cdef uint64_t upper = tag >> 32
        cdef uint64_t i = self.c_home(upper)
        cdef int32_t node, equal = 0, _probe
        for _probe in range(PROBE_LIMIT):
            if self.slots[i] == EMPTY:
                break
            equal += self.slots[i] >> 32 == upper
            if equal == EQUAL_LIMIT:
                return NO_NODE
            i = i + 1 if i + 1 < self.num_slots else 0
        else:
            return NO_NODE
        node = self.vacant
        self.vacant = self.nodes[node].parent
        self.nodes[node].tag = tag
        self.nodes[node].parent = parent
        self.nodes[node].child = NO_NODE
        self.c_link(node)
        self.blocks[node] = block
        if self.num_sides > 0:
            memset(self.companions + <size_t>node * self.num_sides, 0, self.num_sides * sizeof(int32_t))
        self.slots[i] = upper << 32 | <uint64_t>node
        if self.node_keys != NULL:
            self.node_keys[node] = key
            self.keys.c_hold(key)
        self.num_nodes += 1
        if self.log is not None:
            self.log.c_stored(node, parent, block, key, self.tokens + <size_t>block * self.block_size)
        return node

    cdef void c_remove(self, int32_t node) noexcept nogil:
        """Forget a childless node; closes the gap in its probe run by shifting later entries back."""
        cdef uint64_t upper = self.nodes[node].tag >> 32
        cdef uint64_t entry = upper << 32 | <uint64_t>node
        cdef uint64_t gap = self.c_home(upper)
        cdef uint64_t i, home
        while self.slots[gap] != entry:
            gap = gap + 1 if gap + 1 < self.num_slots else 0
        i = gap
        while True:
            i = i + 1 if i + 1 < self.num_slots else 0
            if self.slots[i] == EMPTY:
                break
            home = self.c_home(self.slots[i] >> 32)
            # An entry may fill the gap unless its home lies cyclically in (gap, i].
            if (gap < home <= i) if gap <= i else (home > gap or home <= i):
                continue
            self.slots[gap] = self.slots[i]
            gap = i
        self.slots[gap] = EMPTY
        self.c_unlink(node)
        if self.node_keys != NULL:
            self.keys.c_drop(self.node_keys[node])
        if self.log is not None:
            self.log.c_removed(node, self.blocks[node])
        self.nodes[node].parent = self.vacant
        self.vacant = node
        self.num_nodes -= 1

    cdef void c_leave(self, int32_t node, int32_t block) noexcept nogil:
        """The block is no longer the node's of its side group."""
        cdef int32_t side
        for side in range(self.num_sides):
            if self.c_companion(node, side) == block:
                self.c_set_companion(node, side, ZERO_BLOCK)

    cdef bint c_has(self, int32_t node, int32_t block) noexcept nogil:
        """Whether the block is the node's, in some group."""
        cdef int32_t side
        for side in range(self.num_sides):
            if self.c_companion(node, side) == block:
                return True
        return self.blocks[node] == block

    cdef void c_move(self, int32_t node, int32_t block) noexcept nogil:
        """The node's content stands in `block` from here on."""
        if self.log is not None:
            self.log.c_moved(node, block)       # not removed: who follows content would drop what continues it
        self.blocks[node] = block

    cdef int32_t c_match(
        self, const int32_t *tokens, int32_t max_blocks, const RowKeys *keys, int32_t *blocks, int32_t *last
    ) noexcept nogil:
        """Longest published prefix: its number of blocks, their ids, and its last node."""
        cdef uint64_t tags[LOOKAHEAD]
        cdef uint64_t tag = 0
        cdef int32_t matched = 0, ahead = 0, node = NO_NODE, found, tagged = 0, sought = 0
        while matched < max_blocks:
            while ahead < max_blocks and ahead < matched + LOOKAHEAD:
                tag = self.c_next_tag(tag, tokens + <size_t>ahead * self.block_size, key_at(keys, &tagged, ahead))
                tags[ahead % LOOKAHEAD] = tag
                ahead += 1
            found = self.c_find(
                node, tags[matched % LOOKAHEAD], tokens + <size_t>matched * self.block_size,
                key_at(keys, &sought, matched)
            )
            if found == NO_NODE:
                break
            node = found
            blocks[matched] = self.blocks[node]
            matched += 1
        last[0] = node
        return matched

    cdef int32_t c_count_children(self, int32_t node) noexcept nogil:
        """Nodes whose parent this is, or one more than there are nodes, where links go round; for audits."""
        cdef int32_t children = 0
        node = self.nodes[node].child
        while node != NO_NODE and children <= self.num_nodes:
            children += 1
            node = self.nodes[node].next
        return children

    def tags(self, tokens):
        """uint64 [n]: the tags of the full blocks of an int32 array, without keys; for tests and measurements."""
        cdef Int32s view = int32s_of(tokens, "tokens")
        cdef Py_ssize_t j, blocks = view.n // self.block_size
        cdef int64_t *out
        cdef uint64_t tag = 0, mask = self.tag_mask
        cdef pc_secret secret = self.secret
        cdef int32_t size = self.block_size
        chained = new_int64s(blocks, &out)
        for j in range(blocks):
            tag = pc_block_tag(secret, tag, view.data + j * size, size) & mask
            out[j] = <int64_t>tag
        return chained.view("uint64")

    cpdef check(self):
        """Audit every invariant in O(slots); raises AssertionError naming the first that is broken."""
        cdef uint64_t i, tag
        cdef int32_t node, parent, previous, vacant = 0
        cdef const int32_t *tokens
        cdef dict children = {NO_NODE: 0}
        cdef set live = set()
        for i in range(self.num_slots):
            if self.slots[i] == EMPTY:
                continue
            node = <int32_t>(self.slots[i] & LOWER)
            require(0 <= node < self.capacity and node not in live, f"slot {i} names node {node} twice or wrongly")
            live.add(node)
            parent = self.nodes[node].parent
            children[parent] = children.get(parent, 0) + 1
        require(len(live) == self.num_nodes, f"{len(live)} nodes in slots, {self.num_nodes} counted")
        for node in live:
            parent = self.nodes[node].parent
            require(parent == NO_NODE or parent in live, f"parent {parent} of node {node} is gone")
            previous = self.nodes[node].previous
            require(
                self.nodes[parent].child == node if previous == NO_NODE
                else previous in live and self.nodes[previous].next == node,
                f"node {node} is not among the children of node {parent}"
            )
            tokens = self.tokens + <size_t>self.blocks[node] * self.block_size
            tag = self.c_next_tag(self.c_tag(parent), tokens, self.c_key(node))
            require(tag == self.nodes[node].tag, f"tokens of published block {self.blocks[node]} have changed")
            require(self.c_find(parent, tag, tokens, self.c_key(node)) == node, f"node {node} is not found")
        for node in (*live, NO_NODE):
            require(self.c_count_children(node) == children.get(node, 0), f"children of node {node} miscounted")
        node = self.vacant
        while node != NO_NODE:
            require(node not in live and vacant < self.capacity, f"node {node} is both live and vacant")
            node = self.nodes[node].parent
            vacant += 1
        require(vacant + self.num_nodes == self.capacity, f"{vacant} vacant + {self.num_nodes} live nodes")
