// Products of tiles in shared memory: scores = queries * keys, and out += weights * values, for 16 rows of queries (an
// "m tile") and a number of tokens that is a multiple of 16. On tensor cores, and for float storage on the common ones;
// what a lane holds is the same in both: of scores rows g and g + 8 at tokens 8n + 2j and the next one, g being lane /
// 4, j lane % 4.
#pragma once

// Of 16 columns of an m tile of queries, what a lane needs.
template <class T> struct Queries {
    u32 word[4];
};
template <> struct Queries<float> {
    const float *row[2]; // g and g + 8, from the first of the columns on
};

// `rows`: the m tile in shared memory.
template <class T, int D> PC_DEVICE void load_queries(Queries<T> &q, const u8 *rows, int step, int lane) {
    constexpr int ROW = row_bytes<typename Storage<T>::Operand, D>();
    if constexpr (Storage<T>::TENSOR) {
        pc_load_matrices(q.word, rows + lane % 16 * ROW + (step * 2 + lane / 16) * 16);
    } else {
        for (int h = 0; h < 2; h++) q.row[h] = (const float *)(rows + (lane / 4 + 8 * h) * ROW) + step * 16;
    }
}

// Of 16 tokens' keys, one step of 16 columns (codes: two steps), as right operands: of tokens 0 to 7, and of 8 to 15.
template <class T, int D> struct Keys {
    static constexpr int STEPS = Storage<T>::CODES ? 2 : 1;
    u32 word[4];
    PC_DEVICE void load(const u8 *keys, int step, int lane) {
        const int row = lane % 8 + lane / 16 * 8;
        int chunk = lane / 8 % 2 + (Storage<T>::CODES ? step : 2 * step);
        if (Storage<T>::CODES && chunk >= D / 16) chunk = D / 16 - 1; // the second of an odd number: not used
        pc_load_matrices(word, keys + row * row_bytes<T, D>() + chunk * 16);
    }
    PC_DEVICE void multiply(float (*s)[4], const Queries<T> &q, int which) const {
        typename Storage<T>::Operand type;
        if constexpr (Storage<T>::CODES) {
            for (int n = 0; n < 2; n++) {
                const u32 codes = word[2 * n + which];
                const u32 b[2] = {operands<0, 1>(codes, T{}), operands<2, 3>(codes, T{})};
                pc_multiply(s[n], q.word, b, type);
            }
        } else {
            pc_multiply(s[0], q.word, word, type);
            pc_multiply(s[1], q.word, word + 2, type);
        }
    }
};

template <int D> struct Keys<float, D> {
    static constexpr int STEPS = 1;
    const float *row[4]; // of this lane's tokens, in the order of scores
    PC_DEVICE void load(const u8 *keys, int step, int lane) {
        for (int x = 0; x < 4; x++) {
            const int token = x / 2 * 8 + lane % 4 * 2 + x % 2;
            row[x] = (const float *)(keys + token * row_bytes<float, D>()) + step * 16;
        }
    }
    PC_DEVICE void multiply(float (*s)[4], const Queries<float> &q, int) const {
#pragma unroll 4
        for (int c = 0; c < 16; c++) {
#pragma unroll
            for (int x = 0; x < 4; x++) {
                s[x / 2][x % 2] += q.row[0][c] * row[x][c];
                s[x / 2][2 + x % 2] += q.row[1][c] * row[x][c];
            }
        }
    }
};

// scores[m] = queries of m tile m times keys; `query(m, step)` gives a Queries.
template <class T, int D, int M, int TOKENS, class Query>
PC_DEVICE void multiply_keys(float (&scores)[M][TOKENS / 8][4], Query query, const u8 *keys, int lane) {
    typedef Keys<T, D> K;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
            for (int e = 0; e < 4; e++) scores[m][n][e] = 0;
        }
    }
#pragma unroll(Storage<T>::TENSOR ? D : 1)
    for (int first = 0; first < D / 16; first += K::STEPS) {
        Queries<T> q[M][K::STEPS];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int x = 0; x < K::STEPS; x++) {
                if (first + x < D / 16) q[m][x] = query(m, first + x);
            }
        }
#pragma unroll
        for (int n = 0; n < TOKENS / 16; n++) {
            K k;
            k.load(keys + n * 16 * row_bytes<T, D>(), first, lane);
#pragma unroll
            for (int x = 0; x < K::STEPS; x++) {
                if (first + x >= D / 16) continue;
#pragma unroll
                for (int m = 0; m < M; m++) k.multiply(scores[m] + 2 * n, q[m][x], x);
            }
        }
    }
}

// Weights of 16 tokens, made of two tiles of scores, as a left operand.
template <class T> struct Weights {
    u32 word[4];
    PC_DEVICE void make(const float (*s)[4], int) {
        typename Storage<T>::Operand type;
        word[0] = pc_pack(s[0][0], s[0][1], type);
        word[1] = pc_pack(s[0][2], s[0][3], type);
        word[2] = pc_pack(s[1][0], s[1][1], type);
        word[3] = pc_pack(s[1][2], s[1][3], type);
    }
};

template <> struct Weights<float> {
    const float (*score)[4]; // as they are
    PC_DEVICE void make(const float (*s)[4], int) { score = s; }
};

// out[m] += weights of m tile m times values of 16 tokens.
template <class T, int DV, int M>
PC_DEVICE void multiply_values(float (&out)[M][DV / 8][4], const Weights<T> *weights, const u8 *values, int lane) {
    typename Storage<T>::Operand type;
    const u8 *mine = values + lane % 16 * row_bytes<T, DV>();
    if constexpr (!Storage<T>::TENSOR) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
#pragma unroll 1
            for (int j = 0; j < 4; j++) { // lane j of a quad holds the scores of token t
                const int t = x / 2 * 8 + 2 * j + x % 2;
                const float *row = (const float *)(values + t * row_bytes<T, DV>()) + lane % 4 * 2;
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const float upper = pc_from_lane(weights[m].score[x / 2][x % 2], lane / 4 * 4 + j);
                    const float lower = pc_from_lane(weights[m].score[x / 2][2 + x % 2], lane / 4 * 4 + j);
#pragma unroll
                    for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) out[m][n][e] += (e < 2 ? upper : lower) * row[n * 8 + e % 2];
                    }
                }
            }
        }
    } else if constexpr (Storage<T>::CODES) {
#pragma unroll
        for (int first = 0; first < DV / 16; first += 2) {
            int chunk = first + lane / 16;
            if (chunk >= DV / 16) chunk = DV / 16 - 1;
            u32 codes[4]; // of a chunk: columns 2g and 2g + 1 of tokens 2j and 2j + 1, then of tokens 2j + 8, 2j + 9
            pc_load_matrices_transposed(codes, mine + chunk * 16);
#pragma unroll
            for (int x = 0; x < 2 && first + x < DV / 16; x++) {
                const u32 even[2] = {operands<0, 2>(codes[2 * x], T{}), operands<0, 2>(codes[2 * x + 1], T{})};
                const u32 odd[2] = {operands<1, 3>(codes[2 * x], T{}), operands<1, 3>(codes[2 * x + 1], T{})};
#pragma unroll
                for (int m = 0; m < M; m++) {
                    pc_multiply(out[m][2 * (first + x)], weights[m].word, even, type);
                    pc_multiply(out[m][2 * (first + x) + 1], weights[m].word, odd, type);
                }
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < DV / 16; i++) {
            u32 v[4];
            pc_load_matrices_transposed(v, mine + (2 * i + lane / 16) * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                pc_multiply(out[m][2 * i], weights[m].word, v, type);
                pc_multiply(out[m][2 * i + 1], weights[m].word, v + 2, type);
            }
        }
    }
}

// ---- values that are not finite

// Whether some of the values of 16 tokens are infinite or NaN, for the whole warp.
template <class T, int DV> PC_DEVICE bool any_infinite(const u8 *values, int lane) {
    if (Storage<T>::SCALED) return false; // what has a scale is finite
    bool found = false;
    for (int i = lane; i < 16 * DV; i += 32) {
        const float x = number(((const T *)(values + i / DV * row_bytes<T, DV>()))[i % DV]);
        found = found || !(x - x == 0);
    }
    return pc_any(found);
}

// What multiply_values does, for 16 tokens of which rows see different ones, and values that are not finite: they reach
// only rows that see them, although 0 times infinity is NaN. Bit n * 4 + e of `hidden` says that weights[n][e] is of a
// token that its row does not see.
template <class T, int DV>
PC_DEVICE void multiply_seen(float (&out)[DV / 8][4], const float (*weights)[4], const u32 hidden, const u8 *values,
                             int lane) {
#pragma unroll
    for (int x = 0; x < 4; x++) {
#pragma unroll 1
        for (int j = 0; j < 4; j++) { // lane j of a quad holds the weights of token t
            const int t = x / 2 * 8 + 2 * j + x % 2, holder = lane / 4 * 4 + j;
            const T *row = (const T *)(values + t * row_bytes<T, DV>());
            const u32 theirs = pc_bits(pc_from_lane(pc_from_bits(hidden), holder));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float weight = pc_from_lane(weights[x / 2][2 * h + x % 2], holder);
                const bool seen = !(theirs >> (x / 2 * 4 + 2 * h + x % 2) & 1);
#pragma unroll
                for (int n = 0; n < DV / 8; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        if (seen) out[n][2 * h + e] += weight * number(row[column<T>(n, lane % 4, e)]);
                    }
                }
            }
        }
    }
}
