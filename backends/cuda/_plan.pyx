"""What each block of a GPU's threads does in a step: the lists that kernels go by, made on the CPU.

The queries of a sequence are cut into tiles of rows, its keys into spans, and every pair of these is an item:

    rows: new tokens x query heads      kernel              tile    span
    up to 16, or float32 storage        few.cuh             16      128 to 1024 keys, by the sequence's length
    up to 64, or heads beyond 128       many.cuh, 64 rows   64      the same, but 256 at least
    more                                many.cuh, 128 rows  128     2048, 8192 or all of them, by the number of rows

Where tiles end and spans are cut depends on the sequence alone, so its result does not depend on the batch. Partial
results of spans are merged afterwards. Items are sorted, long ones first, so that short ones fill the gaps in the end.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

import numpy as np

cdef enum:
    NEVER = 1 << 30  # all keys of a span come before a query at this place
    BUCKETS = 256    # of items sorted by length
    FAR = 61         # positions and windows of 2 ** FAR and more: refused, and none

cdef struct Span:
    int32_t begin, end

cdef struct Spans:     # of the keys that a tile of queries sees
    Span of[2]         # sinks, and what is within the window
    int count

cdef struct Run:       # the items of a tile: its keys, cut at multiples of `length`
    Item item
    Spans spans
    int32_t length, units


cdef class List:
    """Structs of int32, one after the other, in memory that grows."""

    cdef char* data
    cdef Py_ssize_t count  # structs
    cdef Py_ssize_t room   # bytes
    cdef Py_ssize_t sizes[BUCKETS]  # of runs: how many items there are of each bucket

    def __dealloc__(self):
        free(self.data)

    cdef void* more(self, Py_ssize_t size) noexcept nogil:
        """Return room for one more struct of `size` bytes; NULL where there is no memory."""
        cdef char* larger
        if (self.count + 1) * size > self.room:
            larger = <char*>realloc(self.data, 2 * self.room + 64 * size)
            if larger == NULL:
                return NULL
            self.data, self.room = larger, 2 * self.room + 64 * size
        self.count += 1
        return self.data + (self.count - 1) * size

    cdef array(self, Py_ssize_t size):
        """Return a copy, int32 [structs, size / 4]."""
        cdef int32_t[:, ::1] view
        result = np.empty((self.count, size // 4), np.int32)
        if self.count:
            view = result
            memcpy(&view[0, 0], self.data, self.count * size)
        return result


cdef class _Work:
    """The step as it is planned: what is known of it, and the lists that come of it."""

    cdef int64_t window, sink_tokens
    cdef int32_t group
    cdef bint tensor      # there is a kernel for many rows
    cdef int32_t widest   # rows of its tile, 64 or 128
    cdef List few, many64, many128, merges
    cdef int32_t parts    # units of 16 rows of partial results

    cdef int32_t tile(self, int32_t rows) noexcept nogil:
        if rows <= 16 or not self.tensor:
            return 16
        return 64 if rows <= 64 or self.widest == 64 else 128

    cdef List list_of(self, int32_t tile):
        return self.few if tile == 16 else self.many64 if tile == 64 else self.many128


def span_length(int kv_len, int tile, int rows):
    """Return how many keys an item of a sequence has at most; 0: all.

    >>> span_length(1000, 16, 4), span_length(100_000, 16, 4), span_length(5000, 128, 4096)
    (128, 1024, 8192)
    """
    return _span_length(kv_len, tile, rows)


cdef int32_t _span_length(int32_t kv_len, int32_t tile, int32_t rows) noexcept nogil:
    if tile == 128:
        return 2048 if rows < 4096 else 8192 if rows < 32768 else 0
    if kv_len <= 1024:
        return 128 if tile == 16 else 256
    return 256 if kv_len <= 8192 else 512 if kv_len <= 32768 else 1024


cdef Spans _spans(_Work work, int32_t pad, int32_t start, int32_t begin, int32_t end, int64_t first_position,
                  int32_t place, bint ordered) noexcept nogil:
    """Which keys from `begin` to `end` queries may see whose first position is `first_position`; see host/sight.py."""
    cdef Spans found
    cdef int64_t low = max(start, pad), far
    cdef int32_t sinks
    found.count = 0
    if work.window < (<int64_t>1 << FAR):
        far = pad + first_position - work.window + 1
        if far > low:
            low = far
        if low > place and not ordered:
            low = max(pad, place)
    if low > end:
        low = end
    sinks = <int32_t>min(min(<int64_t>pad + work.sink_tokens, low), <int64_t>end)
    if max(pad, begin) < sinks:
        found.of[0].begin, found.of[0].end = max(pad, begin), sinks
        found.count = 1
    if max(<int32_t>low, begin) < end:
        found.of[found.count].begin, found.of[found.count].end = max(<int32_t>low, begin), end
        found.count += 1
    return found


cdef int _cut(List runs, Item item, Spans spans, int32_t length, int32_t* parts, int32_t units,
              bint merged) noexcept nogil:
    """Add the items of a tile of rows; return how many partial results they have, 0 if none, -1 without memory."""
    cdef int32_t count = 0, begin, end
    cdef int s
    cdef Run* run
    for s in range(spans.count):
        count += 1 if length == 0 else (spans.of[s].end - 1) // length - spans.of[s].begin // length + 1
    if count == 0:
        if merged:
            return 0
        spans.of[0].begin, spans.of[0].end, spans.count = 0, 0, 1  # rows that see no key still have a result
    merged = merged or count > 1
    item.part = parts[0] if merged else -1
    run = <Run*>runs.more(sizeof(Run))
    if run == NULL:
        return -1
    run.item, run.spans, run.length, run.units = item, spans, length, units if merged else 0
    for s in range(spans.count):
        begin, end = spans.of[s].begin, _first_end(spans.of[s], length)
        while True:
            runs.sizes[_bucket(min(end, spans.of[s].end) - begin)] += 1
            begin = end
            end += length
            if begin >= spans.of[s].end:
                break
    if not merged:
        return 0
    parts[0] += count * units
    return count


cdef int _plan_sequence(_Work work, int32_t sequence, int32_t token, int32_t q_len, int32_t kv_len, int32_t pad,
                        int32_t start, int64_t first_position, bint ordered, int32_t prefix,
                        const Merge* shared) noexcept:
    """Add the items and merges of a sequence, whose first `prefix` keys others attend to; -1 without memory.

    `ordered`: positions rise with row coordinates, and no mask says who sees whom.
    """
    cdef int32_t rows = q_len * work.group, tile = work.tile(rows), last, end, place = kv_len - q_len, first, row = 0
    cdef int32_t length = _span_length(kv_len, tile, rows)
    cdef List items = work.list_of(tile)
    cdef Item item
    cdef Merge* merge
    cdef Spans spans
    cdef int count
    while row < rows:
        end, first = kv_len, 0
        if ordered:  # later keys are not seen by these rows
            last = min(row + tile, rows) - 1
            end, first = min(kv_len, place + last // work.group + 1), row // work.group
        spans = _spans(work, pad, start, prefix, end, first_position + first, place, ordered)
        item = Item(sequence, token, rows, row, place, 0, 0, work.parts, pad, max(start, pad))
        count = _cut(items, item, spans, length, &work.parts, tile // 16, shared != NULL)
        if count < 0:
            return -1
        if count or shared != NULL:
            merge = <Merge*>work.merges.more(sizeof(Merge))
            if merge == NULL:
                return -1
            merge[0] = Merge(token, rows, row, item.part, count, tile // 16, 0, 0, 0, 0)
            if shared != NULL:
                merge.shared_part, merge.shared_count = shared.shared_part, shared.shared_count
                merge.shared_units, merge.shared_row = shared.shared_units, shared.shared_row
        row += tile
    return 0


cdef int _plan_prefix(_Work work, int32_t sequence, int32_t token, int32_t tokens, int32_t keys, int32_t pad,
                      int32_t start, int64_t first_position, Merge* shared) noexcept:
    """Add the items of a shared prefix of `keys` keys, for all `tokens` of its sequences; fill in `shared`."""
    cdef int32_t rows = tokens * work.group, tile = work.tile(rows), row = 0
    cdef int32_t length = _span_length(keys, tile, rows)
    cdef List items = work.list_of(tile)
    cdef Spans spans = _spans(work, pad, start, 0, keys, first_position, NEVER, True)
    cdef Item item
    cdef int count = 0
    shared.shared_part, shared.shared_units, shared.shared_row = work.parts, tile // 16, 0
    while row < rows:
        item = Item(sequence, token, rows, row, NEVER, 0, 0, 0, pad, max(start, pad))
        count = _cut(items, item, spans, length, &work.parts, tile // 16, True)
        if count < 0:
            return -1
        row += tile
    shared.shared_count = count
    return 0


cdef _sorted(List runs):
    """Return the items in the order of their number of keys, the longest first, int32 [items, 10]."""
    cdef Py_ssize_t begins[BUCKETS]
    cdef Py_ssize_t r, count = 0
    cdef const Run* run
    cdef Span span
    cdef Item* target
    cdef Item item
    cdef int32_t end
    cdef int32_t[:, ::1] view
    cdef int bucket, s
    for bucket in range(BUCKETS):
        begins[bucket] = count
        count += runs.sizes[bucket]
    result = np.empty((count, sizeof(Item) // 4), np.int32)
    if count == 0:
        return result
    view = result
    target = <Item*>&view[0, 0]
    for r in range(runs.count):
        run = &(<const Run*>runs.data)[r]
        item = run.item
        for s in range(run.spans.count):
            span = run.spans.of[s]
            item.begin, end = span.begin, _first_end(span, run.length)
            while True:
                item.end = min(end, span.end)
                bucket = _bucket(item.end - item.begin)
                target[begins[bucket]] = item
                begins[bucket] += 1
                item.part += run.units
                item.begin = end
                end += run.length
                if item.begin >= span.end:
                    break
    return result


cdef inline int32_t _first_end(Span span, int32_t length) noexcept nogil:
    """Return where its first item may end: at a multiple of `length`, which no other sequence moves."""
    return span.end if length == 0 else (span.begin // length + 1) * length


cdef inline int _bucket(int32_t keys) noexcept nogil:
    return BUCKETS - 1 - (keys >> 6 if keys < 8192 else min(120 + (keys >> 10), BUCKETS - 1))


@cython.final
cdef class Plan:
    """The lists of a step.

    Attributes
    ----------
    few, many64, many128 : int32 [items, 10]
        Of the kernels with tiles of 16, 64 and 128 rows; see Item in kernels/params.cuh.
    merges : int32 [merges, 10]
    parts : int
        Units of 16 rows, for each KV head, of partial results.
    plain : bool
        Whether the positions of all new tokens rise with their row coordinates.
    """


def make_plan(const int32_t[::1] qo_indptr, const int32_t[::1] kv_lens, const int32_t[::1] kv_starts,
              const int32_t[::1] kv_pads, const int64_t[::1] positions, const int32_t[:, :] block_tables,
              const int64_t[::1] mask_indptr, const int32_t[:, ::1] prefixes, int64_t window, int64_t sink_tokens,
              int group, int block_size, int num_blocks, bint tensor, int widest):
    """Return the plan of a step; None where its arrays contradict each other, which others then say in words.

    Parameters
    ----------
    qo_indptr, kv_lens, kv_starts, kv_pads, positions, block_tables
        Of a StepLike.
    mask_indptr : int64 [n + 1] or None
        An empty span means causal.
    prefixes : int32 [g, 3]
        First sequence, sequences and leading keys of each prefix that neighbours share.
    window : int
        2**61 or more: none.
    group : int
        Query heads of a KV head.
    tensor : bool
        Whether there are kernels for many rows; their largest tile has `widest` rows, 64 or 128.
    """
    cdef Py_ssize_t n = kv_lens.shape[0], i, g, tokens = positions.shape[0], logical, last
    cdef int32_t q_len, pad, start, length, place
    cdef int64_t least, most, capacity = block_tables.shape[1] * <int64_t>block_size, position
    cdef bint plain, all_plain = True, tree
    cdef Spans spans
    cdef int s, free_from = 0
    cdef _Work work
    cdef Merge shared
    cdef int32_t prefix
    if (qo_indptr.shape[0] != n + 1 or kv_starts.shape[0] != n or kv_pads.shape[0] != n
            or block_tables.shape[0] != n or qo_indptr[0] != 0 or qo_indptr[n] != tokens):
        return None
    work = _Work()
    work.window, work.sink_tokens, work.group, work.tensor, work.widest = window, sink_tokens, group, tensor, widest
    work.few, work.many64, work.many128, work.merges = List(), List(), List(), List()
    work.parts = 0
    g = 0
    for i in range(n):
        q_len, length, pad = qo_indptr[i + 1] - qo_indptr[i], kv_lens[i], kv_pads[i]
        start = max(kv_starts[i], pad)
        if q_len < 0 or length < 0 or length > capacity or length >= NEVER or pad < 0:
            return None
        place = length - q_len
        if place < -NEVER or start >= NEVER or <int64_t>q_len * group >= NEVER:
            return None
        tree = mask_indptr is not None and mask_indptr[i + 1] > mask_indptr[i]
        plain, least = True, place - pad
        for logical in range(q_len):
            position = positions[qo_indptr[i] + logical]
            if not -(<int64_t>1 << FAR) <= position <= (<int64_t>1 << FAR):
                return None
            plain = plain and position == place - pad + logical
            least = position if logical == 0 or position < least else least
        all_plain = all_plain and plain
        spans = _spans(work, pad, start, 0, length, least, place, plain and not tree)
        if q_len:
            for s in range(spans.count):
                logical = spans.of[s].begin // block_size
                last = (spans.of[s].end - 1) // block_size
                if not _are_blocks(&block_tables[i, logical], last + 1 - logical, num_blocks):
                    return None
        prefix = 0
        if g < prefixes.shape[0] and i == prefixes[g, 0]:
            most = _least_position(positions, qo_indptr[i], qo_indptr[i + prefixes[g, 1]])
            if _plan_prefix(work, i, qo_indptr[i], qo_indptr[i + prefixes[g, 1]] - qo_indptr[i], prefixes[g, 2], pad,
                            start, most, &shared):
                raise MemoryError
            free_from = prefixes[g, 0] + prefixes[g, 1]
        if g < prefixes.shape[0] and i >= prefixes[g, 0]:
            prefix = prefixes[g, 2]
            shared.shared_row = (qo_indptr[i] - qo_indptr[prefixes[g, 0]]) * group
            if i + 1 == free_from:
                g += 1
        if q_len and _plan_sequence(work, i, qo_indptr[i], q_len, length, pad, start, least, plain and not tree, prefix,
                                    &shared if prefix else NULL):
            raise MemoryError
    cdef Plan plan = Plan()
    plan.few, plan.many64, plan.many128 = _sorted(work.few), _sorted(work.many64), _sorted(work.many128)
    plan.merges = work.merges.array(sizeof(Merge))
    plan.parts, plan.plain = work.parts, all_plain
    return plan


cdef bint _are_blocks(const int32_t* entries, Py_ssize_t count, int32_t num_blocks) noexcept nogil:
    """Whether all entries are ids from 1 to num_blocks."""
    cdef int32_t strange = 0
    cdef Py_ssize_t i
    for i in range(count):
        strange |= (entries[i] < 1) | (entries[i] > num_blocks)  # without a branch: several at once
    return not strange


cdef int64_t _least_position(const int64_t[::1] positions, int32_t begin, int32_t end) noexcept nogil:
    cdef int64_t least = positions[begin] if begin < end else 0
    cdef int32_t i
    for i in range(begin, end):
        least = min(least, positions[i])
    return least
