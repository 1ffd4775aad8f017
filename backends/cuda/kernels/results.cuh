// Where results of query rows go: to the caller, or beside those of other spans until they are merged.
#pragma once

// Row `row` (of the sequence): the sum of weights * values at two neighbouring columns, relative to 2 ** largest.
PC_DEVICE void put_result(const AttendParams &p, const Item &item, int head, int row, int c, float x, float y,
                          float share, bool paired) {
    const i64 at = query_row(p, item.token, row, head) * p.v_head_dim + c;
    if (paired) {
        put_pair(p.out, p.out_given, at, x * share, y * share);
    } else {
        if (c < p.v_head_dim) put_number(p.out, p.out_given, at, x * share);
        if (c + 1 < p.v_head_dim) put_number(p.out, p.out_given, at + 1, y * share);
    }
}

PC_DEVICE void put_lse(const AttendParams &p, const Item &item, int head, int row, float lse) {
    if (p.lse) p.lse[query_row(p, item.token, row, head)] = lse;
}

// The place of row r of an item's tile among partial results.
PC_DEVICE i64 part_row(const AttendParams &p, int part, int units, int head, int r) {
    return ((i64)part * p.kv_heads + (i64)head * units) * 16 + r;
}
