from libc.stdint cimport int32_t, int64_t


cdef struct GroupArrays:            # what each layer group has for itself
    int32_t width                   # entries of a row of block_tables
    int64_t room_slots              # entries that the arrays below have room for
    int64_t room_copies
    int64_t room_new
    int32_t num_copies
    int32_t num_new
    int32_t num_told
    int32_t num_copiers             # while extend counts
    int32_t *block_tables           # [max_sequences, width]; -1 beyond widths[place]
    int32_t *widths                 # [max_sequences] entries of each place that name a block
    int32_t *kv_starts              # [max_sequences]
    int64_t *slots                  # [tokens]
    int32_t *copies                 # [.., 2] source block, destination block
    int32_t *new_blocks             # [..]
    int32_t *told                   # [.., 2] places with entries that no step has told yet, and the first of those
    int32_t *appended               # [max_sequences] blocks that the step appended to the row
    int32_t *copiers                # [max_sequences] sequences whose last block was copied, in the order of copies
    GroupArrays *next               # the next layer group's


cdef struct StepArrays:             # what all layer groups share, and what closing the step needs
    int32_t num_sequences
    int32_t num_tokens
    int32_t num_shared              # -1: nobody asked
    bint is_tree                    # depths were given
    int64_t room_tokens             # entries that positions and token_seq have room for
    int64_t *ids                    # [max_sequences] handles
    int32_t *qo_indptr              # [max_sequences + 1]
    int32_t *kv_lens                # [max_sequences] end coordinate after the step
    int32_t *kv_pads                # [max_sequences]
    int64_t *positions              # [tokens]
    int32_t *token_seq              # [tokens]
    int32_t *shared_prefixes        # [.., 3] first sequence, how many, leading blocks they share
    int32_t *held_rows              # [max_sequences] table row at this place; beyond the step's: one that was, or -1
    int32_t *places                 # [max_sequences] by table row: the last place it was shown at, or -1
    int32_t *state_in               # [max_sequences, state blocks] each sequence's state before the step; 0: none yet
    int32_t *state_out              # [max_sequences, state blocks] and after it; -1 where the step has no tokens


cdef class Buffers:
    cdef dict arrays                # the NumPy arrays that own the memory, by name
    cdef tuple owners               # the same arrays
    cdef dict views                 # the view of each that was last asked for

    cdef void *c_new(self, str name, shape, dtype, int fill) except NULL
    cdef object c_view(self, str name, Py_ssize_t n)


cdef class GroupBuffers(Buffers):
    cdef GroupArrays c
    cdef GroupBuffers sibling       # the next layer group's; a list would be emptied by the collector
    cdef int32_t max_sequences

    cdef int c_fit(self, int32_t width, int64_t tokens, int64_t copies, int64_t new) except -1
    cdef int c_set_width(self, int32_t width) except -1


cdef class StepBuffers(Buffers):
    cdef StepArrays c
    cdef GroupBuffers group         # layer group 0's, the first of a chain
    cdef readonly int32_t number    # of these buffers among the table's
    cdef StepBuffers sibling        # the table's next buffers
    cdef object step                # the open Step that has them, or None
    cdef tuple state_blocks         # blocks of a sequence's state in each state group

    cdef int c_fit(self, int32_t width, int64_t tokens, int64_t copies, int64_t new) except -1
