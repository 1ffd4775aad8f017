// The results of the spans that a sequence's keys were cut into, made one.
#pragma once

// The partial results of a query row: those of its own spans, then those of a shared prefix.
struct Parts {
    const AttendParams &p;
    const Merge &merge;
    int head, own; // place of the row in its own tile
    int shared, shared_tile;

    PC_DEVICE Parts(const AttendParams &params, const Merge &m, int kv_head, int r)
        : p(params), merge(m), head(kv_head), own(r) {
        const int tile = m.shared_units * 16, row = m.shared_row + m.row + r;
        shared_tile = tile ? row / tile : 0;
        shared = tile ? row % tile : 0;
    }
    PC_DEVICE int count() const { return merge.count + merge.shared_count; }
    PC_DEVICE i64 row(int i) const {
        if (i < merge.count) return part_row(p, merge.part + i * merge.units, merge.units, head, own);
        const int number = shared_tile * merge.shared_count + i - merge.count;
        return part_row(p, merge.shared_part + number * merge.shared_units, merge.shared_units, head, shared);
    }
};

// Row `row` of a merge's tile; threads have its columns.
PC_DEVICE void merge_row(const AttendParams &p, const Merge &merge, int head, int r) {
    const Parts parts(p, merge, head, r);
    const int count = parts.count(), row = merge.row + r;
    float most = -PC_INFINITY;
    for (int s = 0; s < count; s++) most = pc_max(most, p.part_weight[2 * parts.row(s)]);
    const float base = most == -PC_INFINITY ? 0 : most;
    const i64 to = query_row(p, merge.token, row, head);
    for (int c = pc_thread(); c < p.v_head_dim; c += pc_threads()) {
        float sum = 0, x = 0;
        for (int s = 0; s < count; s++) {
            const i64 at = parts.row(s);
            const float theirs = p.part_weight[2 * at + 1];
            if (theirs == 0) continue; // no key of the span was seen
            const float share = pc_exp2(p.part_weight[2 * at] - base);
            sum += theirs * share;
            x = pc_fused(p.part_out[at * p.v_head_dim + c], share, x);
        }
        const Total total(most, sum, sink_of(p, row, head));
        put_number(p.out, p.out_given, to * p.v_head_dim + c, pc_fused(x, total.share, 0));
        if (c == 0 && p.lse) p.lse[to] = total.lse;
    }
}

// Every sixteenth row of a tile is a piece of work, so that one sequence's rows are merged side by side.
PC_DEVICE void run_merge(const AttendParams &p) {
    const int works = p.count[0] * p.kv_heads * 16;
    for (int work = pc_block(); work < works; work += pc_blocks()) {
        const Merge &merge = p.merges[work / 16 / p.kv_heads];
        const int head = work / 16 % p.kv_heads;
        for (int r = work % 16; r < merge.units * 16 && merge.row + r < merge.rows; r += 16)
            merge_row(p, merge, head, r);
    }
}
