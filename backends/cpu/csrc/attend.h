/* Attention of a step: the items of its plan, shared out to threads, then the merge of their parts. */
#pragma once
#include "kernels.h"
#include "plan.h"

/* `threads`: at most so many; fewer where they would bring too little. The bits of the result
 * do not depend on it. PC_OK or PC_NO_MEMORY. `job` lacks what the plan and this function add. */
int pc_attend(const pc_kernels *kernels, pc_job *job, const pc_plan *plan, int32_t threads);

/* Of a call: how many threads are worth it, for so many bytes read and floating-point operations, where a team
 * that sleeps is woken for `asleep` microseconds of work or more. */
int32_t pc_worth(int32_t threads, double bytes, double operations, double asleep);

enum { PC_WAKING = 100 }; /* what pays for waking the team once: it takes 50 us, and the caller some 20 of them */
