// A block of threads at work: one fiber for each, which runs until it has to wait for others, then switches to another.
//
//   Block    ready: a bit per warp with lanes that can go on        arrived: threads in the barrier
//   Warp     ready: a bit per lane that can go on                   arrived: a bit per lane in the same operation
//   Fiber    a thread: its stack, what it waits in, its copies
//
// The last lane to come to an operation does it for all. Nothing is searched: the next thread is a bit of a word. A
// failed check writes a message and leaves the fibers where they are; they are started anew for the next block.
#pragma once

#include <vector>

#include "fiber.h"
#include "runtime.h"

namespace emulator {

enum Order { FORWARD, REVERSE, RANDOM }; // in backends/cuda_emulated/_emulator.py too

struct Launch { // likewise
    void (*enter)(const void *params);
    const void *params;
    u64 seed;
    int grid, threads, shared; // blocks, threads of each, bytes of each
    int order, late;           // `late`: copies do not arrive before they are waited for
    int workers;               // threads of the host, at most
};

struct Operation { // of all lanes of a warp
    const char *name;
    void (*evaluate)(void **arguments); // of 32 lanes
    bool ordering;                      // what lanes did before it is seen by the others after it
};

// Numbers for random orders; the standard library's are the slowest part of it to compile.
struct Random {
    typedef u64 result_type;
    u64 state;
    explicit Random(u64 seed) : state(seed * 0x9e3779b97f4a7c15 | 1) {}
    static constexpr u64 min() { return 1; }
    static constexpr u64 max() { return ~0ull; }
    u64 operator()() { // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
};

// Threads that came to a barrier. For thread sanitizer, each generation of it has another place than the next.
struct Generation {
    u8 places[2] = {};
    u32 number = 0;
    u8 *place() { return places + number % 2; }
};

struct Fiber;

struct Warp {
    Fiber *lanes; // 32
    u32 bit;      // its own, in Block::ready_
    u32 ready, arrived, live;
    const Operation *operation; // of those that have arrived
    Here here;                  // likewise
    void *arguments[32];
    Generation generation;
};

// Copies of a thread, in the order of issue.
class Copies {
  public:
    void clear();
    void add(const Copy &copy);
    void close_group();
    Arrivals wait(int pending);
    int outstanding() const { return (int)(copies_.size() - first_); }

  private:
    std::vector<Copy> copies_; // those before first_ have arrived
    std::vector<size_t> ends_; // of closed groups that have not, in copies_
    size_t first_ = 0;
};

class Block;

struct Fiber : Thread {
    Context context;
    Block *home;
    Warp *warp;
    u32 lane;
    const char *waits_in; // the primitive, in the last place where it had to wait
    Here here;            // that place
    Here copied;          // where its last copy is
    bool done;
    Copies copies;
};

class Block {
  public:
    explicit Block(int threads);
    ~Block();
    int threads() const { return (int)fibers_.size(); }

    // Run block `number` of the grid. Returns nullptr, or a message.
    const char *run(const Launch &launch, int number);

    // What follows is called by the fiber that runs.

    void sync(Here here);
    void meet(const Operation &operation, void *argument, Here here);
    Bytes begin_copy(void *to, const void *from, Bytes data, int bytes, Here here);
    Arrivals wait_for_copies(int pending);
    [[noreturn]] void fail(const char *primitive, Here here, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

  private:
    static void main(); // of each fiber
    void prepare(const Launch &launch, int number);
    u32 pick(u32 mask);
    void wake_all();
    void stop(Fiber &me);  // it can't go on
    void go_on(Fiber &me); // with the next that can
    void leave(Fiber &me); // it is done with the kernel
    void end_run();
    [[noreturn]] void fail_deadlocked();

    std::vector<Warp> warps_;
    std::vector<Fiber> fibers_;
    Stacks stacks_;
    Context host_;
    const Launch *launch_ = nullptr;
    u64 host_thread_ = 0; // of the host, that fibers were started by; 0 where they have to be started again
    u32 ready_ = 0;
    int done_ = 0;
    int arrived_ = 0;
    Here barrier_ = {}; // of those that have arrived
    Generation generation_;
    u8 begin_ = 0, end_ = 0; // places for thread sanitizer
    Random random_{0};
    u8 *shared_ = nullptr;
    int shared_bytes_ = -1;
    char message_[2048];
};

} // namespace emulator
