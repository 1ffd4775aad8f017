// The grid, and the functions of runtime.h.

#include "runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "block.h"
#include "matrices.h"

namespace emulator {
namespace {

// Blocks that are not in use: stacks are kept from launch to launch.
class Pool {
  public:
    std::unique_ptr<Block> take(int threads) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (std::unique_ptr<Block> &block : blocks_) {
            if (block->threads() != threads) continue;
            std::swap(block, blocks_.back());
            std::unique_ptr<Block> found = std::move(blocks_.back());
            blocks_.pop_back();
            return found;
        }
        return std::make_unique<Block>(threads);
    }
    void give_back(std::unique_ptr<Block> block) {
        const std::lock_guard<std::mutex> lock(mutex_);
        blocks_.push_back(std::move(block));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Block>> blocks_;
};

Pool pool;

class Grid {
  public:
    Grid(const Launch &launch, char *message, size_t size) : launch_(launch), message_(message), size_(size) {
        numbers_.resize((size_t)launch.grid);
        std::iota(numbers_.begin(), numbers_.end(), 0);
        if (launch.order == REVERSE) std::reverse(numbers_.begin(), numbers_.end());
        if (launch.order == RANDOM) std::shuffle(numbers_.begin(), numbers_.end(), Random(launch.seed));
    }

    void run() {
        std::vector<std::thread> others;
        try {
            for (int i = 1; i < std::min(launch_.workers, launch_.grid); i++) others.emplace_back([this] { work(); });
        } catch (const std::system_error &) { // as many as there can be
        }
        work();
        for (std::thread &other : others) other.join();
    }

  private:
    void work() {
        try {
            std::unique_ptr<Block> block = pool.take(launch_.threads);
            for (int i = next_++; i < launch_.grid && !failed_; i = next_++) {
                if (const char *message = block->run(launch_, numbers_[(size_t)i])) fail(message);
            }
            pool.give_back(std::move(block));
        } catch (const std::exception &error) {
            fail(error.what());
        }
    }

    void fail(const char *message) {
        if (!failed_.exchange(true)) snprintf(message_, size_, "%s", message);
    }

    const Launch &launch_;
    char *message_;
    size_t size_;
    std::vector<int> numbers_; // of blocks, in the order in which they are begun
    std::atomic<int> next_{0};
    std::atomic<bool> failed_{false};
};

Block &home() { return *static_cast<Fiber *>(self)->home; }

struct Lent { // argument of a lane
    float x;
    int lane;
    float result;
};

void lend(void **lanes) {
    for (int i = 0; i < 32; i++) {
        Lent &mine = *(Lent *)lanes[i];
        mine.result = ((const Lent *)lanes[mine.lane & 31])->x;
    }
}

void find_any(void **lanes) {
    bool found = false;
    for (int i = 0; i < 32; i++) found = found || *(bool *)lanes[i];
    for (int i = 0; i < 32; i++) *(bool *)lanes[i] = found;
}

void nothing(void **) {}

const Operation SYNC = {"pc_sync_warp", nothing, true};
const Operation EXCHANGE = {"pc_exchange", lend, false};
const Operation FROM_LANE = {"pc_from_lane", lend, false};
const Operation ANY = {"pc_any", find_any, false};
const Operation LOAD = {"pc_load_matrices", load_plain, false};
const Operation LOAD_TRANSPOSED = {"pc_load_matrices_transposed", load_transposed, false};
const Operation MULTIPLY_F16 = {"pc_multiply", product_of_f16, false};
const Operation MULTIPLY_BF16 = {"pc_multiply", product_of_bf16, false};

} // namespace

void sync_block(Here here) { home().sync(here); }
void sync_warp(Here here) { home().meet(SYNC, nullptr, here); }

float value_of_lane(float x, int lane, Here here) {
    Lent lent = {x, lane, 0};
    home().meet(FROM_LANE, &lent, here);
    return lent.result;
}

float exchange(float x, int distance, Here here) {
    Lent lent = {x, self->thread ^ distance, 0};
    home().meet(EXCHANGE, &lent, here);
    return lent.result;
}

bool any(bool x, Here here) {
    home().meet(ANY, &x, here);
    return x;
}

void load_matrices(u32 *r, const Bytes &row, bool transposed, Here here) {
    MatrixRow mine = {r, &row};
    home().meet(transposed ? LOAD_TRANSPOSED : LOAD, &mine, here);
}

void multiply_f16(float *c, const u32 *a, const u32 *b, Here here) {
    Product mine = {c, a, b};
    home().meet(MULTIPLY_F16, &mine, here);
}

void multiply_bf16(float *c, const u32 *a, const u32 *b, Here here) {
    Product mine = {c, a, b};
    home().meet(MULTIPLY_BF16, &mine, here);
}

Bytes begin_copy(void *to, const void *from, Bytes data, int bytes, Here here) {
    return home().begin_copy(to, from, data, bytes, here);
}

void close_group() { static_cast<Fiber *>(self)->copies.close_group(); }
Arrivals wait_for_copies(int pending) { return home().wait_for_copies(pending); }

void refuse_row(const void *address, const char *primitive, Here here) {
    const long long place = (const u8 *)address - self->shared, bytes = (long long)self->shared_bytes;
    if (place < 0 || place + 16 > bytes) {
        home().fail(primitive, here, "a row is outside shared memory: byte %lld of %lld", place, bytes);
    }
    home().fail(primitive, here, "a row is misaligned: byte %lld of shared memory", place);
}

} // namespace emulator

// Run a grid. Returns 0, or 1 with the first failed check in `message`.
extern "C" __attribute__((visibility("default"))) int emulator_run(const emulator::Launch *launch, char *message,
                                                                   int size) {
    message[0] = 0;
    try {
        emulator::Grid(*launch, message, (size_t)size).run();
    } catch (const std::exception &error) {
        snprintf(message, (size_t)size, "%s", error.what());
    }
    return message[0] != 0;
}
