#include "plan.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPAN = 256, /* keys of a span where few queries look at up to LONG keys */
    LONG = 1024,
    LONG_SPAN = 512,  /* and at more */
    MANY_SPAN = 2048, /* where many queries look, and there are not enough tiles of them to share out */
    ENOUGH_ITEMS = 8,
    TILE_ROWS = 192 /* query rows of a tile: they, their sums and a tile of K/V stay in L2 */
};

#define FARTHEST (INT64_C(1) << 61) /* position: differences do not overflow */

typedef struct range {
    int64_t begin, end;
} range;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* -- which keys each query sees ---------------------------------------------------------------- */

static int bit(const uint8_t *bits, int64_t i) { return bits[i / 8] >> (i % 8) & 1; }

static const uint8_t *tree_of(const pc_step *step, int32_t s) {
    return step->mask && step->mask_indptr[s] < step->mask_indptr[s + 1] ? step->mask + step->mask_indptr[s] : NULL;
}

/* Whether the new tokens of a sequence are seen by other rules than their order. */
static int is_irregular(const pc_step *step, int32_t s, int64_t first_position) {
    const int32_t from = step->qo_indptr[s], count = step->qo_indptr[s + 1] - from;
    if (tree_of(step, s)) return 1;
    for (int32_t i = 0; i < count; i++)
        if (step->positions[from + i] != first_position + i) return 1;
    return 0;
}

/* Whether such rules ask for a byte for each pair of new tokens: not where all depends on their order alone. */
static int needs_bytes(const pc_step *step, int32_t s) {
    const int64_t fresh = (int64_t)step->kv_lens[s] - (step->qo_indptr[s + 1] - step->qo_indptr[s]);
    return tree_of(step, s) || step->window < INT32_MAX || step->sink_tokens > 0 ||
           max64(step->kv_starts[s], step->kv_pads[s]) > fresh;
}

static int check_shapes(const pc_step *step) {
    const int64_t capacity = (int64_t)step->width * step->block_size;
    if (step->qo_indptr[0] != 0 || step->qo_indptr[step->num_sequences] != step->num_tokens) return PC_INVALID;
    if ((step->mask == NULL) != (step->mask_indptr == NULL)) return PC_INVALID;
    for (int32_t t = 0; t < step->num_tokens; t++)
        if (step->positions[t] < -FARTHEST || step->positions[t] > FARTHEST) return PC_INVALID;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int64_t count = (int64_t)step->qo_indptr[s + 1] - step->qo_indptr[s];
        if (count < 0 || step->kv_lens[s] < 0 || step->kv_lens[s] > capacity || step->kv_pads[s] < 0) return PC_INVALID;
        if (step->mask) {
            const int64_t bytes = step->mask_indptr[s + 1] - step->mask_indptr[s];
            if (bytes != 0 && bytes != (count * count + 7) / 8) return PC_INVALID;
        }
    }
    return PC_OK;
}

static int check_blocks(const pc_step *step, int32_t s, int64_t begin, int64_t end) {
    const int32_t *table = step->block_tables + s * step->stride;
    if (begin >= end) return PC_OK;
    int wrong = 0;
    for (int64_t i = begin / step->block_size; i <= (end - 1) / step->block_size; i++)
        wrong |= table[i] < 1 || table[i] > step->num_blocks;
    return wrong ? PC_INVALID : PC_OK;
}

/* Fills the queries of sequence s; *seen is where the bytes of its tree begin. */
static void look(pc_plan *plan, const pc_step *step, int32_t s, int64_t *seen) {
    const int32_t from = step->qo_indptr[s], count = step->qo_indptr[s + 1] - from;
    const int64_t pad = step->kv_pads[s], length = step->kv_lens[s], start = max64(step->kv_starts[s], pad);
    const int64_t fresh = length - count, window = step->window, sinks = step->sink_tokens;
    const int64_t *positions = step->positions + from;
    const uint8_t *tree = tree_of(step, s);
    const int irregular = is_irregular(step, s, fresh - pad);
    const int by_bytes = irregular && needs_bytes(step, s);

    plan->sequences[s] = (pc_sequence){step->block_tables + s * step->stride, irregular ? positions : NULL,
                                       (int32_t)pad, (int32_t)fresh};
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = fresh + i, position = positions[i], last = by_bytes ? fresh : place + 1;
        const int64_t near = window < INT32_MAX ? pad + position - window + 1 : 0;
        const int64_t cut = max64(min64(last, length), 0), sink_end = min64(pad + min64(sinks, length), cut);
        int64_t begin = max64(start, near);
        if (sink_end >= begin) begin = pad;
        plan->queries[from + i] = (pc_query){(int32_t)min64(begin, cut), (int32_t)cut, (int32_t)max64(sink_end, 0),
                                             position, by_bytes ? *seen + i * count : -1};
        if (!by_bytes) continue;
        for (int64_t k = 0; k < count; k++) {
            const int64_t at = fresh + k;
            const int near_by = at >= start && (window >= INT32_MAX || positions[k] > position - window);
            const int earlier = tree ? bit(tree, i * count + k) : k <= i;
            plan->seen[*seen + i * count + k] = at >= max64(pad, 0) && earlier && (near_by || positions[k] < sinks);
        }
    }
    if (by_bytes) *seen += (int64_t)count * count;
}

/* The keys that some of the queries [first, first + count) see: two ranges, the leading one for sinks. */
static void span_of(const pc_plan *plan, const pc_step *step, int32_t s, int64_t first, int64_t count, range *sinks,
                    range *rest) {
    const int64_t pad = step->kv_pads[s], length = step->kv_lens[s];
    *rest = (range){length, 0}, *sinks = (range){pad, 0};
    for (int64_t i = first; i < first + count; i++) {
        const pc_query *query = plan->queries + i;
        const int64_t fresh = max64(max64(plan->sequences[s].new_begin, pad), 0);
        if (query->begin < query->end) {
            rest->begin = min64(rest->begin, query->begin);
            rest->end = max64(rest->end, query->end);
        }
        if (query->seen >= 0 && fresh < length) {
            rest->begin = min64(rest->begin, fresh);
            rest->end = length;
        }
        sinks->end = max64(sinks->end, query->sinks);
    }
    if (rest->begin >= rest->end) *rest = (range){sinks->end, sinks->end};
    sinks->end = min64(sinks->end, rest->begin);
    if (sinks->begin >= sinks->end) *sinks = (range){rest->begin, rest->begin};
}

/* -- pieces of work ------------------------------------------------------------------------------ */

typedef struct cut { /* how the queries and keys of a sequence, or of several with a common prefix, are cut */
    int32_t sequence, first, count; /* whose table; queries */
    range bounds, sinks, keys;      /* none beyond the bounds */
    int32_t queries;                /* of a tile */
    int64_t span;                   /* keys of a span */
    int32_t spans;
    int few;
} cut;

static range within(range r, range bounds) {
    const int64_t begin = max64(r.begin, bounds.begin);
    return (range){begin, max64(min64(r.end, bounds.end), begin)};
}

static cut cut_of(const pc_plan *plan, const pc_step *step, int32_t s, int32_t first, int32_t count, int64_t from,
                  int64_t to, int32_t kv_heads, int32_t group) {
    cut c = {.sequence = s, .first = first, .count = count, .bounds = {from, to}, .spans = 1, .queries = count};
    span_of(plan, step, s, first, count, &c.sinks, &c.keys);
    c.sinks = within(c.sinks, c.bounds);
    c.keys = within(c.keys, c.bounds);
    const int64_t keys = c.keys.end - c.keys.begin;
    c.few = pc_is_few(count, group);
    c.span = keys > 0 ? keys : 1;
    if (c.few) c.span = keys <= LONG ? SPAN : LONG_SPAN;
    else {
        int32_t queries = TILE_ROWS / group;
        queries = queries >= 8 ? queries / 8 * 8 : queries > 0 ? queries : 1;
        if (queries < count) c.queries = queries;
        const int64_t tiles = (count + c.queries - 1) / c.queries;
        if (tiles * kv_heads < ENOUGH_ITEMS && keys > MANY_SPAN) c.span = MANY_SPAN;
    }
    const int64_t aligned = c.keys.begin / PC_TILE * PC_TILE; /* so that spans end where tiles do */
    c.spans = keys > 0 ? (int32_t)((c.keys.end - aligned + c.span - 1) / c.span) : 1;
    return c;
}

static int32_t items_of(const cut *c, int32_t kv_heads) {
    return (c->few ? 1 : kv_heads) * c->spans * ((c->count + c->queries - 1) / c->queries);
}

static void emit(pc_plan *plan, const pc_step *step, const cut *c, int32_t part, int32_t kv_heads, int32_t group) {
    const int64_t aligned = c->keys.begin / PC_TILE * PC_TILE;
    for (int32_t first = 0; first < c->count; first += c->queries) {
        const int32_t count = c->count - first < c->queries ? c->count - first : c->queries;
        range sinks = c->sinks, keys = c->keys;
        if (!c->few) { /* a tile of queries sees less than all of them */
            span_of(plan, step, c->sequence, c->first + first, count, &sinks, &keys);
            sinks = within(sinks, c->bounds);
            keys = within(keys, c->bounds);
        }
        for (int32_t span = 0; span < c->spans; span++)
            for (int32_t head = 0; head < kv_heads; head += c->few ? kv_heads : 1) {
                pc_item item = {.sequence = c->sequence,
                                .first = c->first + first,
                                .count = count,
                                .head = head,
                                .heads = c->few ? kv_heads : 1,
                                .begin = (int32_t)max64(keys.begin, aligned + span * c->span),
                                .end = (int32_t)min64(keys.end, aligned + (span + 1) * c->span),
                                .part = part < 0 ? -1 : part + span};
                if (span == 0 && sinks.begin < sinks.end) {
                    item.sinks_begin = (int32_t)sinks.begin;
                    item.sinks_end = (int32_t)sinks.end;
                }
                const double seen = (item.sinks_end - item.sinks_begin) + max64(item.end - item.begin, 0);
                const double work = seen * item.heads;
                plan->bytes += work;
                plan->products += work * count * group;
                plan->costs[plan->num_items] = (float)(1 + work * (c->few ? 4 + count * group : count * group));
                plan->items[plan->num_items++] = item;
            }
    }
}

/* -- prefixes that neighbours share ---------------------------------------------------------------- */

static int shares(const pc_step *step, int32_t one, int32_t other, int64_t blocks) {
    const int64_t fresh = (int64_t)step->kv_lens[other] - (step->qo_indptr[other + 1] - step->qo_indptr[other]);
    return step->kv_pads[one] == step->kv_pads[other] &&
           max64(step->kv_starts[one], step->kv_pads[one]) == max64(step->kv_starts[other], step->kv_pads[other]) &&
           blocks <= step->width && blocks * step->block_size <= fresh &&
           !memcmp(step->block_tables + one * step->stride, step->block_tables + other * step->stride, blocks * 4);
}

/* Fills, of each sequence, the leading keys that it shares with neighbours (0: none are worth it) and the first of
 * these, or -1; and the number of them, at the first. PC_INVALID where they are not there, or named twice. */
static int mark_prefixes(const pc_step *step, int32_t *prefix, int32_t *leader, int32_t *members) {
    for (int32_t s = 0; s < step->num_sequences; s++) prefix[s] = 0, leader[s] = -1, members[s] = 0;
    for (int32_t g = 0; g < step->num_shared; g++) {
        const int64_t first = step->shared[3 * g], count = step->shared[3 * g + 1], blocks = step->shared[3 * g + 2];
        if (first < 0 || count < 0 || blocks < 0 || first + count > step->num_sequences) return PC_INVALID;
        int all = count > 1 && blocks > 0 && step->qo_indptr[first] < step->qo_indptr[first + count];
        for (int64_t s = first; s < first + count; s++) {
            if (leader[s] >= 0) return PC_INVALID;
            leader[s] = (int32_t)first;
            all = all && shares(step, (int32_t)first, (int32_t)s, blocks);
        }
        if (!all) continue;
        members[first] = (int32_t)count;
        for (int64_t s = first; s < first + count; s++) prefix[s] = (int32_t)(blocks * step->block_size);
    }
    return PC_OK;
}

/* -- the plan ---------------------------------------------------------------------------------------- */

static void *room(int64_t count, size_t size, int *status) {
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    if (!memory) *status = PC_NO_MEMORY;
    return memory;
}

static int make(pc_plan *plan, const pc_step *step, int32_t kv_heads, int32_t group, int32_t *prefix, int32_t *leader,
                int32_t *members) {
    int status = mark_prefixes(step, prefix, leader, members);
    int64_t seen = 0, bytes = 0, items = 0;
    if (status != PC_OK) return status;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int64_t count = step->qo_indptr[s + 1] - step->qo_indptr[s];
        const int64_t first = (int64_t)step->kv_lens[s] - count - step->kv_pads[s];
        if (needs_bytes(step, s) && is_irregular(step, s, first)) bytes += count * count;
    }
    plan->seen = room(bytes, 1, &status);
    if (status != PC_OK) return status;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        range sinks, rest;
        const int32_t from = step->qo_indptr[s], count = step->qo_indptr[s + 1] - from;
        look(plan, step, s, &seen);
        span_of(plan, step, s, from, count, &sinks, &rest);
        if (count && (check_blocks(step, s, sinks.begin, sinks.end) || check_blocks(step, s, rest.begin, rest.end)))
            return PC_INVALID;
    }
    /* First pass: how many items and parts; second pass: the items. */
    for (int pass = 0; pass < 2; pass++) {
        int32_t common = 0; /* parts of the prefix that the sequence shares */
        for (int32_t s = 0; s < step->num_sequences; s++) {
            const int32_t from = step->qo_indptr[s], count = step->qo_indptr[s + 1] - from;
            if (!prefix[s]) common = 0;
            else if (s == leader[s]) { /* one more cut, over the queries of all members */
                const cut c =
                    cut_of(plan, step, s, from, step->qo_indptr[s + members[s]] - from, 0, prefix[s], kv_heads, group);
                common = c.spans;
                if (pass == 0) items += items_of(&c, kv_heads);
                else emit(plan, step, &c, 0, kv_heads, group);
            }
            if (!count) continue;
            const cut c = cut_of(plan, step, s, from, count, prefix[s], INT32_MAX, kv_heads, group);
            const int32_t parts = common + c.spans > 1 ? common + c.spans : 0;
            if (pass == 0) {
                items += items_of(&c, kv_heads);
                for (int32_t t = from; t < from + count; t++) plan->first_part[t + 1] = parts;
            } else emit(plan, step, &c, parts ? common : -1, kv_heads, group);
        }
        if (pass == 0) {
            if (items > INT32_MAX) return PC_NO_MEMORY;
            for (int32_t t = 0; t < step->num_tokens; t++) {
                if (plan->first_part[t + 1] > INT32_MAX - plan->first_part[t]) return PC_NO_MEMORY;
                plan->first_part[t + 1] += plan->first_part[t];
            }
            plan->items = room(items, sizeof *plan->items, &status);
            plan->costs = room(items, sizeof *plan->costs, &status);
            if (status != PC_OK) return status;
        }
    }
    return PC_OK;
}

int pc_plan_make(pc_plan *plan, const pc_step *step, int32_t kv_heads, int32_t group) {
    int status = check_shapes(step);
    memset(plan, 0, sizeof *plan);
    if (status != PC_OK) return status;
    plan->num_tokens = step->num_tokens;
    plan->sequences = room(step->num_sequences, sizeof *plan->sequences, &status);
    plan->queries = room(step->num_tokens, sizeof *plan->queries, &status);
    plan->first_part = room((int64_t)step->num_tokens + 1, sizeof *plan->first_part, &status);
    int32_t *marks = room(3 * (int64_t)step->num_sequences, sizeof *marks, &status);
    if (status == PC_OK)
        status = make(plan, step, kv_heads, group, marks, marks + step->num_sequences, marks + 2 * step->num_sequences);
    free(marks);
    return status;
}

void pc_plan_free(pc_plan *plan) {
    free(plan->sequences);
    free(plan->queries);
    free(plan->seen);
    free(plan->items);
    free(plan->costs);
    free(plan->first_part);
    memset(plan, 0, sizeof *plan);
}
