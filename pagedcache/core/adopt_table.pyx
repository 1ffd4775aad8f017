"""Blocks of the prefix cache whose bytes go to another tier, or come from there, with no sequence in between.

On the way out a published block is held, so that it stays as it is until it was read. On the way in blocks are a
caller's, out of ``pool.allocate``, until their bytes are there; then the index adopts them. A block that is held or
published has all blocks before it with it: eviction takes a node only where none continues it.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pagedcache.core.arguments cimport Int32s, int32s_of, new_int32s, token_lists
from pagedcache.core.cache_table cimport CacheTable
from pagedcache.core.key_table cimport RowKeys, RowKeysHolder, key_at
from pagedcache.core.prompt_table cimport key_starts
from pagedcache.core.records cimport NO_NODE, ZERO_BLOCK

import numpy as np

from pagedcache.core.arguments import bounded_int
from pagedcache.errors import InvalidBlock


@cython.no_gc_clear
cdef class AdoptTable(CacheTable):
    """The verbs for whoever moves cached blocks; see SequenceTable."""

    def __cinit__(self, pool, block_size, **_):
        self.holds = {}

    def __dealloc__(self):
        if self.last_hold > 0:      # not where the table was refused: then there is not even a dict
            with cython.critical_section(self.pool):
                for found, n in self.holds.values():
                    self.pool.c_drop((<Int32s>int32s_of(found, "blocks")).data, n)

    def hold(self, blocks):
        """Keep published blocks as they are until `let_go`, with those before them in their prompts.

        Parameters
        ----------
        blocks : int32 [n]

        Returns
        -------
        int
            What to hand to `let_go`.

        Raises
        ------
        InvalidBlock
            One of them is not published; nothing was changed.
        """
        cdef Int32s ids = int32s_of(blocks, "blocks")
        cdef Py_ssize_t i
        cdef int32_t n = 0, k
        cdef int32_t *held
        cdef uint8_t *seen
        found = new_int32s(self.pool.num_blocks, &held)
        marks = np.zeros(self.pool.num_blocks + 1, np.uint8)
        cdef uint8_t[::1] view = marks
        seen = &view[0]
        with cython.critical_section(self.pool):
            for i in range(ids.n):
                if not 1 <= ids.data[i] <= self.pool.num_blocks or self.pool.records[ids.data[i]].node == NO_NODE:
                    raise self.c_not_published(ids.data[i])
            for i in range(ids.n):
                n = self.c_list_path(ids.data[i], seen, held, n)
            for k in range(n):
                self.pool.c_incref(held[k])
            self.pool.c_note_peak()
            self.last_hold += 1
            self.holds[self.last_hold] = (found, n)
            return self.last_hold

    def let_go(self, hold):
        """End a `hold`; the number of blocks that became usable. InvalidBlock where it has ended already."""
        cdef Int32s blocks
        with cython.critical_section(self.pool):
            if hold not in self.holds:
                raise InvalidBlock(f"hold {hold!r} has ended, or never was")
            found, n = self.holds.pop(hold)
            blocks = int32s_of(found, "blocks")
            return self.pool.c_drop(blocks.data, n)

    cdef dict c_references(self):
        """Also what is held."""
        cdef dict references = CacheTable.c_references(self)
        for found, n in self.holds.values():
            for block in found[:n].tolist():
                references[block] = references.get(block, 0) + 1
        return references

    cdef int32_t c_list_path(self, int32_t block, uint8_t *seen, int32_t *blocks, int32_t n) noexcept nogil:
        """Append a block and those before it, as far as they were not seen, the first one first; how many are listed."""
        cdef int32_t node = self.pool.records[block].node, end, begin = n, swapped
        if self.index.blocks[node] == block:
            node = self.index.nodes[node].parent
        if not seen[block]:
            blocks[n] = block
            n += 1
            seen[block] = True
        while node != NO_NODE and not seen[self.index.blocks[node]]:
            blocks[n] = self.index.blocks[node]
            seen[blocks[n]] = True
            n += 1
            node = self.index.nodes[node].parent
        end = n - 1
        while begin < end:
            swapped = blocks[begin]
            blocks[begin] = blocks[end]
            blocks[end] = swapped
            begin += 1
            end -= 1
        return n

    cdef object c_not_published(self, int32_t block):
        if not 1 <= block <= self.pool.num_blocks:
            return InvalidBlock(f"block {block} is out of range; ids are 1..{self.pool.num_blocks}")
        return InvalidBlock(f"block {block} is not published: it was evicted, or never was")

    def adopt(self, prompt, blocks, *, first=0, namespace=None, keys=None, priority=0):
        """Publish blocks that came from elsewhere: they hold K/V of these blocks of a prompt.

        The caller's references are given back: what is published is cached from here on, the other blocks are free.

        Parameters
        ----------
        prompt : int array-like
            Token ids, at least up to the end of the last of the blocks.
        blocks : int32 [n] or [n, groups]
            From ``pool.allocate``, shared with nobody, the bytes written. Where there are several layer groups, 0
            stands for a block that a side group does not have; those of group 0 are needed.
        first : int
            Which full block of the prompt the first one is. Those before it have to be published.
        namespace, keys
            As in `admit`, for this prompt alone.
        priority : int
            As in `admit`.

        Returns
        -------
        int
            Blocks of group 0 that can be found from here on. Fewer than n where some were published already by
            others, or where blocks before `first` no longer are.

        Raises
        ------
        InvalidBlock
            A block is not the caller's alone, or published; nothing was changed.
        """
        cdef list prompts = token_lists([prompt], "prompts"), holders
        cdef Int32s tokens = prompts[0], ids
        cdef list starts = key_starts(namespace, None if keys is None else [keys], self.block_size, prompts)
        cdef int32_t begin = bounded_int(first, "first", 0, tokens.n // self.block_size), n, published
        cdef int level = bounded_int(priority, "priority", 0, self.pool.policy.num_levels - 1)
        cdef int32_t *scratch
        shape = getattr(blocks, "shape", (len(blocks),))
        if self.num_sides == 0 and len(shape) != 1 or self.num_sides > 0 and shape[1:] != (self.num_sides + 1,):
            raise ValueError(f"blocks has shape {list(shape)}; [n] is wanted, or [n, groups] where groups are several")
        ids = int32s_of(blocks if len(shape) == 1 else blocks.reshape(-1), "blocks")
        n = <int32_t>(ids.n // (self.num_sides + 1))
        if begin + n > tokens.n // self.block_size:
            raise ValueError(
                f"blocks {begin} to {begin + n - 1} of a prompt of {tokens.n} tokens; it has "
                f"{tokens.n // self.block_size} full ones"
            )
        room = new_int32s(begin, &scratch)
        with cython.critical_section(self.pool):
            self.c_require_adoptable(ids)
            holders = self.c_holders(starts, namespace)
            published = self.c_adopt_behind(
                tokens.data, NULL if holders is None else (<RowKeysHolder>holders[0]).keys, begin, scratch, ids.data,
                n, level
            )
            holders = None      # they count users, which needs the section
        del room
        return published

    cdef int c_require_adoptable(self, Int32s blocks) except -1:
        cdef Py_ssize_t i
        cdef int32_t block
        cdef set seen = set()
        for i in range(blocks.n):
            block = blocks.data[i]
            if block == ZERO_BLOCK and i % (self.num_sides + 1) > 0:
                continue
            if not 1 <= block <= self.pool.num_blocks:
                raise InvalidBlock(f"block {block} is out of range; ids are 1..{self.pool.num_blocks}")
            if self.pool.callers[block] != 1 or self.pool.records[block].refcount != 1 or block in seen:
                raise InvalidBlock(
                    f"block {block} is not held once, by its caller alone: take blocks with pool.allocate, each once"
                )
            if self.pool.records[block].node != NO_NODE:
                raise InvalidBlock(f"block {block} is published already")
            seen.add(block)
        return 0

    cdef int32_t c_adopt_behind(
        self, const int32_t *tokens, const RowKeys *keys, int32_t first, int32_t *scratch, const int32_t *blocks,
        int32_t n, int level
    ) noexcept nogil:
        """Publish `n` blocks behind the first `first` ones, if those are published; how many are new.

        The caller's references go in any case.
        """
        cdef uint64_t tag
        cdef int32_t j, key, node, found, cursor = 0, side, published = 0, matched
        cdef size_t size = self.block_size
        cdef const int32_t *block = blocks
        matched = self.index.c_match(tokens, first, keys, scratch, &node)
        for j in range(matched):
            self.pool.c_incref(scratch[j])      # a block waits for a fence together with those before it
        tag = self.index.c_tag(node)
        for j in range(first, first + n if matched == first else first):
            key = key_at(keys, &cursor, j)
            tag = self.index.c_next_tag(tag, tokens + j * size, key)
            found = self.index.c_find(node, tag, tokens + j * size, key)
            if found == NO_NODE:
                memcpy(self.index.tokens + block[0] * size, tokens + j * size, size * sizeof(int32_t))
                found = self.index.c_insert(node, tag, block[0], key)
                if found == NO_NODE:        # no slot within the probe limit: later blocks would dangle
                    break
                self.c_entitle(block[0], found, level)
                published += 1
            node = found
            for side in range(self.num_sides):
                if block[side + 1] != ZERO_BLOCK and self.index.c_companion(node, side) == ZERO_BLOCK:
                    self.index.c_set_companion(node, side, block[side + 1])
                    self.c_entitle(block[side + 1], node, level)
            block += self.num_sides + 1
        self.pool.policy.c_tick()
        for j in range(n * (self.num_sides + 1) - 1, -1, -1):
            if blocks[j] != ZERO_BLOCK:
                self.pool.callers[blocks[j]] = 0
                self.pool.c_decref(blocks[j])
        for j in range(matched - 1, -1, -1):
            self.pool.c_decref(scratch[j])
        return published

    cdef void c_entitle(self, int32_t block, int32_t node, int level) noexcept nogil:
        """The block, which its caller holds, is the node's."""
        self.pool.records[block].node = node
        if self.pool.policy.hears_uses:
            self.pool.policy.c_publish(block, level)
