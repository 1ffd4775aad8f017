/* SipHash-1-3 of one block of token ids, keyed with the cache's secret and chained to the block before.
 *
 * J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012. Without the key nobody can
 * craft prompts whose blocks collide, so that the prefix index can't be made slow from outside. One
 * compression and three finalisation rounds suffice for a hash table (Rust and Python use the same).
 * Two tokens make one 64-bit word by arithmetic, not by memory layout: the result is the same on any
 * byte order. The number of tokens enters the start, so that no two lengths share a message; the tag of the
 * block before comes last, so that a processor can absorb a block's tokens before it knows that tag.
 */
#ifndef PAGEDCACHE_SIPHASH_H
#define PAGEDCACHE_SIPHASH_H
#include <stdint.h>

typedef struct {
    uint64_t k0, k1; /* the secret */
} pc_secret;

static inline uint64_t pc_rotl64(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

static inline void pc_sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = pc_rotl64(v[1], 13) ^ v[0];
    v[3] = pc_rotl64(v[3], 16) ^ v[2];
    v[0] = pc_rotl64(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = pc_rotl64(v[1], 17) ^ v[2];
    v[3] = pc_rotl64(v[3], 21) ^ v[0];
    v[2] = pc_rotl64(v[2], 32);
}

static inline void pc_sip_absorb(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    pc_sip_round(v);
    v[0] ^= word;
}

/* Tag of the block that holds tokens[0..count) after the block with tag `before` (0: the first block). */
static inline __attribute__((always_inline)) uint64_t pc_tag_of(
    pc_secret secret, uint64_t before, const int32_t *tokens, int32_t count) {
    uint64_t v[4] = {secret.k0 ^ (uint64_t)(uint32_t)count ^ 0x736f6d6570736575ULL, secret.k1 ^ 0x646f72616e646f6dULL,
                     secret.k0 ^ 0x6c7967656e657261ULL, secret.k1 ^ 0x7465646279746573ULL};
    int32_t i = 0;
    for (; i + 2 <= count; i += 2)
        pc_sip_absorb(v, (uint64_t)(uint32_t)tokens[i] | (uint64_t)(uint32_t)tokens[i + 1] << 32);
    if (i < count)
        pc_sip_absorb(v, (uint64_t)(uint32_t)tokens[i]);
    pc_sip_absorb(v, before);
    v[2] ^= 0xff;
    pc_sip_round(v);
    pc_sip_round(v);
    pc_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The same; the usual block size gets code of its own, unrolled. */
static inline uint64_t pc_block_tag(pc_secret secret, uint64_t before, const int32_t *tokens, int32_t count) {
    return count == 16 ? pc_tag_of(secret, before, tokens, 16) : pc_tag_of(secret, before, tokens, count);
}

#endif
