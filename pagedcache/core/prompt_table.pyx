"""Prompts coming in: admit takes rows and blocks for them, match only looks."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from pagedcache.core.arguments cimport (
    Int32s, new_int8s, new_int32s, new_int64s, own_counts, token_lists
)
from pagedcache.core.hit_table cimport Hit, HitTable, Prompt
from pagedcache.core.key_table cimport RowKeys, RowKeysHolder

from pagedcache.core.arguments import bounded_int
from pagedcache.core.results import Admission
from pagedcache.keys import Namespace, block_keys

cdef enum:
    ADMITTED = 0    # as in AdmitStatus
    NOT_NOW = 1
    NEVER_FITS = 2


cdef inline int32_t entry_of(Int32s values, Py_ssize_t i) noexcept:
    """Entry i of what own_counts gave, which may be one for all; 0 where there is nothing."""
    if values is None:
        return 0
    return values.data[i if i < values.n else 0]


cdef list key_starts(namespace, keys, int32_t block_size, list prompts):
    """For each prompt what begins in which of its blocks; None where no prompt has a namespace or key."""
    if namespace is None and keys is None:
        return None
    border = Namespace.of(namespace)
    if border.secret is not None and not border.name:
        raise ValueError("the namespace has a secret and no name: the default namespace is everybody's; name it")
    if keys is None and not border.name:
        return None
    if keys is None:
        keys = [None] * len(prompts)
    if len(keys) != len(prompts):
        raise ValueError(f"keys has {len(keys)} entries for {len(prompts)} prompts; a list of Key or None for each")
    return [block_keys(border, of_prompt, block_size, (<Int32s>prompt).n) for of_prompt, prompt in zip(keys, prompts)]


@cython.no_gc_clear
cdef class PromptTable(HitTable):
    """The verbs that take prompts; see SequenceTable."""

    def admit(self, prompts, *, namespace=None, keys=None, reserve=0, pads=None, priority=0):
        """Match, pin and allot, prompt by prompt.

        Each prompt gets a handle and blocks for its pads, its tokens and `reserve` more, sharing the
        published blocks of its longest known prefix; or nothing. Where no block goes on with the prompt, one that
        begins as it does is shared as well: a *partial hit*. It is copied at the first write, into a block that admit
        has taken for it, and given back when that step closes. At least one token is left to compute.

        Parameters
        ----------
        prompts : sequence of int array-like
            Token ids, 0 <= id < 2**31; an empty prompt is legal.
        namespace : Namespace, bytes, str or None
            The border that no hit crosses; the same for all prompts of the call.
        keys : sequence of (list of Key, or None), optional
            For each prompt what its content depends on besides tokens; see `pagedcache.keys`.
        reserve : int or int32 [n]
            Positions to allot beyond each prompt.
        pads : int32 [n], optional
            Leading positions that are never visible; a padded row neither matches nor publishes.
        priority : int
            For an eviction policy with priorities: of the blocks that the sequences use and publish.

        Returns
        -------
        Admission
            NEVER_FITS does not stop the call; everything after the first NOT_NOW is NOT_NOW.
        """
        cdef list given = token_lists(prompts, "prompts"), holders
        cdef list starts = key_starts(namespace, keys, self.block_size, given)
        cdef Py_ssize_t i, n = len(given)
        cdef Int32s extras = None if type(reserve) is int and reserve == 0 else own_counts(reserve, n, "reserve")
        cdef Int32s all_pads = None if pads is None else own_counts(pads, n, "pads")
        cdef int32_t row, waiting = False, widest = 0, outcome
        cdef int64_t total
        cdef Prompt prompt
        cdef int64_t *ids
        cdef int32_t *cached
        cdef signed char *status
        prompt.level = bounded_int(priority, "priority", 0, self.pool.policy.num_levels - 1)
        admission = Admission(new_int64s(n, &ids), new_int32s(n, &cached), new_int8s(n, &status))
        with cython.critical_section(self.pool):
            for i in range(n):
                ids[i] = -1
                cached[i] = 0
                status[i] = ADMITTED
                total = (<Int32s>given[i]).n + <int64_t>entry_of(extras, i) + entry_of(all_pads, i)
                if (total <= self.max_length
                        and self.c_blocks_of_row(self.c_blocks_for(<int32_t>total), entry_of(all_pads, i))
                        <= self.pool.num_blocks):
                    widest = max(widest, self.c_blocks_for(<int32_t>total))
                else:
                    status[i] = NEVER_FITS
            self.c_widen(widest + 1)    # one for the copy of a partial hit
            holders = self.c_holders(starts, namespace)     # after what can raise: they must go within the section
            for i in range(n):
                if waiting:
                    status[i] = NOT_NOW
                    continue
                if status[i] == NEVER_FITS:
                    continue
                prompt.tokens = (<Int32s>given[i]).data
                prompt.length = (<Int32s>given[i]).n
                prompt.pad = entry_of(all_pads, i)
                prompt.reserve = entry_of(extras, i)
                prompt.keys = NULL if holders is None else (<RowKeysHolder>holders[i]).keys
                row = self.c_admit(&prompt, &outcome)
                status[i] = <signed char>outcome
                if outcome == NOT_NOW:
                    waiting = True
                    continue
                ids[i] = self.c_handle(row)
                cached[i] = self.rows[row].position - <int32_t>prompt.pad
            self.pool.c_note_peak()
            holders = None      # they count users, which needs the section
        return admission

    cdef list c_holders(self, list starts, namespace):
        """The numbered keys of each prompt; None where there are none. Makes objects: before rows are named."""
        if starts is None:
            return None
        border = Namespace.of(namespace)
        self.index.c_allow_keys()
        return [RowKeysHolder(self.keys, of_prompt, border.name, border.secret) for of_prompt in starts]

    cdef int32_t c_admit(self, const Prompt *prompt, int32_t *status) noexcept nogil:
        """One prompt into a row; status ADMITTED or, with nothing changed, NOT_NOW."""
        cdef int32_t total = self.c_blocks_for(<int32_t>(prompt.pad + prompt.length + prompt.reserve))
        cdef int32_t row, side
        cdef Hit hit
        status[0] = NOT_NOW
        if self.num_vacant == 0:
            return -1
        # The row is still vacant, its table may serve as scratch.
        hit = self.c_hit(prompt, total, self.c_table(self.vacant[self.num_vacant - 1]))
        if hit.wanted > self.pool.c_usable() - hit.idle:
            return -1
        row = self.c_open_row()
        self.rows[row].level = <uint8_t>prompt.level
        self.c_pin(row, &hit)               # before anything is evicted for the rest
        self.pool.c_make_vacant(<int32_t>hit.wanted)
        self.rows[row].num_blocks = hit.blocks
        self.rows[row].num_published = hit.blocks
        self.rows[row].node = hit.node
        self.rows[row].pad = <int32_t>prompt.pad
        self.rows[row].publishes = prompt.pad == 0
        self.rows[row].keys = self.keys.c_share(<RowKeys *>prompt.keys)
        self.c_place(row, <int32_t>prompt.pad + hit.blocks * self.block_size + hit.head.tokens)
        self.c_append_blocks(row, total)
        for side in range(self.num_sides):
            self.c_append_side(side, row, self.c_side_target(side, total, hit.blocks, <int32_t>prompt.pad))
        self.c_append_states(row, total)
        if self.pool.policy.hears_uses:
            self.c_tell_uses(row, hit.blocks)
        if hit.head.tokens > 0:
            self.c_share_head(row, &hit)
        self.query_tokens += prompt.length
        self.hit_tokens += self.rows[row].position - prompt.pad
        status[0] = ADMITTED
        return row

    def match(self, prompts, *, namespace=None, keys=None, by_group=False):
        """What admit would call cached for each prompt alone, called now; changes nothing.

        Parameters
        ----------
        prompts, namespace, keys
            As in `admit`.
        by_group : bool
            Tell for each layer group how much it alone would allow of what group 0 has: why a hit is short. In whole
            blocks; 0 for state groups, which keep no state but the newest.

        Returns
        -------
        int32 [n], or [n, groups]
            Leading tokens of each prompt whose K/V is there; 0 for a prompt that never fits.

        Notes
        -----
        A partial hit holds a block more. Where the pool is short of just that one, whole blocks are found; with a
        `reserve` that comes sooner. `by_group` tells of whole blocks only.
        """
        cdef list given = token_lists(prompts, "prompts"), holders
        cdef list starts = key_starts(namespace, keys, self.block_size, given)
        cdef Py_ssize_t i
        cdef Int32s tokens
        cdef bint each = by_group
        cdef int32_t last, hits, total, side, groups = 1
        cdef Prompt prompt
        cdef Hit hit
        cdef int32_t *blocks
        cdef int32_t *cached
        if each:
            groups += self.num_sides + <int32_t>len(self.state_groups)
        prompt.pad = prompt.reserve = prompt.level = 0
        scratch = new_int32s(self.pool.num_blocks, &blocks)
        lengths = new_int32s(len(given) * groups, &cached)
        with cython.critical_section(self.pool):
            holders = self.c_holders(starts, namespace)
            for i in range(len(given)):
                tokens = given[i]
                prompt.tokens = tokens.data
                prompt.length = tokens.n
                prompt.keys = NULL if holders is None else (<RowKeysHolder>holders[i]).keys
                if tokens.n > self.max_length:
                    prompt.length = 0
                total = self.c_blocks_for(<int32_t>prompt.length)
                if self.c_blocks_of_row(total, 0) > self.pool.num_blocks:
                    prompt.length = 0
                if each:
                    hits = 0
                    if prompt.length > 1:
                        hits = self.index.c_match(
                            prompt.tokens, <int32_t>((prompt.length - 1) // self.block_size), prompt.keys, blocks, &last
                        )
                    cached[i * groups] = hits * self.block_size
                    for side in range(self.num_sides):
                        cached[i * groups + side + 1] = self.c_side_hits(side, blocks, hits) * self.block_size
                    for side in range(self.num_sides + 1, groups):
                        cached[i * groups + side] = 0
                else:
                    hit = self.c_hit(&prompt, total, blocks)
                    cached[i] = hit.blocks * self.block_size + hit.head.tokens
            holders = None
        del scratch
        return lengths.reshape(-1, groups) if each else lengths
