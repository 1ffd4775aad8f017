// Softmax as keys come along: the largest score so far, the sum of weights against it, what earlier results are worth.
//
// A lane has its scores of rows g and g + 8 (h = 0, 1); the largest is that of the whole quad, the sum the lane's own.
#pragma once

PC_DEVICE void take_larger(u32 &x, u32 other) {
    if (other > x) x = other;
}

struct Softmax {
    float largest[2]; // times `factor`, a power of 2; -infinity before the first key
    float sum[2];
    float unit; // of codes with scales: weights are in units of the largest scale of V so far

    PC_DEVICE void begin() {
        largest[0] = largest[1] = -PC_INFINITY;
        sum[0] = sum[1] = 0;
        unit = 0;
    }

    // Turn scores into weights; `correction` says what `out` and the like have to be multiplied by.
    template <int TILES> PC_DEVICE void weigh(float (*s)[4], const float *factor, float *correction) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = largest[h];
#pragma unroll
            for (int n = 0; n < TILES; n++) most = pc_max(most, pc_max(s[n][2 * h], s[n][2 * h + 1]));
            most = pc_max(most, pc_exchange(most, 1));
            most = pc_max(most, pc_exchange(most, 2));
            const float base = most == -PC_INFINITY ? 0 : most * factor[h];
            correction[h] = pc_exp2(largest[h] * factor[h] - base);
            largest[h] = most;
            float all = 0;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[n][e] = pc_exp2(s[n][e] * factor[h] - base);
                    all += s[n][e];
                }
            }
            sum[h] = sum[h] * correction[h] + all;
        }
    }

    // Multiply weights by the scales of V of their tokens, in units of the largest one.
    template <int TILES> PC_DEVICE void scale(float (*s)[4], const float *scales, float *correction, int lane) {
        u32 largest_bits = pc_bits(unit); // scales are not negative; compared as integers, subnormal ones count
        for (int n = 0; n < TILES; n++) {
            for (int e = 0; e < 2; e++) take_larger(largest_bits, pc_bits(scales[n * 8 + lane % 4 * 2 + e]));
        }
        for (int distance = 1; distance < 4; distance *= 2) {
            take_larger(largest_bits, pc_bits(pc_exchange(pc_from_bits(largest_bits), distance)));
        }
        const float most = largest_bits ? pc_from_bits(largest_bits) : 1; // those of a caller's own buffers may be 0
        const float change = pc_divide(unit, most);
        unit = most;
        correction[0] *= change;
        correction[1] *= change;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] *= pc_divide(scales[n * 8 + lane % 4 * 2 + e % 2], most);
        }
    }

    // What a sum of weights times operands has to be multiplied by, to be one of values.
    template <class T> PC_DEVICE float worth() const {
        return Storage<T>::SCALED ? pc_fused(unit, Storage<T>::FACTOR, 0) : 1;
    }

    // Add up the sums of the quad's lanes.
    PC_DEVICE void end() {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += pc_exchange(sum[h], 1);
            sum[h] += pc_exchange(sum[h], 2);
        }
    }
};

// What the weights of a row, relative to 2 ** largest, are worth in the end: `share` times the sum of weights * values
// is the output, `lse` the natural log of the denominator. A sink logit (times log2(e); -infinity: none) joins the
// denominator.
struct Total {
    float share, lse;
    PC_DEVICE Total(float largest, float sum, float sink) {
        const float most = pc_max(largest, sink), base = most == -PC_INFINITY ? 0 : most;
        const float kept = pc_exp2(largest - base), all = sum * kept + pc_exp2(sink - base);
        share = all > 0 ? pc_divide(kept, all) : 0;
        lse = all > 0 ? (base + pc_log2(all)) * LN_2 : -PC_INFINITY;
        if (!(all <= 0 || all > 0)) share = lse = all; // NaN of a key that is seen
    }
};

PC_DEVICE float sink_of(const AttendParams &p, int row, int head) {
    return p.sink_logits ? p.sink_logits[head * p.group + row % p.group] : -PC_INFINITY;
}
