// New tokens' K and V on their way into the pool: rounded to what it stores, with a scale per token and head for codes.
#pragma once

PC_DEVICE void store_number(float *to, float x) { *to = x; }
PC_DEVICE void store_number(f16 *to, float x) { *to = rounded_f16(x); }
PC_DEVICE void store_number(bf16 *to, float x) { *to = rounded_bf16(x); }
PC_DEVICE void store_number(i8 *to, float x) { *to = (i8)pc_round(x); }

// To nearest even: from 2 ** -6 on a mantissa of 3 bits, below multiples of 2 ** -9; at most 448 in size.
PC_DEVICE void store_number(e4m3 *to, float x) {
    const u32 bits = pc_bits(x), sign = bits >> 24 & 0x80;
    const float size = x < 0 ? -x : x;
    const u32 size_bits = bits & 0x7fffffff;
    const u32 rounded = (size_bits + 0x7ffff + (size_bits >> 20 & 1)) >> 20; // exponent, biased by 127, and 3 bits
    *to = e4m3{(u8)(sign | (size < 0.015625f ? (u32)pc_round(size * 512) : rounded - (120 << 3)))};
}

// To nearest even: from 2 ** -14 on a mantissa of 2 bits, below multiples of 2 ** -16; or infinity.
PC_DEVICE void store_number(e5m2 *to, float x) {
    const u32 bits = pc_bits(x), sign = bits >> 24 & 0x80, size_bits = bits & 0x7fffffff;
    const u32 rounded = (size_bits + 0xfffff + (size_bits >> 21 & 1)) >> 21; // exponent, biased by 127, and 2 bits
    u32 code = rounded - (112 << 2);
    if (size_bits < 113u << 23) code = (u32)pc_round(pc_from_bits(size_bits) * 65536);
    if (size_bits >= 113u << 23 && code > 0x7c) code = 0x7c;
    if (size_bits > 0x7f800000) code = 0x7e; // NaN
    *to = e5m2{(u8)(sign | code)};
}

template <class T> PC_DEVICE float largest_code(T) { return sizeof(T) > 1 ? 1 : 127; }
PC_DEVICE float largest_code(e4m3) { return 448; }

// A warp stores a head of a token. The scale is absmax / the largest code, 1 where that is 0; what is stored is x /
// scale. What is not finite, where callers could not be refused, has no say in it: infinity becomes the largest code,
// NaN becomes 0.
template <class T>
PC_DEVICE void store_head(T *to, float *scale_to, const void *from, int given, i64 at, int width, int lane) {
    if (!Storage<T>::SCALED) {
        if (given == Storage<T>::GIVEN) { // all bits as they are
            for (int c = lane; c < width; c += 32) to[c] = ((const T *)from)[at + c];
        } else {
            for (int c = lane; c < width; c += 32) store_number(to + c, given_number(from, given, at + c));
        }
        return;
    }
    // Sizes are compared as integers: comparisons of floats take subnormal ones for 0 on a GPU.
    u32 largest = 0;
    for (int c = lane; c < width; c += 32) {
        const u32 size = pc_bits(given_number(from, given, at + c)) & 0x7fffffff;
        if (size < 0x7f800000) take_larger(largest, size);
    }
    for (int distance = 16; distance; distance /= 2) {
        take_larger(largest, pc_bits(pc_exchange(pc_from_bits(largest), distance)));
    }
    const float most = largest_code(T{});
    float scale = pc_divide(pc_from_bits(largest), most);
    if (pc_bits(scale) == 0) scale = 1;
    for (int c = lane; c < width; c += 32) {
        const float x = pc_divide(given_number(from, given, at + c), scale);
        store_number(to + c, x > most ? most : x < -most ? -most : x == x ? x : 0);
    }
    if (lane == 0) *scale_to = scale;
}

template <class T> PC_DEVICE void run_store(const StoreParams &p) {
    const int lane = pc_thread() % 32, warps = pc_threads() / 32;
    const i64 heads = p.tokens * p.kv_heads, step = (i64)pc_blocks() * warps;
    for (i64 i = (i64)pc_block() * warps + pc_thread() / 32; i < heads; i += step) {
        const int head = (int)(i % p.kv_heads);
        const i64 slot = p.slots[i / p.kv_heads], block = slot / p.block_size, within = slot % p.block_size;
        if (slot < 0) continue; // a workspace with fewer tokens than it has room for
        const i64 scale = block * p.s_block + within * p.s_slot + head * p.s_head;
        store_head((T *)p.k_pool + block * p.k_block + within * p.k_slot + head * p.k_head, p.k_scales + scale, p.k,
                   p.k_given, i * p.head_dim, p.head_dim, lane);
        store_head((T *)p.v_pool + block * p.v_block + within * p.v_slot + head * p.v_head, p.v_scales + scale, p.v,
                   p.v_given, i * p.v_head_dim, p.v_head_dim, lane);
    }
}
