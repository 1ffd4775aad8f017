/* Memory for K and V: committed as it is touched, in huge pages where the system has them. */
#pragma once
#include <stdint.h>

enum { PC_HUGE_PAGE = 2 << 20 }; /* bytes; smaller arrays gain nothing from huge pages */

/* Where an array that begins at `at` or behind it should begin, so long as it has so many bytes. */
static inline int64_t pc_array_begin(int64_t at, int64_t bytes) {
    const int64_t unit = bytes >= PC_HUGE_PAGE ? PC_HUGE_PAGE : 64;
    return (at + unit - 1) / unit * unit;
}

/* Maps zeros, private to this process and its copies; the place is a multiple of PC_HUGE_PAGE. NULL: there are none. */
void *pc_map(int64_t bytes);
void pc_unmap(void *memory, int64_t bytes);
void pc_ask_huge_pages(void *array, int64_t bytes);
