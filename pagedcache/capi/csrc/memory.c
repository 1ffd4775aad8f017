#define _GNU_SOURCE
#include "memory.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static int64_t whole_pages(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *pc_map(int64_t bytes) {
    const int64_t wanted = whole_pages(bytes);
    char *all = mmap(NULL, (size_t)(wanted + PC_HUGE_PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    const int64_t before = (PC_HUGE_PAGE - (int64_t)((uintptr_t)all % PC_HUGE_PAGE)) % PC_HUGE_PAGE;
    if (before) munmap(all, (size_t)before);
    if (before < PC_HUGE_PAGE) munmap(all + before + wanted, (size_t)(PC_HUGE_PAGE - before));
    return all + before;
}

void pc_unmap(void *memory, int64_t bytes) {
    if (memory) munmap(memory, (size_t)whole_pages(bytes));
}

void pc_ask_huge_pages(void *array, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    /* Not for the rest behind the last whole one, or the pool would take more than its size. */
    if (bytes >= PC_HUGE_PAGE) madvise(array, (size_t)(bytes / PC_HUGE_PAGE * PC_HUGE_PAGE), MADV_HUGEPAGE);
#else
    (void)array, (void)bytes;
#endif
}
