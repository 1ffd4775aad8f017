// Which items a block of threads takes, and where results of query rows go: to the caller, or beside those of other
// spans until they are merged.
#pragma once

// Row `row` (of the sequence): the sum of weights * values at two neighbouring columns, relative to 2 ** largest.
PC_DEVICE void put_result(const AttendParams &p, const Item &item, int head, int row, int c, float x, float y,
                          float share, bool paired) {
    const i64 at = query_row(p, item.token, row, head) * p.v_head_dim + c;
    x = pc_fused(x, share, 0), y = pc_fused(y, share, 0);
    if (paired) {
        put_pair(p.out, p.out_given, at, x, y);
    } else {
        if (c < p.v_head_dim) put_number(p.out, p.out_given, at, x);
        if (c + 1 < p.v_head_dim) put_number(p.out, p.out_given, at + 1, y);
    }
}

PC_DEVICE void put_lse(const AttendParams &p, const Item &item, int head, int row, float lse) {
    if (p.lse) p.lse[query_row(p, item.token, row, head)] = lse;
}

// The place of row r of an item's tile among partial results.
PC_DEVICE i64 part_row(const AttendParams &p, int part, int units, int head, int r) {
    return ((i64)part * p.kv_heads + (i64)head * units) * 16 + r;
}

// A block takes every grid-th item, for every KV head; how many there are is in memory, so that a launch can be
// replayed.
template <class Kernel> PC_DEVICE void run_items(const AttendParams &p) {
    const int works = p.count[0] * p.kv_heads;
    for (int work = pc_block(); work < works; work += pc_blocks()) {
        Kernel::attend(p, p.items[work / p.kv_heads], work % p.kv_heads, pc_shared());
        pc_sync_block(); // the shared memory is free
    }
}
