// Attention of up to 16 query rows of a sequence, which read many keys: decoding, short drafts.
//
//   a block      = one item, one KV head: 16 query rows (new tokens x query heads of the group), held by each warp
//   warp w of W  = tokens 16w, 16(w + W), ...: K and V of 16 tokens in each stage of its own ring of copies
//   in the end   = the warps' results are merged in shared memory
//
// In the loop warps wait for nobody but their own copies.
#pragma once

template <class T, int D, int DV, int WARPS, bool EXACT, bool FULL> struct Few {
    typedef typename Storage<T>::Operand Operand;
    static constexpr int K_BYTES = 16 * row_bytes<T, D>(), V_BYTES = 16 * row_bytes<T, DV>();
    static constexpr int SCALE_BYTES = Storage<T>::SCALED ? 2 * 16 * 4 : 0;
    static constexpr int STAGE = K_BYTES + V_BYTES + SCALE_BYTES, STAGES = 2;
    static constexpr bool HELD = Storage<T>::TENSOR && D <= 96; // queries stay in registers, else they are read anew
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int OFFSET_BYTES = 16 * (int)sizeof(Offset);
    static constexpr int RING = STAGES * STAGE + OFFSET_BYTES;
    static constexpr int QUERY_BYTES = 16 * row_bytes<Operand, D>() + 16 * 4;
    static constexpr int MERGE_BYTES = WARPS * 16 * 3 * 4 + 16 * DV * 4;
    static constexpr int RINGS = WARPS * RING > MERGE_BYTES ? WARPS *RING : MERGE_BYTES;
    static constexpr int SHARED = QUERY_BYTES + RINGS;
    static_assert(STAGE % 16 == 0 && QUERY_BYTES % 16 == 0, "copies of 16 bytes need aligned places");

    // A warp's ring: copies of its next 16 tokens, and the blocks of those after.
    struct Ring {
        const AttendParams &p;
        const Item &item;
        Locator at;
        u8 *stages;
        Offset *offsets;
        int warp, lane, count; // of the span's pieces of 16 tokens
        int next;              // block of token lane % 16 of the piece to be copied next

        PC_DEVICE Ring(const AttendParams &params, const Item &it, int head, u8 *memory, int w, int l)
            : p(params), item(it), at(params, it, head), stages(memory), offsets((Offset *)(memory + STAGES * STAGE)),
              warp(w), lane(l), count((it.end - it.begin + 15) / 16), next(0) {}
        PC_DEVICE u8 *keys(int stage) { return stages + stage * STAGE; }
        PC_DEVICE u8 *values(int stage) { return keys(stage) + K_BYTES; }
        PC_DEVICE float *scales(int stage) { return (float *)(keys(stage) + K_BYTES + V_BYTES); }
        PC_DEVICE int token(int piece) { return item.begin + piece * 16 + lane % 16; }
        PC_DEVICE void look_up(int piece) {
            if (piece < count && token(piece) < item.end) next = at.block(token(piece));
        }
        PC_DEVICE void copy(int piece, int stage) {
            if (piece < count) {
                const int begin = item.begin + piece * 16;
                const int mine = token(piece);
                if (lane < 16) locate(at, offsets, lane, mine, next, mine < item.end);
                pc_sync_warp(); // the offsets are there, and nobody reads this stage any more
                if (Storage<T>::SCALED && lane < 16)
                    copy_scales(at, scales(stage), 16, lane, mine, next, mine < item.end);
                copy_rows<T, D, EXACT, 0, 16, 32>(p, keys(stage), offsets, item.end - begin, lane);
                copy_rows<T, DV, EXACT, 1, 16, 32>(p, values(stage), offsets, item.end - begin, lane);
                pc_sync_warp(); // nobody reads the offsets any more
            }
            pc_copy_commit();
        }
    };

    static PC_DEVICE void attend(const AttendParams &p, const Item &item, int head, u8 *shared) {
        const int lane = pc_thread() % 32, warp = pc_thread() / 32;
        float *factors = (float *)(shared + 16 * row_bytes<Operand, D>());
        stage_queries<T, D>(p, item, head, shared, factors, 16);
        pc_sync_block();
        Queries<T> held[HELD ? D / 16 : 1];
#pragma unroll
        for (int i = 0; HELD && i < D / 16; i++) load_queries<T, D>(held[i], shared, i, lane);
        auto query = [&](int, int step) {
            Queries<T> q;
            if constexpr (HELD) {
                q = held[step];
            } else {
                load_queries<T, D>(q, shared, step, lane);
            }
            return q;
        };

        Sight<FULL> sight(p, item);
        Query rows[2];
        float factor[2], product[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = lane / 4 + 8 * h;
            rows[h] = sight.query(item.row + r, head);
            sight.narrow(rows[h]);
            const float all = Storage<T>::CODES ? p.scale * factors[r] : p.scale;
            factor[h] = FULL ? 1 : all;
            product[h] = FULL ? all : 1;
        }
        sight.agree();

        Ring ring(p, item, head, shared + QUERY_BYTES + warp * RING, warp, lane);
        Softmax softmax;
        softmax.begin();
        float out[1][DV / 8][4];
#pragma unroll
        for (int n = 0; n < DV / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) out[0][n][e] = 0;
        }
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            ring.look_up(warp + s * WARPS);
            ring.copy(warp + s * WARPS, s);
        }
        ring.look_up(warp + (STAGES - 1) * WARPS);
        int stage = 0;
        for (int piece = warp; piece < ring.count; piece += WARPS) {
            ring.copy(piece + (STAGES - 1) * WARPS, (stage + STAGES - 1) % STAGES);
            ring.look_up(piece + STAGES * WARPS);
            pc_copy_wait<STAGES - 1>();
            pc_sync_warp(); // everyone's copies are there
            const int begin = item.begin + piece * 16;
            float s[1][2][4];
            multiply_keys<T, D, 1, 16>(s, query, ring.keys(stage), lane);
            const bool alike = begin >= sight.low && begin + 15 <= sight.high;
            const u32 hidden = judge<T, FULL, 2>(sight, rows, product, s[0], ring.scales(stage), begin, alike, lane);
            float correction[2];
            softmax.template weigh<2>(s[0], factor, correction);
            if (Storage<T>::SCALED) softmax.template scale<2>(s[0], ring.scales(stage) + 16, correction, lane);
#pragma unroll
            for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) out[0][n][e] *= correction[e / 2];
            }
            if (!alike && any_infinite<T, DV>(ring.values(stage), lane)) {
                multiply_seen<T, DV>(out[0], s[0], hidden, ring.values(stage), lane);
            } else {
                Weights<T> weights;
                weights.make(s[0], lane);
                multiply_values<T, DV, 1>(out, &weights, ring.values(stage), lane);
            }
            stage = (stage + 1) % STAGES;
        }
        pc_copy_wait<0>();
        softmax.end();
        finish(p, item, head, shared + QUERY_BYTES, out[0], softmax, factor);
    }

    // Merge the warps' results, and write them.
    static PC_DEVICE void finish(const AttendParams &p, const Item &item, int head, u8 *shared, float (*out)[4],
                                 const Softmax &softmax, const float *factor) {
        const int lane = pc_thread() % 32, warp = pc_thread() / 32;
        float *largest = (float *)shared;   // [WARPS][16]
        float *sums = largest + WARPS * 16; // [WARPS][16]
        float *shares = sums + WARPS * 16;  // [WARPS][16], what a warp's weights are worth against the largest of all
        float *all = shares + WARPS * 16;   // [16][DV]
        pc_sync_block();                    // the rings are free
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = lane / 4 + 8 * h;
            if (lane % 4 == 0) {
                largest[warp * 16 + r] =
                    softmax.largest[h] == -PC_INFINITY ? -PC_INFINITY : softmax.largest[h] * factor[h];
                sums[warp * 16 + r] = softmax.sum[h];
            }
        }
        for (int i = pc_thread(); i < 16 * DV; i += THREADS) all[i] = 0;
        pc_sync_block();
        if (pc_thread() < 16) {
            const int r = pc_thread();
            float most = -PC_INFINITY, sum = 0;
            for (int w = 0; w < WARPS; w++) most = pc_max(most, largest[w * 16 + r]);
            for (int w = 0; w < WARPS; w++) {
                shares[w * 16 + r] = pc_exp2(largest[w * 16 + r] - (most == -PC_INFINITY ? 0 : most));
                sum += sums[w * 16 + r] * shares[w * 16 + r];
            }
            largest[r] = most; // of all warps, from here on
            sums[r] = sum;
        }
        pc_sync_block();
        for (int w = 0; w < WARPS; w++) { // one after the other: sums have an order
            if (w == warp) {
#pragma unroll
                for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int r = lane / 4 + e / 2 * 8;
                        const float share = shares[w * 16 + r];
                        float &sum = all[r * DV + column<T>(n, lane % 4, e % 2)];
                        if (share > 0) sum = pc_fused(out[n][e] * share, softmax.worth<T>(), sum);
                    }
                }
            }
            pc_sync_block();
        }
        for (int i = pc_thread(); i < 16 * (DV / 2); i += THREADS) {
            const int r = i / (DV / 2), c = i % (DV / 2) * 2, row = item.row + r;
            if (row >= item.rows || c >= p.v_head_dim) continue;
            const float x = all[r * DV + c], y = all[r * DV + c + 1];
            if (item.part < 0) {
                const Total total(largest[r], sums[r], sink_of(p, row, head));
                put_result(p, item, head, row, c, x, y, total.share, EXACT);
                if (c == 0) put_lse(p, item, head, row, total.lse);
            } else {
                const i64 at = part_row(p, item.part, 1, head, r);
                p.part_out[at * p.v_head_dim + c] = x;
                if (c + 1 < p.v_head_dim) p.part_out[at * p.v_head_dim + c + 1] = y;
                if (c == 0) {
                    p.part_weight[2 * at] = largest[r];
                    p.part_weight[2 * at + 1] = sums[r];
                }
            }
        }
    }

    static PC_DEVICE void run(const AttendParams &p) { run_items<Few>(p); }
};
