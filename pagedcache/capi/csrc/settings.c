#define _GNU_SOURCE
#include "settings.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "pagedcache.h"
#include "threads.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const pc_kernels *active; /* NULL: the words say why */
static char no_kernels[400];
static int32_t usual_threads; /* 0: the words say why */
static char no_threads[200];

static void list(char *text, size_t size, int only_supported) {
    for (int i = 0; pc_kernels_at(i); i++) {
        const char *name = pc_kernels_at(i)->name;
        const size_t used = strlen(text);
        if (!only_supported || pc_cpu_supports(name)) snprintf(text + used, size - used, used ? ", %s" : "%s", name);
    }
}

static void choose_kernels(void) {
    const char *asked = getenv("PAGEDCACHE_ISA");
    const pc_kernels *named = NULL, *best = NULL;
    char compiled[100] = "", supported[100] = "";
    for (int i = 0; pc_kernels_at(i); i++) {
        if (asked && !strcmp(asked, pc_kernels_at(i)->name)) named = pc_kernels_at(i);
        if (pc_cpu_supports(pc_kernels_at(i)->name)) best = pc_kernels_at(i);
    }
    if (!asked || !*asked) active = best;
    else if (named && pc_cpu_supports(named->name)) active = named;
    list(compiled, sizeof compiled, 0);
    list(supported, sizeof supported, 1);
    if (!active)
        snprintf(no_kernels, sizeof no_kernels,
                 "PAGEDCACHE_ISA is '%.40s': %s; compiled are %s, and here can run %s: unset it, or name one of these",
                 asked ? asked : "", named ? "this processor cannot run it" : "there is none of that name", compiled,
                 *supported ? supported : "none");
}

static int32_t processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

static void choose_threads(void) {
    const char *asked = getenv("PAGEDCACHE_NUM_THREADS");
    char *end = NULL;
    const long long wanted = asked && *asked ? strtoll(asked, &end, 10) : processors();
    if (wanted < 1 || (end && *end) || (end && (*asked < '0' || *asked > '9')))
        snprintf(no_threads, sizeof no_threads,
                 "PAGEDCACHE_NUM_THREADS is '%.40s'; it must be a number of threads, 1 or more", asked ? asked : "");
    else usual_threads = wanted < PC_MOST_THREADS ? (int32_t)wanted : PC_MOST_THREADS;
}

static void choose(void) {
    choose_kernels();
    choose_threads();
}

int pc_active(const pc_kernels **kernels) {
    pthread_once(&once, choose);
    *kernels = active;
    return active ? PAGEDCACHE_OK : pc_fail(PAGEDCACHE_UNSUPPORTED, "%s", no_kernels);
}

int pc_threads(int32_t asked, int32_t *threads) {
    if (asked < 0)
        return pc_fail(PAGEDCACHE_INVALID, "threads is %d; it must be 1 or more, or 0 for one per processor", asked);
    pthread_once(&once, choose);
    if (!asked && !usual_threads) return pc_fail(PAGEDCACHE_INVALID, "%s", no_threads);
    *threads = !asked ? usual_threads : asked < PC_MOST_THREADS ? asked : PC_MOST_THREADS;
    return PAGEDCACHE_OK;
}
