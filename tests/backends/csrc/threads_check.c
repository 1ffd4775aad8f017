/* The team of threads: several callers at once, and children of fork() in between. For ThreadSanitizer.
 *
 *   threads_check [ROUNDS]
 *
 * NO_FORK=1 in the environment leaves the children out. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

enum { CALLERS = 4, TASKS = 97, THREADS = 3 };

typedef struct count {
    int done[TASKS]; /* plain numbers: each task is one thread's alone, and pc_run returns after all of them */
    float costs[TASKS];
    int beyond;
} count;

static int rounds = 300;
static atomic_int helped; /* tasks that another thread than the caller did */

static void task(void *context, int32_t index, int32_t thread) {
    count *c = context;
    volatile float x = 1;
    for (int i = 0; i < (int)c->costs[index] * 20; i++) x = x * 0.5f + 1;
    c->done[index]++;
    if (thread < 0 || thread >= THREADS) c->beyond = 1;
    if (thread > 0) atomic_fetch_add_explicit(&helped, 1, memory_order_relaxed);
}

static int call(int times, unsigned seed) {
    int wrong = 0;
    count c;
    for (int n = 0; n < times; n++) {
        const int32_t tasks = n % 5 ? TASKS : n % TASKS;
        memset(&c, 0, sizeof c);
        for (int i = 0; i < TASKS; i++) c.costs[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 26);
        pc_run(THREADS, tasks, n % 2 ? c.costs : NULL, task, &c);
        for (int i = 0; i < TASKS; i++) wrong += c.done[i] != (i < tasks);
        wrong += c.beyond;
        if (n % 50 == 49) nanosleep(&(struct timespec){0, 200000}, NULL); /* the team goes to sleep */
    }
    return wrong;
}

static void *caller(void *number) { return (void *)(intptr_t)call(rounds, (unsigned)(intptr_t)number); }

/* Whether a child gets through its own runs within ten seconds. */
static int child_fails(void) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(call(20, 7) != 0);
    }
    return child < 0 || waitpid(child, &status, 0) < 0 || status != 0;
}

int main(int argc, char **argv) {
    pthread_t callers[CALLERS];
    int wrong = 0, forks = 0;
    if (argc > 1) rounds = atoi(argv[1]);
    wrong += call(3, 1);
    for (intptr_t i = 0; i < CALLERS; i++)
        if (pthread_create(callers + i, NULL, caller, (void *)(i + 2))) abort();
    for (; !getenv("NO_FORK") && forks < rounds / 10; forks++) wrong += child_fails();
    for (int i = 0; i < CALLERS; i++) {
        void *failed;
        pthread_join(callers[i], &failed);
        wrong += failed != NULL;
    }
    wrong += call(3, 1);
    printf("threads: %d callers, %d rounds, %d forks, %d tasks by others, %d wrong\n", CALLERS, rounds, forks,
           (int)helped, wrong);
    return wrong > 0 || !helped;
}
