// What a launch is told: one struct by value, laid out as in backends/cuda/_params.py, and lists in memory that the
// plan filled. All strides count elements, all offsets are 64 bits wide.
#pragma once

// A piece of work: up to a tile of the query rows of one sequence, and a span of its keys, for every KV head in turn.
// Row r is query head r % group of new token r / group.
struct Item {
    int sequence; // row of block_tables
    int token;    // its first new token, in the step
    int rows;     // query rows that it has, new tokens * group
    int row;      // the first of them that this item takes
    int place;    // row coordinate of its first new token; NEVER where all keys of the span come before it
    int begin;    // first key, a row coordinate
    int end;      // after the last key
    int part;     // where its partial results go, in units of 16 rows; -1: the span is all there is to see
    int pad;      // row coordinate of position 0
    int start;    // first row coordinate that is held, after the sinks
};

// Rows whose keys were cut into spans: their partial results lie behind each other. Those of a prefix that several
// sequences share are of tiles of their own: row `row` of the sequence is row `shared_row + row` there.
struct Merge {
    int token, rows, row; // as in Item
    int part;             // the first partial result, in units of 16 rows
    int count;            // how many
    int units;            // rows of a tile / 16: how far they are apart
    int shared_part, shared_count, shared_units, shared_row;
};

enum { NEVER = 1 << 30 };

struct AttendParams {
    const void *q; // [tokens, q_heads, head_dim], compact
    const void *k;
    const void *v;
    const float *k_scales; // null where the storage has none
    const float *v_scales;
    void *out;          // [tokens, q_heads, v_head_dim], compact
    float *lse;         // [tokens, q_heads], or null
    float *part_out;    // [16 * parts * kv_heads, v_head_dim], sums of weights * values over a span
    float *part_weight; // [16 * parts * kv_heads, 2]: largest score in powers of 2, and the sum of weights against it
    const int *count;   // of the items or merges of this launch
    const Item *items;
    const Merge *merges;
    const int *tables;           // [sequences, table_width]
    const i64 *positions;        // [tokens]; null where they rise with the coordinates
    const u8 *mask;              // null: causal
    const i64 *mask_indptr;      // [sequences + 1]
    const float *sink_logits;    // [q_heads] times log2(e), or null
    const float *alibi_slopes;   // [q_heads] times log2(e), or null
    i64 k_block, k_slot, k_head; // strides
    i64 v_block, v_slot, v_head;
    i64 s_block, s_slot, s_head; // of both scales
    i64 window;                  // tokens that a query sees, its own included; beyond 2**61: all
    i64 sink_tokens;
    int kv_heads, group; // query heads of a KV head
    int head_dim, v_head_dim;
    int block_size, table_width;
    u32 block_magic, block_shift; // key / block_size == high_product(2 * key, magic) >> shift
    int q_given, out_given;       // enum Given
    float sign;                   // of the scale: -1, 0 or 1
    float scale;                  // its size times log2(e); 1 where the sign is 0
    float softcap;                // times log2(e); 0: none
    float inverse_softcap;        // 1 / softcap
};

struct StoreParams {
    const void *k; // [tokens, kv_heads, head_dim], compact
    const void *v;
    const i64 *slots; // [tokens]
    void *k_pool;
    void *v_pool;
    float *k_scales;
    float *v_scales;
    i64 k_block, k_slot, k_head;
    i64 v_block, v_slot, v_head;
    i64 s_block, s_slot, s_head;
    i64 tokens;
    int kv_heads, head_dim, v_head_dim, block_size;
    int k_given, v_given; // enum Given
};

// Rows of bytes that move between two places: row (i, t, h) of each array of `sources`, at
// source[i] + t * source_token + h * source_head bytes, likewise its destination.
struct MoveParams {
    const u64 *sources;      // [arrays], addresses
    const u64 *destinations; // [arrays]
    const i64 *source;       // [count], offsets in bytes
    const i64 *destination;
    i64 source_token, source_head, destination_token, destination_head;
    i64 count;
    int arrays, tokens, heads, bytes; // of a row
};
