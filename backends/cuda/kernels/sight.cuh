// Who sees what, and what becomes of a score before softmax.
//
// A key is given by its row coordinate, a query row by its token's. With FULL all variants of the StepLike protocol
// hold; without, every key of an item's span that does not come later than the query is seen.
#pragma once

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

// Of one query row.
struct Query {
    int place;    // row coordinate; NEVER or more: no key comes later
    int index;    // number of its token among the sequence's new ones
    i64 position; // for FULL
    float slope;  // of its head, for FULL
};

template <bool FULL> struct Sight {
    const AttendParams &p;
    const Item &item;
    const i64 *positions; // of the sequence's new tokens, or null
    const u8 *mask;       // their bits, or null
    int tokens;           // new ones
    int low, high;        // keys from low to high, both included, are seen by all of this thread's warp

    PC_DEVICE Sight(const AttendParams &params, const Item &it)
        : p(params), item(it), positions(nullptr), mask(nullptr) {
        tokens = item.rows / p.group;
        low = item.begin;
        high = item.end - 1;
        if (FULL) {
            if (p.positions) positions = p.positions + item.token;
            if (p.mask && item.place < NEVER && p.mask_indptr[item.sequence] < p.mask_indptr[item.sequence + 1]) {
                mask = p.mask + p.mask_indptr[item.sequence];
            }
        }
    }

    // Row `row` of the sequence; rows beyond the last see what the last sees, and count for nothing.
    PC_DEVICE Query query(int row, int head) const {
        const int last = item.rows - 1, r = row < last ? row : last;
        Query q = {item.place + r / p.group, r / p.group, 0, 0};
        if (FULL) {
            q.position = positions ? positions[q.index] : q.place - item.pad;
            if (p.alibi_slopes) q.slope = p.alibi_slopes[head * p.group + r % p.group];
        }
        return q;
    }

    // Take the rows of this thread into account for `low` and `high`; then `agree` has the warp do so.
    PC_DEVICE void narrow(const Query &q) {
        if (q.place < high) high = q.place;
        if (FULL) {
            if ((mask || positions) && item.place - 1 < high) high = item.place - 1;
            i64 first = item.start;
            if (p.window < (i64)1 << 61 && q.position - p.window + 1 + item.pad > first)
                first = q.position - p.window + 1 + item.pad;
            if (first > low) low = first < NEVER ? (int)first : NEVER;
        }
    }

    PC_DEVICE void agree() {
        for (int distance = 4; distance < 32; distance *= 2) {
            const int theirs = (int)pc_bits(pc_exchange(pc_from_bits((u32)high), distance));
            if (theirs < high) high = theirs;
            if (FULL) {
                const int others = (int)pc_bits(pc_exchange(pc_from_bits((u32)low), distance));
                if (others > low) low = others;
            }
        }
    }

    PC_DEVICE i64 position(int key) const {
        return positions && key >= item.place ? positions[key - item.place] : (i64)key - item.pad;
    }

    PC_DEVICE bool seen(const Query &q, int key) const {
        if (key >= item.end) return false;
        if (FULL && mask && key >= item.place) {
            const i64 bit = (i64)q.index * tokens + (key - item.place);
            if (!(mask[bit >> 3] >> (bit & 7) & 1)) return false;
        } else if (key > q.place) {
            return false;
        }
        if (!FULL) return true;
        const i64 at = position(key);
        return at < p.sink_tokens || (key >= item.start && at > q.position - p.window);
    }

    // A product times the scale and log2(e), as FULL attention has it.
    PC_DEVICE float score(const Query &q, int key, float x) const {
        if (p.softcap > 0) x = p.softcap * pc_tanh(x * p.inverse_softcap);
        if (p.alibi_slopes && key < item.end) x += q.slope * (float)(position(key) - q.position);
        return x;
    }
};

// Products of a tile of tokens, from `begin` on, become scores: scaled by what belongs to their key, changed as FULL
// attention has it, -infinity where they are not seen. Returns the bits n * 4 + e of hidden ones among the first 16
// tokens.
template <class T, bool FULL, int TILES>
PC_DEVICE u32 judge(const Sight<FULL> &sight, const Query *rows, const float *product, float (*s)[4],
                    const float *scales, int begin, bool alike, int lane) {
    u32 hidden = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = n * 8 + lane % 4 * 2 + e % 2;
            if (Storage<T>::SCALED) s[n][e] *= scales[i];
            if (FULL) s[n][e] = sight.score(rows[e / 2], begin + i, s[n][e] * product[e / 2]);
            if (!alike && !sight.seen(rows[e / 2], begin + i)) {
                s[n][e] = -PC_INFINITY;
                hidden |= 1u << ((n * 4 + e) & 31);
            }
        }
    }
    return hidden;
}

// The same bits, found again.
template <bool FULL> PC_DEVICE u32 hidden_of(const Sight<FULL> &sight, const Query *rows, int begin, int lane) {
    u32 hidden = 0;
    for (int x = 0; x < 8; x++) {
        if (!sight.seen(rows[x % 4 / 2], begin + x / 4 * 8 + lane % 4 * 2 + x % 2)) hidden |= 1u << x;
    }
    return hidden;
}
