#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { AWAKE_NS = 50000 }; /* waking a thread costs that much; longer would take a core from the BLAS between steps */

typedef struct share { /* [from, to) of the tasks, in one word, so that both ends can be taken from */
    _Alignas(64) _Atomic uint64_t range;
} share;

static struct {
    pthread_mutex_t lock; /* of all that follows but the atomics */
    pthread_cond_t called;
    int32_t workers; /* started */
    int32_t threads; /* of this run */
    int open;        /* whether workers may still join */
    pc_task task;
    void *context;
    _Atomic uint32_t run;   /* its number */
    _Atomic int32_t active; /* workers that have joined and are not done */
    _Atomic int32_t asleep, awake;
    _Atomic int taken; /* whether some caller has the team */
    share shares[PC_MOST_THREADS];
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER};

static _Atomic(pc_lender) lent; /* whose threads work instead of the team's */

static void pause_a_moment(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sets how floats are computed to the standard's way, without flushing subnormal ones, and returns how it was:
 * results must not depend on which thread computes them, and callers may have set theirs otherwise. */
static uint64_t standard_floats(void) {
    uint64_t before = 0;
#if defined(__x86_64__)
    before = __builtin_ia32_stmxcsr();
    if (before & 0xe040) __builtin_ia32_ldmxcsr((unsigned)before & ~0xe040u); /* flushing, rounding, subnormals as 0 */
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before & 0x1c80000) __asm__ volatile("msr fpcr, %0" ::"r"(before & ~UINT64_C(0x1c80000)));
#endif
    return before;
}

static void restore_floats(uint64_t before) {
#if defined(__x86_64__)
    if (before & 0xe040) __builtin_ia32_ldmxcsr((unsigned)before);
#elif defined(__aarch64__)
    if (before & 0x1c80000) __asm__ volatile("msr fpcr, %0" ::"r"(before));
#endif
}

int64_t pc_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int take(share *from, int own, int32_t *index) {
    uint64_t range = atomic_load_explicit(&from->range, memory_order_relaxed), next;
    do {
        const uint32_t first = (uint32_t)range, end = (uint32_t)(range >> 32);
        if (first >= end) return 0;
        *index = (int32_t)(own ? first : end - 1);
        next = own ? (uint64_t)end << 32 | (first + 1) : (uint64_t)(end - 1) << 32 | first;
    } while (!atomic_compare_exchange_weak(&from->range, &range, next));
    return 1;
}

static void work(int32_t thread, int32_t threads, pc_task task, void *context) {
    for (int32_t turn = 0, index; turn < threads; turn++) {
        const int32_t whose = (thread + turn) % threads;
        while (take(team.shares + whose, turn == 0, &index)) task(context, index, thread);
    }
}

static void wait_for_run(uint32_t seen) {
    const int64_t until = pc_now_ns() + AWAKE_NS;
    atomic_fetch_add(&team.awake, 1);
    do
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&team.run, memory_order_acquire) != seen) {
                atomic_fetch_sub(&team.awake, 1);
                return;
            }
            pause_a_moment();
        }
    while (pc_now_ns() < until);
    atomic_fetch_sub(&team.awake, 1);
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.asleep, 1);
    while (atomic_load(&team.run) == seen) pthread_cond_wait(&team.called, &team.lock);
    atomic_fetch_sub(&team.asleep, 1);
    pthread_mutex_unlock(&team.lock);
}

static void *worker(void *number) {
    const int32_t thread = (int32_t)(intptr_t)number;
    uint32_t seen = 0; /* runs are numbered from 1 on */
    standard_floats();
    for (;;) {
        wait_for_run(seen);
        pthread_mutex_lock(&team.lock);
        seen = atomic_load(&team.run);
        const int joins = team.open && thread < team.threads;
        const int32_t threads = team.threads;
        const pc_task task = team.task;
        void *context = team.context;
        if (joins) atomic_fetch_add(&team.active, 1);
        pthread_mutex_unlock(&team.lock);
        if (!joins) continue;
        work(thread, threads, task, context);
        atomic_fetch_sub(&team.active, 1);
    }
    return NULL;
}

#ifndef _WIN32
/* The child has the calling thread alone; whatever the others held is free there. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.called, NULL);
    team.workers = team.threads = team.open = 0;
    atomic_store(&team.run, 0);
    atomic_store(&team.active, 0);
    atomic_store(&team.asleep, 0);
    atomic_store(&team.awake, 0);
    atomic_store(&team.taken, 0);
    atomic_store(&lent, NULL); /* OpenMP does not survive a fork */
}

__attribute__((constructor)) static void register_fork(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }
#endif

/* Under the lock. Where the system gives no more threads, fewer do the work. */
static void start_workers(int32_t wanted) {
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* workers inherit it: signals are for the caller's threads */
#endif
    while (team.workers < wanted) {
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        const int failed = pthread_create(&thread, &detached, worker, (void *)(intptr_t)(team.workers + 1));
        pthread_attr_destroy(&detached);
        if (failed) break;
        team.workers++;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
}

static void deal(int32_t threads, int32_t tasks, const float *costs) {
    double all = 0, passed = 0;
    for (int32_t i = 0; costs && i < tasks; i++) all += costs[i];
    for (int32_t thread = 0, from = 0; thread < threads; thread++) {
        int32_t to = costs ? from : (int32_t)((int64_t)tasks * (thread + 1) / threads);
        while (costs && to < tasks && (thread == threads - 1 || passed + costs[to] / 2 < all * (thread + 1) / threads))
            passed += costs[to++];
        atomic_store(&team.shares[thread].range, (uint64_t)to << 32 | (uint32_t)from);
        from = to;
    }
}

typedef struct loan {
    int32_t threads;
    pc_task task;
    void *context;
    _Atomic int32_t next; /* number of the next thread that comes */
} loan;

static void work_on_loan(void *data) {
    loan *this = data;
    const int32_t thread = atomic_fetch_add(&this->next, 1);
    if (thread >= this->threads) return;
    const uint64_t before = standard_floats();
    work(thread, this->threads, this->task, this->context);
    restore_floats(before);
}

static void run(int32_t threads, int32_t tasks, const float *costs, pc_task task, void *context) {
    int expected = 0;
    if (threads > PC_MOST_THREADS) threads = PC_MOST_THREADS;
    if (threads > tasks) threads = tasks;
    if (threads <= 1 || !atomic_compare_exchange_strong(&team.taken, &expected, 1)) {
        for (int32_t i = 0; i < tasks; i++) task(context, i, 0);
        return;
    }
    const pc_lender lender = atomic_load(&lent);
    if (lender) { /* whatever it gives, all is done: who comes takes from the shares of those who do not */
        loan one = {.threads = threads, .task = task, .context = context};
        deal(threads, tasks, costs);
        lender(work_on_loan, &one, (unsigned)threads, 0);
        atomic_store(&team.taken, 0);
        return;
    }
    pthread_mutex_lock(&team.lock);
    start_workers(threads - 1);
    if (threads > team.workers + 1) threads = team.workers + 1;
    deal(threads, tasks, costs);
    team.threads = threads, team.task = task, team.context = context, team.open = 1;
    atomic_fetch_add(&team.run, 1);
    if (atomic_load(&team.asleep)) pthread_cond_broadcast(&team.called);
    pthread_mutex_unlock(&team.lock);

    work(0, threads, task, context);

    pthread_mutex_lock(&team.lock);
    team.open = 0; /* who has not woken up yet has nothing left to do */
    pthread_mutex_unlock(&team.lock);
    for (int64_t turn = 0; atomic_load(&team.active); turn++) {
        if (turn < 1000) pause_a_moment();
        else sched_yield();
    }
    atomic_store(&team.taken, 0);
}

void pc_run(int32_t threads, int32_t tasks, const float *costs, pc_task task, void *context) {
    const uint64_t before = standard_floats();
    run(threads, tasks, costs, task, context);
    restore_floats(before);
}

void pc_borrow_threads(pc_lender lender) { atomic_store(&lent, lender); }

int pc_team_is_awake(void) { return atomic_load_explicit(&team.awake, memory_order_relaxed) > 0; }
