from libc.stdint cimport int32_t, int64_t

from pagedcache.core.commit_table cimport CommitTable
from pagedcache.core.key_table cimport RowKeys
from pagedcache.core.prefix_index cimport Head


cdef struct Prompt:
    const int32_t *tokens   # [length]
    int64_t length
    int64_t pad             # leading positions that are never visible
    int64_t reserve         # positions to allot beyond
    const RowKeys *keys     # NULL: none
    int level               # priority of its blocks


cdef struct Hit:            # what a prompt shares
    int32_t blocks          # whole ones of each group, those that its window no longer shows included
    int32_t node            # of the last of them, or NO_NODE
    Head head               # of one block more
    int64_t shared          # all these blocks, in all groups
    int64_t idle            # of these, such as nobody holds
    int64_t wanted          # blocks that the prompt takes besides


cdef class HitTable(CommitTable):
    cdef Hit c_hit(self, const Prompt *prompt, int32_t total, int32_t *blocks) noexcept nogil
    cdef void c_find(self, const Prompt *prompt, int32_t *blocks, Hit *hit) noexcept nogil
    cdef void c_count(self, const Prompt *prompt, int32_t total, const int32_t *blocks, Hit *hit) noexcept nogil
    cdef void c_pin(self, int32_t row, const Hit *hit) noexcept nogil
    cdef void c_tell_uses(self, int32_t row, int32_t hits) noexcept nogil
    cdef void c_share_head(self, int32_t row, const Hit *hit) noexcept nogil
