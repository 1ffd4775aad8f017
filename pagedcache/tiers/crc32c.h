/* CRC-32C (Castagnoli; RFC 3720, appendix B.4): reflected polynomial 0x82F63B78, all ones before and after.
 *
 * x86-64 and aarch64 have an instruction for it that takes 8 bytes a cycle but answers three cycles later. So three
 * stretches of LANE bytes are taken side by side, and put together: the CRC of a stretch followed by LANE zero bytes is
 * a linear map of its CRC, kept as four tables of 256 (pc_lane). Elsewhere a table takes one byte at a time.
 */
#ifndef PAGEDCACHE_CRC32C_H
#define PAGEDCACHE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define PC_CRC_TARGET __attribute__((target("sse4.2")))
#define PC_CRC_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define PC_CRC_1(crc, byte) _mm_crc32_u8((crc), (byte))
#define PC_HAS_CRC() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define PC_CRC_TARGET __attribute__((target("+crc")))
#define PC_CRC_8(crc, word) __crc32cd((crc), (word))
#define PC_CRC_1(crc, byte) __crc32cb((crc), (byte))
#define PC_HAS_CRC() ((getauxval(AT_HWCAP) >> 7) & 1) /* HWCAP_CRC32 */
#endif

enum { PC_LANE = 2048 }; /* bytes; three of them are in the first cache together */

static const uint32_t PC_CRC_POLYNOMIAL = 0x82F63B78u;
static uint32_t pc_bytes[256];   /* what one byte does to a CRC of 0 */
static uint32_t pc_lane[4][256]; /* what PC_LANE zero bytes do to each byte of a CRC */
static int pc_crc_is_fast;

static uint32_t pc_crc_table(uint32_t crc, const uint8_t *data, size_t n) {
    for (; n > 0; n--, data++) crc = pc_bytes[(crc ^ *data) & 0xFF] ^ (crc >> 8);
    return crc;
}

/* Fills the tables; before any other call, once. `allow_fast` 0: without the instruction, for tests. */
static void pc_crc_init(int allow_fast) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ PC_CRC_POLYNOMIAL : crc >> 1;
        pc_bytes[byte] = crc;
    }
    uint32_t basis[32]; /* of each bit of a CRC, after PC_LANE zero bytes */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (int i = 0; i < PC_LANE; i++) crc = pc_bytes[crc & 0xFF] ^ (crc >> 8);
        basis[bit] = crc;
    }
    for (int place = 0; place < 4; place++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) crc ^= basis[8 * place + bit];
            pc_lane[place][byte] = crc;
        }
#ifdef PC_CRC_TARGET
    pc_crc_is_fast = allow_fast && PC_HAS_CRC();
#else
    (void)allow_fast;
#endif
}

#ifdef PC_CRC_TARGET
static inline uint32_t pc_over_lane(uint32_t crc) {
    return pc_lane[0][crc & 0xFF] ^ pc_lane[1][crc >> 8 & 0xFF] ^ pc_lane[2][crc >> 16 & 0xFF] ^ pc_lane[3][crc >> 24];
}

static inline uint64_t pc_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

PC_CRC_TARGET static uint32_t pc_crc_fast(uint32_t crc, const uint8_t *data, size_t n) {
    for (; n >= 3 * PC_LANE; n -= 3 * PC_LANE, data += 3 * PC_LANE) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < PC_LANE; i += 8) {
            crc = PC_CRC_8(crc, pc_word(data + i));
            second = PC_CRC_8(second, pc_word(data + PC_LANE + i));
            third = PC_CRC_8(third, pc_word(data + 2 * PC_LANE + i));
        }
        crc = pc_over_lane(pc_over_lane(crc) ^ second) ^ third;
    }
    for (; n >= 8; n -= 8, data += 8) crc = PC_CRC_8(crc, pc_word(data));
    for (; n > 0; n--, data++) crc = PC_CRC_1(crc, *data);
    return crc;
}
#endif

/* The CRC of what `crc` is the CRC of (0 for nothing), followed by these bytes. */
static uint32_t pc_crc32c(uint32_t crc, const void *data, size_t n) {
#ifdef PC_CRC_TARGET
    if (pc_crc_is_fast) return ~pc_crc_fast(~crc, data, n);
#endif
    return ~pc_crc_table(~crc, data, n);
}

#endif
