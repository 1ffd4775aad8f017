// Rows of heads on their way into shared memory: K and V of tokens that lie in the blocks of a sequence, and queries.
#pragma once

// Where a token's K and V are, in elements from the pool's begin.
struct Offset {
    i64 k, v;
};

// The block of each of a sequence's tokens, and what lies between there and a head.
struct Locator {
    const AttendParams &p;
    const int *table; // the sequence's
    int head;
    PC_DEVICE Locator(const AttendParams &params, const Item &item, int kv_head)
        : p(params), table(params.tables + (i64)item.sequence * params.table_width), head(kv_head) {}
    PC_DEVICE int logical(int token) const {
        return (int)(pc_high_product(2 * (u32)token, p.block_magic) >> p.block_shift);
    }
    PC_DEVICE int block(int token) const { return pc_load(table + logical(token)); }
    PC_DEVICE Offset offset(int block, int within) const {
        return {(i64)block * p.k_block + (i64)within * p.k_slot + (i64)head * p.k_head,
                (i64)block * p.v_block + (i64)within * p.v_slot + (i64)head * p.v_head};
    }
    PC_DEVICE i64 scale_offset(int block, int within) const {
        return (i64)block * p.s_block + (i64)within * p.s_slot + (i64)head * p.s_head;
    }
};

// Of token i of a tile: where its rows are in the pool. Its logical block's id was read before.
PC_DEVICE void locate(const Locator &at, Offset *offsets, int i, int token, int block, bool valid) {
    const int within = valid ? token - at.logical(token) * at.p.block_size : 0;
    offsets[i] = at.offset(valid ? block : 0, within);
}

// Likewise copy its scales, K's into the first half.
PC_DEVICE void copy_scales(const Locator &at, float *scales, int tile, int i, int token, int block, bool valid) {
    const int within = valid ? token - at.logical(token) * at.p.block_size : 0;
    const i64 offset = at.scale_offset(valid ? block : 0, within);
    pc_copy4(scales + i, at.p.k_scales + offset, valid);
    pc_copy4(scales + tile + i, at.p.v_scales + offset, valid);
}

// Copy rows of up to D elements, of K (WHICH 0) or V (1), by some threads together; `valid` of `tile` rows are there,
// the others become zeros. Without EXACT a head has fewer than D elements, or is not aligned to 16 bytes.
template <class T, int D, bool EXACT, int WHICH, int TILE, int THREADS>
PC_DEVICE void copy_rows(const AttendParams &p, u8 *to, const Offset *offsets, int valid, int thread) {
    const T *from = (const T *)(WHICH ? p.v : p.k);
    if (EXACT) {
        constexpr int CHUNK = 16 / (int)sizeof(T), CHUNKS = D / CHUNK, ALL = TILE * CHUNKS;
        constexpr int TIMES = (ALL + THREADS - 1) / THREADS;
#pragma unroll(TIMES > 4 ? 4 : TIMES) // more would keep too many addresses in registers
        for (int i = 0; i < TIMES; i++) {
            const int x = thread + i * THREADS, row = x / CHUNKS, chunk = x % CHUNKS;
            if (ALL % THREADS && x >= ALL) break;
            const i64 offset = WHICH ? offsets[row].v : offsets[row].k;
            pc_copy16(to + row * row_bytes<T, D>() + chunk * 16, from + offset + chunk * CHUNK, row < valid);
        }
    } else {
        const int width = WHICH ? p.v_head_dim : p.head_dim;
        for (int x = thread; x < TILE * D; x += THREADS) {
            const int row = x / D, c = x % D;
            T *place = (T *)(to + row * row_bytes<T, D>()) + c;
            if (row < valid && c < width) {
                *place = from[(WHICH ? offsets[row].v : offsets[row].k) + c];
            } else {
                *place = T{};
            }
        }
    }
}

// The row of q and out that belongs to a query row of a sequence.
PC_DEVICE i64 query_row(const AttendParams &p, int token, int row, int head) {
    return (i64)(token + row / p.group) * ((i64)p.kv_heads * p.group) + (i64)head * p.group + row % p.group;
}

// Bring a tile of queries into shared memory as operands, times the sign of the scale. Queries of codes are divided by
// a power of two, so that they fit f16 whatever their size: `factors` takes it. All threads of a block come here;
// others see the result after a barrier.
template <class T, int D>
PC_DEVICE void stage_queries(const AttendParams &p, const Item &item, int head, u8 *rows, float *factors, int tile) {
    typedef typename Storage<T>::Operand Operand;
    const int lane = pc_thread() % 32, warps = pc_threads() / 32;
    for (int r = pc_thread() / 32; r < tile; r += warps) {
        Operand *to = (Operand *)(rows + r * row_bytes<Operand, D>());
        const bool valid = item.row + r < item.rows;
        const i64 from = valid ? query_row(p, item.token, item.row + r, head) * p.head_dim : 0;
        float inverse = p.sign;
        if (Storage<T>::CODES) {
            float largest = 0;
            for (int c = lane; valid && c < p.head_dim; c += 32) {
                const float x = given_number(p.q, p.q_given, from + c);
                largest = pc_max(largest, pc_max(x, -x));
            }
            for (int distance = 16; distance; distance /= 2) largest = pc_max(largest, pc_exchange(largest, distance));
            const u32 exponent = pc_bits(largest) >> 23; // largest is below 2 ** (exponent - 126)
            if (exponent > 2 && exponent < 253) {
                inverse *= pc_from_bits((253 - exponent) << 23);
                if (lane == 0) factors[r] = pc_from_bits((exponent + 1) << 23) * Storage<T>::FACTOR;
            } else if (lane == 0) {
                factors[r] = Storage<T>::FACTOR;
            }
        }
        for (int c = lane; c < D; c += 32) {
            const float x = valid && c < p.head_dim ? given_number(p.q, p.q_given, from + c) * inverse : 0;
            if constexpr (sizeof(Operand) == 4) {
                to[c] = x;
            } else {
                to[query_place<T>(c)] = Operand{(u16)pc_pack(x, 0, Operand{})};
            }
        }
    }
}
