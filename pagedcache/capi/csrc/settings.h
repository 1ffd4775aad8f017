/* What the environment and the processor decide, once per process: the kernels that run, and the usual threads. */
#pragma once
#include <stdint.h>

#include "kernels.h"

/* PAGEDCACHE_OK and the kernels; PAGEDCACHE_UNSUPPORTED where none can run, or not those of PAGEDCACHE_ISA. */
int pc_active(const pc_kernels **kernels);

/* Threads of a call that asks for `asked`, 0 for the usual number; PAGEDCACHE_INVALID for nonsense. */
int pc_threads(int32_t asked, int32_t *threads);
