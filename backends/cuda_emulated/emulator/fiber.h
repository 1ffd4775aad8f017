// Threads of execution that switch to each other by hand: a processor state and a stack. On x86-64 a switch keeps what
// the calling convention has a function keep, and takes a few nanoseconds; elsewhere it is swapcontext, which is slow.
//
// Sanitizers are told of each switch. The emulator itself is compiled without them: they watch the kernels.
#pragma once

#include <cstddef>

#include "runtime.h"

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#define EMULATOR_SWAPS
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator {

// A context that was not started stands for whatever stack first switches away from it.
struct Context {
#ifdef EMULATOR_SWAPS
    ucontext_t state;
#else
    void *stack_pointer = nullptr;
#endif
    const void *stack = nullptr; // its lowest address
    size_t stack_bytes = 0;
    void *asan_stack = nullptr;
    void *tsan_fiber = nullptr;
};

#ifndef EMULATOR_SWAPS
// Push the registers that a function keeps and the stack pointer to `from`, and take those of `to`.
extern "C" void pagedcache_switch(void **from, void *to) __attribute__((visibility("hidden")));
#endif

// ---- what sanitizers want to know

#ifdef EMULATOR_ASAN
extern __thread Context *left; // the context that was switched away from last
#endif

inline void before_switch(Context &from, Context &to) {
#ifdef EMULATOR_ASAN
    left = &from;
    __sanitizer_start_switch_fiber(&from.asan_stack, to.stack, to.stack_bytes);
#endif
#ifdef EMULATOR_TSAN
    if (!from.tsan_fiber) from.tsan_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    (void)from, (void)to;
}

inline void after_switch(Context &to) {
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(to.asan_stack, &left->stack, &left->stack_bytes);
#endif
    (void)to;
}

// What a thread did before `release` happens before what others do after their `acquire` of the same place.
inline void release(void *place) {
#ifdef EMULATOR_TSAN
    __tsan_release(place);
#endif
    (void)place;
}

inline void acquire(void *place) {
#ifdef EMULATOR_TSAN
    __tsan_acquire(place);
#endif
    (void)place;
}

// ---- start and switch

// Make `context` begin `main`, which never returns and calls after_switch first. What it did before is dropped. The
// first `unused` bytes of the stack stay so.
void start(Context &context, u8 *stack, size_t bytes, size_t unused, void (*main)());

inline void switch_to(Context &from, Context &to) {
    before_switch(from, to);
#ifdef EMULATOR_SWAPS
    swapcontext(&from.state, &to.state);
#else
    pagedcache_switch(&from.stack_pointer, to.stack_pointer);
#endif
    after_switch(from);
}

// Stacks beside each other, below each some memory that must not be touched.
class Stacks {
  public:
    explicit Stacks(int count);
    ~Stacks();
    Stacks(const Stacks &) = delete;
    Stacks &operator=(const Stacks &) = delete;

    // Have `context` begin `main` on stack i.
    void start_on(int i, Context &context, void (*main)());

  private:
    u8 *region_;
    size_t bytes_;
};

} // namespace emulator
