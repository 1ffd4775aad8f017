// What a kernel's translation unit sees of the emulator; primitives.h makes the kernels' own functions of it. Every
// kernel includes this, so it includes nothing itself.
#pragma once

#pragma GCC visibility push(default) // all else in the runtime's library is hidden

namespace emulator {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A line of a kernel; as a default argument, the line of the call.
struct Here {
    const char *file;
    int line;
    static constexpr Here at(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// What a thread of a block may know of itself.
struct Thread {
    int thread, threads; // its number in the block, of how many
    int block, blocks;   // the block's number in the grid, of how many
    u8 *shared;          // memory of the block
    u64 shared_bytes;
};

// The one that runs. It is in the static part of thread-local storage, which is reached without a call.
extern __thread Thread *self __attribute__((tls_model("initial-exec")));

// 16 bytes that move at once: of a copy, of a matrix.
struct Bytes {
    u64 half[2];
};

// ---- Barriers, and operations of all lanes of a warp: they return when all threads of the block, or lanes, have come.

void sync_block(Here here);
void sync_warp(Here here);
float exchange(float x, int distance, Here here);
float value_of_lane(float x, int lane, Here here); // modulo 32
bool any(bool x, Here here);
void load_matrices(u32 *r, const Bytes &row, bool transposed, Here here);
void multiply_f16(float *c, const u32 *a, const u32 *b, Here here);
void multiply_bf16(float *c, const u32 *a, const u32 *b, Here here);

// ---- Copies that arrive when they are waited for.

struct Copy {
    u8 *to;
    Bytes data; // the first `bytes` of it
    int bytes;  // 4 or 16
};

// Note a copy whose source was read; returns what its destination holds until it arrives.
Bytes begin_copy(void *to, const void *from, Bytes data, int bytes, Here here);
void close_group();

// Copies that arrive when at most `pending` groups are left outstanding; what is returned is valid until the next call.
struct Arrivals {
    const Copy *first;
    int count;
};
Arrivals wait_for_copies(int pending);

// End the launch: `address` is outside shared memory, or not a multiple of 16.
[[noreturn]] void refuse_row(const void *address, const char *primitive, Here here);

} // namespace emulator

#pragma GCC visibility pop
