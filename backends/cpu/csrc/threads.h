/* A team of threads that is started when first needed and survives fork().
 *
 * One run at a time has the team; whoever comes meanwhile does all the work itself. Tasks are dealt
 * out in contiguous shares of about equal cost, so that neighbours stay on one core, and who has done
 * his share takes from the end of another's. */
#pragma once
#include <stdint.h>

typedef void (*pc_task)(void *context, int32_t index, int32_t thread); /* thread: 0 to threads - 1 */

/* Runs task(context, i, thread) for each i below `tasks`, and returns when all are done. `costs` may be NULL. */
void pc_run(int32_t threads, int32_t tasks, const float *costs, pc_task task, void *context);

/* Whether the team waits for work awake: it goes to sleep some 50 us after a run. */
int pc_team_is_awake(void);

/* Runs body(data) on as many threads, the caller's own among them, and returns when all are done: OpenMP's do that for
 * GOMP_parallel. With NULL, the team's own threads work, and so they do in a child after fork(). */
typedef void (*pc_lender)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
void pc_borrow_threads(pc_lender lender);

int64_t pc_now_ns(void); /* of a clock that only rises */

enum { PC_MOST_THREADS = 256 };
