#include "block.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace emulator {

__thread Thread *self = nullptr;

namespace {

constexpr u32 ALL = 0xffffffff;
constexpr int BEYOND = 128; // bytes after the shared memory, to see that nobody wrote there

Fiber &current() { return *static_cast<Fiber *>(self); }

bool same(Here a, Here b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

const char *name_of(Here here) {
    const char *slash = strrchr(here.file, '/');
    return slash ? slash + 1 : here.file;
}

// A fiber stays with the thread that started it: a function may keep addresses of thread-local variables.
u64 number_of_host_thread() {
    static std::atomic<u64> threads{0};
    static __thread u64 number = 0;
    if (!number) number = ++threads;
    return number;
}

} // namespace

// ---- copies

void Copies::clear() {
    copies_.clear();
    ends_.clear();
    first_ = 0;
}

void Copies::add(const Copy &copy) {
    if (first_ == copies_.size() || first_ > 256) {
        copies_.erase(copies_.begin(), copies_.begin() + (ptrdiff_t)first_);
        for (size_t &end : ends_) end -= first_;
        first_ = 0;
    }
    copies_.push_back(copy);
}

void Copies::close_group() { ends_.push_back(copies_.size()); }

Arrivals Copies::wait(int pending) {
    const int groups = (int)ends_.size() - pending;
    if (groups <= 0) return {nullptr, 0};
    const size_t begin = first_;
    first_ = ends_[(size_t)groups - 1];
    ends_.erase(ends_.begin(), ends_.begin() + groups);
    return {copies_.data() + begin, (int)(first_ - begin)};
}

// ---- a block's life

Block::Block(int threads) : warps_((size_t)threads / 32), fibers_((size_t)threads), stacks_(threads) {
    for (int i = 0; i < threads; i++) {
        Fiber &fiber = fibers_[(size_t)i];
        fiber.thread = i;
        fiber.threads = threads;
        fiber.home = this;
        fiber.warp = &warps_[(size_t)i / 32];
        fiber.lane = (u32)i % 32;
    }
    for (size_t i = 0; i < warps_.size(); i++) {
        warps_[i].lanes = &fibers_[i * 32];
        warps_[i].bit = 1u << i;
    }
}

Block::~Block() { free(shared_); }

void Block::main() {
    after_switch(current().context);
    for (;;) {
        Block &block = *current().home;
        acquire(&block.begin_);
        block.launch_->enter(block.launch_->params);
        block.leave(current());
    }
}

void Block::prepare(const Launch &launch, int number) {
    launch_ = &launch;
    message_[0] = 0;
    random_ = Random(launch.seed + (u64)number);
    if (shared_bytes_ != launch.shared) {
        free(shared_);
        shared_ = nullptr;
        shared_bytes_ = -1;
        if (posix_memalign((void **)&shared_, 128, (size_t)launch.shared + BEYOND)) throw std::bad_alloc();
        shared_bytes_ = launch.shared;
#ifdef EMULATOR_ASAN
        __asan_poison_memory_region(shared_ + shared_bytes_, BEYOND);
#endif
    }
#ifdef EMULATOR_ASAN
    memset(shared_, 0xff, (size_t)shared_bytes_);
#else
    memset(shared_, 0xff, (size_t)shared_bytes_ + BEYOND);
#endif
    for (Warp &warp : warps_) {
        warp.live = ALL;
        warp.arrived = 0;
    }
    wake_all();
    done_ = arrived_ = 0;
    for (Fiber &fiber : fibers_) {
        fiber.block = number;
        fiber.blocks = launch.grid;
        fiber.shared = shared_;
        fiber.shared_bytes = (u64)shared_bytes_;
        fiber.done = false;
        fiber.copies.clear();
        if (host_thread_ != number_of_host_thread()) stacks_.start_on(fiber.thread, fiber.context, main);
    }
    host_thread_ = number_of_host_thread();
}

const char *Block::run(const Launch &launch, int number) {
    prepare(launch, number);
    Warp &warp = warps_[pick(ready_)];
    Fiber &first = warp.lanes[pick(warp.ready)];
    release(&begin_);
    host_ = Context();
    self = &first;
    switch_to(host_, first.context);
    self = nullptr;
    acquire(&end_);
    if (message_[0]) {
        host_thread_ = 0;
        return message_;
    }
#ifndef EMULATOR_ASAN
    for (int i = 0; i < BEYOND; i++) {
        if (shared_[shared_bytes_ + i] == 0xff) continue;
        snprintf(message_, sizeof message_, "block %d wrote beyond its %d bytes of shared memory, at byte %d", number,
                 shared_bytes_, shared_bytes_ + i);
        return message_;
    }
#endif
    return nullptr;
}

// ---- who runs

// A bit that is set: the lowest, the highest, or any.
inline u32 Block::pick(u32 mask) {
    if (launch_->order == FORWARD) return (u32)__builtin_ctz(mask);
    if (launch_->order == REVERSE) return 31 - (u32)__builtin_clz(mask);
    const u32 start = (u32)(random_() >> 32) & 31, rotated = mask >> start | mask << (-start & 31);
    return (start + (u32)__builtin_ctz(rotated)) & 31;
}

inline void Block::wake_all() {
    for (Warp &warp : warps_) warp.ready = ALL;
    ready_ = ALL >> (32 - warps_.size());
}

inline void Block::stop(Fiber &me) {
    Warp &warp = *me.warp;
    warp.ready &= ~(1u << me.lane);
    if (!warp.ready) ready_ &= ~warp.bit;
}

inline void Block::go_on(Fiber &me) {
    if (!ready_) fail_deadlocked();
    const Warp &warp = warps_[pick(ready_)];
    Fiber &next = warp.lanes[pick(warp.ready)];
    if (&next == &me) return;
    self = &next;
    switch_to(me.context, next.context);
}

void Block::end_run() {
    release(&end_);
    switch_to(current().context, host_);
}

void Block::leave(Fiber &me) {
    Warp &warp = *me.warp;
    if (me.copies.outstanding()) {
        fail("pc_copy_wait", me.copied, "%d copies have not been waited for as the thread exits",
             me.copies.outstanding());
    }
    if (warp.arrived) {
        fail(warp.operation->name, warp.here, "the thread exits, while lanes %08x of its warp wait for it",
             warp.arrived);
    }
    me.done = true;
    release(&end_);
    warp.live &= ~(1u << me.lane);
    stop(me);
    if (++done_ < threads()) {
        go_on(me);
    } else {
        end_run();
    }
}

// ---- barriers and operations

void Block::sync(Here here) {
    Fiber &me = current();
    me.waits_in = "pc_sync_block";
    me.here = here;
    if (arrived_ && !same(barrier_, here)) {
        fail(me.waits_in, here, "%d threads of the block wait in another barrier, %s:%d", arrived_, name_of(barrier_),
             barrier_.line);
    }
    barrier_ = here;
    u8 *place = generation_.place();
    release(place);
    if (++arrived_ < threads()) {
        stop(me);
    } else {
        arrived_ = 0;
        generation_.number++;
        wake_all();
    }
    go_on(me);
    acquire(place);
}

void Block::meet(const Operation &operation, void *argument, Here here) {
    Fiber &me = current();
    Warp &warp = *me.warp;
    me.waits_in = operation.name;
    me.here = here;
    if (warp.live != ALL) fail(operation.name, here, "lanes %08x of the warp have exited", ~warp.live);
    if (warp.arrived && (warp.operation != &operation || !same(warp.here, here))) {
        fail(operation.name, here, "lanes %08x of the warp are elsewhere, in %s, %s:%d", warp.arrived,
             warp.operation->name, name_of(warp.here), warp.here.line);
    }
    u8 *place = warp.generation.place();
    if (operation.ordering) release(place);
    warp.operation = &operation;
    warp.here = here;
    warp.arguments[me.lane] = argument;
    warp.arrived |= 1u << me.lane;
    if (warp.arrived != ALL) {
        stop(me);
    } else {
        operation.evaluate(warp.arguments);
        warp.arrived = 0;
        warp.generation.number++;
        warp.ready = ALL;
    }
    go_on(me);
    if (operation.ordering) acquire(place);
}

// ---- copies of the thread that runs

Bytes Block::begin_copy(void *to, const void *from, Bytes data, int bytes, Here here) {
    Fiber &me = current();
    const char *name = bytes == 4 ? "pc_copy4" : "pc_copy16";
    const u64 place = (u64)((u8 *)to - shared_);
    if (place + (u64)bytes > me.shared_bytes || place > me.shared_bytes) {
        fail(name, here, "the destination is outside shared memory: byte %lld of %d", (long long)place, shared_bytes_);
    }
    if (place % (u64)bytes || (u64)from % (u64)bytes) {
        fail(name, here, "misaligned: byte %lld of shared memory, address %p", (long long)place, from);
    }
    me.copies.add({(u8 *)to, data, bytes});
    me.copied = here;
    return launch_->late ? Bytes{{~0ull, ~0ull}} : data;
}

Arrivals Block::wait_for_copies(int pending) {
    const Arrivals arrivals = current().copies.wait(pending);
    return launch_->late ? arrivals : Arrivals{nullptr, 0};
}

// ---- messages

void Block::fail(const char *primitive, Here here, const char *format, ...) {
    const Fiber &me = current();
    char *text = message_;
    const size_t size = sizeof message_;
    size_t n = (size_t)snprintf(text, size, "%s:%d: %s: ", name_of(here), here.line, primitive);
    va_list arguments;
    va_start(arguments, format);
    n += (size_t)vsnprintf(text + std::min(n, size), size - std::min(n, size), format, arguments);
    va_end(arguments);
    n = std::min(n, size);
    snprintf(text + n, size - n, " (block %d, thread %d: warp %d, lane %d)", me.block, me.thread, me.thread / 32,
             me.lane);
    end_run();
    __builtin_unreachable();
}

// Threads that wait at the same place are told together.
void Block::fail_deadlocked() {
    const size_t size = sizeof message_;
    size_t n = (size_t)snprintf(message_, size, "deadlock in block %d: ", current().block);
    for (size_t begin = 0, end; begin < fibers_.size() && n < size; begin = end) {
        const Fiber &first = fibers_[begin];
        for (end = begin + 1; end < fibers_.size(); end++) {
            const Fiber &other = fibers_[end];
            if (first.done != other.done) break;
            if (!first.done && (first.waits_in != other.waits_in || !same(first.here, other.here))) break;
        }
        n += (size_t)snprintf(message_ + n, size - n, "%sthreads %zu to %zu ", begin ? ", " : "", begin, end - 1);
        if (n >= size) break;
        if (first.done) {
            n += (size_t)snprintf(message_ + n, size - n, "have exited");
        } else {
            n += (size_t)snprintf(message_ + n, size - n, "wait in %s, %s:%d", first.waits_in, name_of(first.here),
                                  first.here.line);
        }
    }
    end_run();
    __builtin_unreachable();
}

} // namespace emulator
