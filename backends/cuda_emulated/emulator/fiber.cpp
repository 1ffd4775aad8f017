#include "fiber.h"

#include <sys/mman.h>

#include <new>

#ifndef EMULATOR_SWAPS
asm(R"(
.text
.globl pagedcache_switch
.hidden pagedcache_switch
.type pagedcache_switch,@function
pagedcache_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pagedcache_switch, .-pagedcache_switch
)");
#endif

namespace emulator {

#ifdef EMULATOR_ASAN
__thread Context *left = nullptr;
#endif

void start(Context &context, u8 *stack, size_t bytes, size_t unused, void (*main)()) {
    context.stack = stack;
    context.stack_bytes = bytes;
    context.asan_stack = nullptr;
#ifdef EMULATOR_ASAN
    __asan_unpoison_memory_region(stack, bytes);
#endif
#ifdef EMULATOR_TSAN
    if (context.tsan_fiber) __tsan_destroy_fiber(context.tsan_fiber);
    context.tsan_fiber = __tsan_create_fiber(0);
#endif
#ifdef EMULATOR_SWAPS
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = bytes - unused;
    context.state.uc_link = nullptr;
    makecontext(&context.state, main, 0);
#else
    void **top = (void **)(stack + bytes - unused);
    *--top = nullptr; // where `main` would return to; it finds the stack as after a call
    *--top = (void *)main;
    for (int i = 0; i < 6; i++) *--top = nullptr; // registers
    context.stack_pointer = top;
#endif
}

namespace {

constexpr size_t GUARD = 64 * 1024;  // a multiple of every page size
constexpr size_t BYTES = 256 * 1024; // reports of sanitizers need much of it

// Tops of stacks that are a multiple of 4096 bytes apart would share a few sets of the cache: they are moved by this.
constexpr size_t SHIFT = 17 * 64;

} // namespace

Stacks::Stacks(int count) : bytes_((size_t)count * (GUARD + BYTES)) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    void *region = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (region == MAP_FAILED) throw std::bad_alloc();
    region_ = (u8 *)region;
    for (int i = 0; i < count; i++) mprotect(region_ + (size_t)i * (GUARD + BYTES), GUARD, PROT_NONE);
}

Stacks::~Stacks() { munmap(region_, bytes_); }

void Stacks::start_on(int i, Context &context, void (*main)()) {
    start(context, region_ + (size_t)i * (GUARD + BYTES) + GUARD, BYTES, (size_t)i % 64 * SHIFT, main);
}

} // namespace emulator
