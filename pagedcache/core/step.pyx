"""Step: the index arrays of one engine iteration, as kernels read them.

It is the light object that a caller holds: it opens the view on buffers that a table fills, and closing it
shuts the view, since a later step reuses the memory.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from pagedcache.core.accepted_tokens cimport check_accepted
from pagedcache.core.arguments cimport new_int32s
from pagedcache.core.step_buffers cimport GroupBuffers, StepBuffers

import numpy as np

from pagedcache.core._convert import ragged_tokens
from pagedcache.core._step_arrays import checked_step_arrays
from pagedcache.core.results import StateBlocks
from pagedcache.errors import StepClosed

cdef enum:              # how long a view of an array is
    SEQUENCES
    BOUNDS              # one more than sequences
    TOKENS
    COPIES, NEW


cdef class Step:
    """The arrays of one iteration over a ragged batch: what each kernel reads.

    Made by ``extend``, or by `Step.from_arrays` for attention over tables kept elsewhere. Arrays are
    read-only views of reused memory: valid until the step is committed or abandoned, then every
    attribute raises StepClosed. Copy what must outlive the step.

    Query i of sequence s stands at row coordinate ``kv_lens[s] - q_len + i`` with
    ``q_len = qo_indptr[s + 1] - qo_indptr[s]``: causal order is aligned at the bottom right.
    """

    def __init__(self):
        raise TypeError("a Step is made by extend() or by Step.from_arrays()")

    def __reduce__(self):
        raise TypeError("a Step cannot be pickled or copied: it is a view of its table's buffers")

    def __repr__(self):
        if self.buffers is None:
            return "Step(closed)"
        return f"Step(num_sequences={self.num_sequences}, num_tokens={self.num_tokens})"

    @classmethod
    def from_arrays(
        cls, block_tables, kv_lens, qo_indptr, *, block_size, positions=None, slots=None, kv_starts=None, kv_pads=None,
        shared_prefixes=None
    ):
        """A Step over tables that no SequenceTable keeps.

        Parameters
        ----------
        block_tables : int32 [n, width]
            Physical block of each logical block; beyond the last position anything may stand.
        kv_lens : int32 [n]
            Positions of each sequence, the new tokens included.
        qo_indptr : int32 [n + 1]
            Queries of sequence s are ``qo_indptr[s]`` to ``qo_indptr[s + 1]``.
        block_size : int
            Tokens per block, 1..1024.
        positions : int64 [tokens], optional
            Default: row coordinate less pad.
        slots : int64 [tokens], optional
            Where K/V of each new token is written. Default: from the tables; -1 where a query has no
            row coordinate (more queries than positions).
        kv_starts, kv_pads : int32 [n], optional
            First held position, and left padding. Default: the pads, and 0.
        shared_prefixes : int32 [g, 3], optional
            First sequence, how many adjacent ones, and the leading blocks they share, for a cascade.

        Raises
        ------
        ValueError
            Shapes that don't fit together, or a length beyond its table row.

        Examples
        --------
        >>> step = Step.from_arrays([[3, 1]], [5], [0, 1], block_size=4)
        >>> step.slots, step.kv_last_page_len
        (array([4]), array([1], dtype=int32))
        """
        cdef dict given = checked_step_arrays(
            block_tables, kv_lens, qo_indptr, block_size, positions, slots, kv_starts, kv_pads, shared_prefixes
        )
        cdef Step step = Step.__new__(Step)
        cdef StepBuffers buffers = StepBuffers(len(given["kv_lens"]))
        cdef GroupBuffers group = buffers.group
        buffers.c.num_sequences = len(given["kv_lens"])
        buffers.c.num_tokens = len(given["slots"])
        buffers.c_fit(0, buffers.c.num_tokens, 0, 0)
        group.c_set_width(given["block_tables"].shape[1])   # shown as wide as it was given
        for name, values in given.items():
            arrays = group.arrays if name in group.arrays else buffers.arrays
            arrays[name].flags.writeable = True
            arrays[name][:len(values)] = values
            arrays[name].flags.writeable = False
        if shared_prefixes is not None:
            buffers.c.num_shared = len(given["shared_prefixes"])
        step.block_size = block_size
        step.buffers = buffers
        step.group = group
        return step

    cdef inline StepBuffers c_open(self):
        if self.buffers is None:
            raise StepClosed("this step was committed or abandoned; its arrays belong to the next one")
        return self.buffers

    cdef int c_shut(self) except -1:
        """Close the step and its views."""
        cdef Step view
        self.buffers = None
        for view in self.views or ():
            view.buffers = None
        return 0

    @property
    def closed(self):
        """Whether the step was committed or abandoned."""
        return self.buffers is None

    cdef object c_shared(self, str name, int32_t which):
        """View of an array that all groups share; no other thread closes the step meanwhile."""
        cdef StepBuffers buffers
        with cython.critical_section(self):
            buffers = self.c_open()
            if which == TOKENS:
                return buffers.c_view(name, buffers.c.num_tokens)
            return buffers.c_view(name, buffers.c.num_sequences + (which == BOUNDS))

    cdef object c_grouped(self, str name, int32_t which):
        """View of an array of the group."""
        cdef StepBuffers buffers
        cdef int32_t n
        with cython.critical_section(self):
            buffers = self.c_open()
            n = (buffers.c.num_tokens if which == TOKENS else buffers.c.num_sequences if which == SEQUENCES
                 else self.group.c.num_copies if which == COPIES else self.group.c.num_new)
            return self.group.c_view(name, n)

    @property
    def num_sequences(self):
        """Sequences of the step."""
        return self.c_open().c.num_sequences

    @property
    def num_tokens(self):
        """New tokens of all sequences together."""
        return self.c_open().c.num_tokens

    @property
    def ids(self):
        """int64 [n]: handles, in the order given to extend; 0 for a step from arrays."""
        return self.c_shared("ids", SEQUENCES)

    @property
    def qo_indptr(self):
        """int32 [n + 1]: new tokens of sequence s are qo_indptr[s] to qo_indptr[s + 1]."""
        return self.c_shared("qo_indptr", BOUNDS)

    @property
    def positions(self):
        """int64 [tokens]: position of each new token, pads not counted."""
        return self.c_shared("positions", TOKENS)

    @property
    def token_seq(self):
        """int32 [tokens]: index in the step of the sequence that each new token belongs to."""
        return self.c_shared("token_seq", TOKENS)

    @property
    def kv_lens(self):
        """int32 [n]: row coordinate where each sequence ends after the step."""
        return self.c_shared("kv_lens", SEQUENCES)

    @property
    def kv_pads(self):
        """int32 [n]: leading positions that are never visible."""
        return self.c_shared("kv_pads", SEQUENCES)

    @property
    def memo(self):
        """dict: what a backend has worked out from these arrays, kept for the layers to come."""
        cdef dict kept
        with cython.critical_section(self):
            self.c_open()
            if self.worked_out is None:
                kept = {}
                if self.worked_out is None:     # making a dict may have run a finalizer that asked too
                    self.worked_out = kept
            return self.worked_out

    @property
    def groups(self):
        """Steps that show the arrays of each layer group: this one is that of group 0.

        The others are for reading: only this one is committed or abandoned, and closes them.
        """
        with cython.critical_section(self):
            self.c_open()
            if self.group.sibling is None:
                return (self,)
            if self.views is None:
                views = self.c_views()
                self.c_open()       # making them may have run a finalizer that closed the step
                self.views = views
            return (self, *self.views)

    cdef tuple c_views(self):
        cdef GroupBuffers group = self.group.sibling
        cdef list views = []
        while group is not None:
            view = <Step>Step.__new__(Step)
            view.block_size, view.buffers, view.group = self.block_size, self.buffers, group
            views.append(view)
            group = group.sibling
        return tuple(views)

    @property
    def states(self):
        """tuple of `StateBlocks`, one for each state group: where the states of the sequences are read and written."""
        cdef StepBuffers buffers
        cdef list states = []
        with cython.critical_section(self):
            buffers = self.c_open()
            first = 0
            for blocks in buffers.state_blocks:
                before = buffers.c_view("state_in", buffers.c.num_sequences)
                after = buffers.c_view("state_out", buffers.c.num_sequences)
                states.append(StateBlocks(before[:, first:first + blocks], after[:, first:first + blocks]))
                first += blocks
            self.c_open()       # an allocation may have run a finalizer that closed the step
            return tuple(states)

    @property
    def block_tables(self):
        """int32 [n, width]: physical block of each logical block; -1 beyond the live prefix."""
        return self.c_grouped("block_tables", SEQUENCES)

    @property
    def slots(self):
        """int64 [tokens]: pool slot of each new token, ``block * block_size + offset``."""
        return self.c_grouped("slots", TOKENS)

    @property
    def kv_starts(self):
        """int32 [n]: first held position after the sinks; the pad where nothing was released."""
        return self.c_grouped("kv_starts", SEQUENCES)

    @property
    def copies(self):
        """int32 [m, 2]: blocks to copy, source to destination, before any K/V of the step is written."""
        return self.c_grouped("copies", COPIES)

    @property
    def new_blocks(self):
        """int32 [k]: blocks that this extend took from the pool, destinations of copies not counted."""
        return self.c_grouped("new_blocks", NEW)

    @property
    def diff(self):
        """int32 [d, 3]: (table row, logical block, block) entries that changed since the row's last step.

        A table row is the lower half of a handle. Applying each step's diff keeps a table that lives
        elsewhere, say on a device, equal to this one over every live prefix.
        """
        with cython.critical_section(self):
            return self.c_diff()

    cdef object c_diff(self):
        cdef StepBuffers buffers = self.c_open()
        cdef const int32_t *place
        cdef int32_t *out
        cdef int32_t k, j, i, width
        cdef int64_t total = 0
        if self.told is not None:
            return self.told
        for k in range(self.group.c.num_told):
            total += self.group.c.widths[self.group.c.told[2 * k]] - self.group.c.told[2 * k + 1]
        if total > INT32_MAX // 3:
            raise ValueError(f"{total} changed table entries are too many for one array; read block_tables instead")
        array = new_int32s(3 * total, &out)
        self.c_open()       # that allocation may have run a finalizer that closed the step
        for k in range(self.group.c.num_told):
            i = self.group.c.told[2 * k]
            width = self.group.c.widths[i]
            place = self.group.c.block_tables + <size_t>i * self.group.c.width
            for j in range(self.group.c.told[2 * k + 1], width):
                out[0], out[1], out[2] = buffers.c.held_rows[i], j, place[j]
                out += 3
        array.flags.writeable = False
        self.told = array.reshape(total, 3)
        return self.told

    @property
    def shared_prefixes(self):
        """int32 [g, 3]: first sequence, how many from there on, and how many leading blocks they share.

        None unless extend was asked for a cascade. The shared blocks lie before every new token.
        """
        with cython.critical_section(self):
            buffers = self.c_open()
            return None if buffers.c.num_shared < 0 else buffers.c_view("shared_prefixes", buffers.c.num_shared)

    def moves(self, accepted):
        """Which K/V a commit with these accepted tokens moves: from slots, to slots.

        Parameters
        ----------
        accepted : sequence of int array-like
            Per sequence the accepted ones of its new tokens, as indices in ascending order: a path of the
            tree, so that the k-th one has depth k.

        Returns
        -------
        src, dst : int64 [m], int64 [m]
            All sources are read before a destination is written; `commit` of a KVCache does that itself.

        Raises
        ------
        ValueError
            An index out of range or out of order, or a token that cannot stand at the k-th position.
        """
        cdef StepBuffers buffers
        cdef int32_t s, first, k
        cdef list src = [], dst = []
        flat, bounds = self.c_accepted(accepted)
        cdef const int32_t[::1] path = flat
        cdef const int64_t[::1] ends = bounds
        with cython.critical_section(self):
            buffers = self.c_open()
            for s in range(min(buffers.c.num_sequences, <int32_t>(ends.shape[0] - 1))):
                first = buffers.c.qo_indptr[s]
                for k in range(<int32_t>(ends[s + 1] - ends[s])):
                    if path[ends[s] + k] != k:
                        src.append(self.group.c.slots[first + path[ends[s] + k]])
                        dst.append(self.group.c.slots[first + k])
        return np.array(src, np.int64), np.array(dst, np.int64)

    cdef tuple c_accepted(self, accepted):
        """`accepted` as int32 [total] and int64 [n + 1], checked."""
        flat, bounds = ragged_tokens(accepted, "accepted")
        cdef const int32_t[::1] path = flat
        cdef const int64_t[::1] ends = bounds
        with cython.critical_section(self):
            check_accepted(self.c_open(), path, ends)
        return flat, bounds

    @property
    def kv_indptr(self):
        """int32 [n + 1]: blocks of sequence s are kv_indices[kv_indptr[s]:kv_indptr[s + 1]]."""
        with cython.critical_section(self):
            return self.c_csr()[0]

    @property
    def kv_indices(self):
        """int32 [blocks]: the live prefixes of all tables, one after the other."""
        with cython.critical_section(self):
            return self.c_csr()[1]

    @property
    def kv_last_page_len(self):
        """int32 [n]: tokens in each sequence's last block, 1..block_size; 0 for an empty sequence."""
        with cython.critical_section(self):
            return self.c_csr()[2]

    cdef tuple c_csr(self):
        cdef StepBuffers buffers = self.c_open()
        cdef int32_t n = buffers.c.num_sequences, size = self.block_size
        cdef int64_t total = 0
        cdef int32_t s, j, blocks, length, filled = 0
        if self.csr is not None:
            return self.csr
        for s in range(n):
            total += (<int64_t>buffers.c.kv_lens[s] + size - 1) // size
        if total > INT32_MAX:
            raise ValueError(f"{total} blocks in all tables together pass int32; read block_tables instead")
        cdef int32_t[::1] indptr = np.zeros(n + 1, np.int32)
        cdef int32_t[::1] last = np.zeros(n + 1, np.int32)
        cdef int32_t[::1] indices = np.empty(total + 1, np.int32)
        self.c_open()       # these allocations may have run a finalizer that closed the step
        for s in range(n):
            length = buffers.c.kv_lens[s]
            blocks = <int32_t>((<int64_t>length + size - 1) // size)
            indptr[s + 1] = indptr[s] + blocks
            last[s] = length - (blocks - 1) * size if blocks > 0 else 0
            for j in range(blocks):
                indices[filled] = self.group.c.block_tables[<Py_ssize_t>s * self.group.c.width + j]
                filled += 1
        self.csr = (indptr.base, indices.base[:filled], last.base[:n])
        for array in self.csr:
            array.flags.writeable = False
        return self.csr
