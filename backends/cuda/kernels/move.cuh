// Bytes from one place to another: blocks and slots within a pool, and between it and compact records.
#pragma once

// A block of threads moves the heads of one token, in units of U.
template <class U> PC_DEVICE void run_move(const MoveParams &p) {
    const int units = p.bytes / (int)sizeof(U);
    const i64 works = (i64)p.arrays * p.count * p.tokens;
    for (i64 work = pc_block(); work < works; work += pc_blocks()) {
        const i64 t = work % p.tokens, i = work / p.tokens % p.count, array = work / p.tokens / p.count;
        const u8 *from = (const u8 *)p.sources[array] + p.source[i] + t * p.source_token;
        u8 *to = (u8 *)p.destinations[array] + p.destination[i] + t * p.destination_token;
        for (int x = pc_thread(); x < p.heads * units; x += pc_threads()) {
            const i64 head = x / units, unit = x % units;
            ((U *)(to + head * p.destination_head))[unit] = ((const U *)(from + head * p.source_head))[unit];
        }
    }
}
