/* The table of functions: the one thing that the library shows. */
#define PAGEDCACHE_EXTERN extern __attribute__((visibility("default")))
#include "pagedcache.h"

#include "attention_api.h"
#include "cache.h"
#include "error.h"

/* Functions are only ever added behind the last one, with a new PAGEDCACHE_API_VERSION. */
static const pagedcache_api table = {
    .version = PAGEDCACHE_API_VERSION,
    .size = sizeof(pagedcache_api),
    .error = pc_last_error,
    .isa = pc_api_isa,
    .plan_make = pc_plan_of,
    .plan_free = pc_plan_drop,
    .write = pc_api_write,
    .attend = pc_api_attend,
    .copy_blocks = pc_api_copy_blocks,
    .open = pc_api_open,
    .close = pc_api_close,
    .layer = pc_api_layer,
    .start = pc_api_start,
    .extend = pc_api_extend,
    .can_extend = pc_api_can_extend,
    .step = pc_api_step,
    .copies = pc_api_copies,
    .attend_step = pc_api_attend_step,
    .commit = pc_api_commit,
    .abandon = pc_api_abandon,
    .fork = pc_api_fork,
    .truncate = pc_api_truncate,
    .release = pc_api_release,
    .length = pc_api_length,
    .stats = pc_api_stats,
    .check = pc_api_check,
};

const pagedcache_api *pagedcache_get_api(int32_t version) {
    return 1 <= version && version <= PAGEDCACHE_API_VERSION ? &table : NULL;
}
