// Attention of many query rows of a sequence: prefill, chunks of it, long drafts.
//
//   block of 4 warps = one item (64 * M query rows), one KV head    warp w = rows 16 * M * w and on, in M tiles of 16
//   a tile of KEYS tokens of K, then of V, is shared by the warps; the next copy runs while they multiply
//
// Tiles that come later than all of an item's queries are left out, by the plan's `end` and by the item's last row.
#pragma once

template <class T, int D, int DV, int M, int KEYS, bool EXACT, bool FULL> struct Many {
    typedef typename Storage<T>::Operand Operand;
    static constexpr int WARPS = 4, THREADS = 32 * WARPS, ROWS = 64 * M;
    static constexpr int QUERY_BYTES = ROWS * row_bytes<Operand, D>() + ROWS * 4;
    static constexpr int K_BYTES = KEYS * row_bytes<T, D>(), V_BYTES = KEYS * row_bytes<T, DV>();
    static constexpr int SCALE_BYTES = Storage<T>::SCALED ? 2 * KEYS * 4 : 0; // of a tile; there are two
    static constexpr int OFFSET_BYTES = KEYS * (int)sizeof(Offset);           // likewise
    static constexpr int SHARED = QUERY_BYTES + K_BYTES + V_BYTES + 2 * SCALE_BYTES + 2 * OFFSET_BYTES;
    static_assert(Storage<T>::TENSOR && KEYS <= THREADS, "float storage goes through Few");

    static PC_DEVICE void attend(const AttendParams &p, const Item &item, int head, u8 *shared) {
        const int thread = pc_thread(), lane = thread % 32, warp = thread / 32;
        float *factors = (float *)(shared + ROWS * row_bytes<Operand, D>());
        u8 *keys = shared + QUERY_BYTES;
        u8 *values = keys + K_BYTES;
        float *scales = (float *)(values + V_BYTES);                      // [2][2][KEYS], of K and V
        Offset *offsets = (Offset *)(values + V_BYTES + 2 * SCALE_BYTES); // [2][KEYS]
        const Locator at(p, item, head);

        int end = item.end;
        if (!FULL || !p.mask) { // the last row's token sees no later key
            const int last = item.row + ROWS < item.rows ? item.row + ROWS - 1 : item.rows - 1;
            if (item.place + last / p.group + 1 < end) end = item.place + last / p.group + 1;
        }
        const int tiles = end > item.begin ? (end - item.begin + KEYS - 1) / KEYS : 0;
        auto find = [&](int tile) { // where the tokens of a tile are
            const int token = item.begin + tile * KEYS + thread;
            if (thread < KEYS && tile < tiles) {
                const int block = token < end ? at.block(token) : 0;
                locate(at, offsets + tile % 2 * KEYS, thread, token, block, token < end);
                if (Storage<T>::SCALED) {
                    copy_scales(at, scales + tile % 2 * 2 * KEYS, KEYS, thread, token, block, token < end);
                }
            }
        };
        find(0);
        stage_queries<T, D>(p, item, head, shared, factors, ROWS);
        pc_sync_block();
        const u8 *mine = shared + warp * M * 16 * row_bytes<Operand, D>();
        auto query = [&](int m, int step) {
            Queries<T> q;
            load_queries<T, D>(q, mine + m * 16 * row_bytes<Operand, D>(), step, lane);
            return q;
        };

        Sight<FULL> sight(p, item);
        Query rows[M][2];
        float factor[M][2], product[M][2];
        Softmax softmax[M];
        float out[M][DV / 8][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = (warp * M + m) * 16 + lane / 4 + 8 * h;
                rows[m][h] = sight.query(item.row + r, head);
                sight.narrow(rows[m][h]);
                const float all = Storage<T>::CODES ? p.scale * factors[r] : p.scale;
                factor[m][h] = FULL ? 1 : all;
                product[m][h] = FULL ? all : 1;
            }
            softmax[m].begin();
#pragma unroll
            for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) out[m][n][e] = 0;
            }
        }
        sight.agree();

        if (tiles > 0) copy_rows<T, D, EXACT, 0, KEYS, THREADS>(p, keys, offsets, end - item.begin, thread);
        pc_copy_commit();
        for (int tile = 0; tile < tiles; tile++) {
            const int begin = item.begin + tile * KEYS;
            const Offset *here = offsets + tile % 2 * KEYS;
            const float *tile_scales = scales + tile % 2 * 2 * KEYS;
            pc_copy_wait<0>();
            pc_sync_block(); // the keys are there, and nobody reads the last values any more
            copy_rows<T, DV, EXACT, 1, KEYS, THREADS>(p, values, here, end - begin, thread);
            pc_copy_commit();
            find(tile + 1);
            float s[M][KEYS / 8][4];
            multiply_keys<T, D, M, KEYS>(s, query, keys, lane);
            const bool alike = begin >= sight.low && begin + KEYS - 1 <= sight.high && begin + KEYS <= end;
#pragma unroll
            for (int m = 0; m < M; m++) {
                judge<T, FULL, KEYS / 8>(sight, rows[m], product[m], s[m], tile_scales, begin, alike, lane);
                float correction[2];
                softmax[m].template weigh<KEYS / 8>(s[m], factor[m], correction);
                if (Storage<T>::SCALED) softmax[m].template scale<KEYS / 8>(s[m], tile_scales + KEYS, correction, lane);
#pragma unroll
                for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) out[m][n][e] *= correction[e / 2];
                }
            }
            pc_copy_wait<0>();
            pc_sync_block(); // the values are there, and nobody reads these keys any more
            if (tile + 1 < tiles) {
                const Offset *next = offsets + (tile + 1) % 2 * KEYS;
                copy_rows<T, D, EXACT, 0, KEYS, THREADS>(p, keys, next, end - begin - KEYS, thread);
            }
            pc_copy_commit();
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                const u8 *v = values + n * 16 * row_bytes<T, DV>();
                if (!alike && any_infinite<T, DV>(v, lane)) {
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        const u32 hidden = hidden_of(sight, rows[m], begin + n * 16, lane);
                        multiply_seen<T, DV>(out[m], s[m] + 2 * n, hidden, v, lane);
                    }
                } else {
                    Weights<T> weights[M];
#pragma unroll
                    for (int m = 0; m < M; m++) weights[m].make(s[m] + 2 * n, lane);
                    multiply_values<T, DV, M>(out, weights, v, lane);
                }
            }
        }
        pc_copy_wait<0>();

#pragma unroll
        for (int m = 0; m < M; m++) {
            softmax[m].end();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = (warp * M + m) * 16 + lane / 4 + 8 * h, row = item.row + r;
                if (row >= item.rows) continue;
                const float top = softmax[m].largest[h];
                put_row(p, item, head, r, out[m], h, top == -PC_INFINITY ? top : top * factor[m][h], softmax[m], lane);
            }
        }
    }

    static PC_DEVICE void put_row(const AttendParams &p, const Item &item, int head, int r, float (*out)[4], int h,
                                  float largest, const Softmax &softmax, int lane) {
        const int row = item.row + r, j = lane % 4;
        const float sum = softmax.sum[h], worth = softmax.worth<T>();
        const Total total(largest, sum, sink_of(p, row, head));
        const i64 part = part_row(p, item.part, ROWS / 16, head, r);
#pragma unroll
        for (int n = 0; n < DV / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = column<T>(n, j, e);
                const float x = pc_fused(out[n][2 * h + e], worth, 0);
                if (c >= p.v_head_dim) continue;
                if (item.part >= 0) {
                    p.part_out[part * p.v_head_dim + c] = x;
                } else if (EXACT && !Storage<T>::CODES) {
                    if (e == 0) put_result(p, item, head, row, c, x, out[n][2 * h + 1], total.share, true);
                } else {
                    put_number(p.out, p.out_given, query_row(p, item.token, row, head) * p.v_head_dim + c,
                               pc_fused(x, total.share, 0));
                }
            }
        }
        if (j != 0) return;
        if (item.part >= 0) {
            p.part_weight[2 * part] = largest;
            p.part_weight[2 * part + 1] = sum;
        } else {
            put_lse(p, item, head, row, total.lse);
        }
    }

    static PC_DEVICE void run(const AttendParams &p) { run_items<Many>(p); }
};
