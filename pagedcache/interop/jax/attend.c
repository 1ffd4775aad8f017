/* Attention as XLA calls it: K and V of the new tokens into the pool, then attention, in one call without Python.
 *
 * Compiled at first use against the headers of the jaxlib that is installed. The functions of pagedcache.h come from
 * the library that Python has loaded, by pagedcache_jax_use(). */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagedcache.h"
#include "xla/ffi/api/c_api.h"

#define SHOWN __attribute__((visibility("default")))

static const pagedcache_api *pc;

SHOWN void pagedcache_jax_use(const pagedcache_api *api) { pc = api; }

/* -- what XLA hands over ----------------------------------------------------------------------------------- */

enum { Q, K, V, K_POOL, V_POOL, BLOCK_TABLES, QO_INDPTR, KV_LENS, KV_PADS, KV_STARTS, SLOTS, NUM_ARGS };
enum { OUT, K_POOL_OUT, V_POOL_OUT, NUM_RETS };

static const char *const names[NUM_ARGS] = {"q",         "k",       "v",       "k_pool",    "v_pool", "block_tables",
                                            "qo_indptr", "kv_lens", "kv_pads", "kv_starts", "slots"};
static const int ranks[NUM_ARGS] = {3, 3, 3, 4, 4, 2, 1, 1, 1, 1, 1};

static XLA_FFI_Error *fail(const XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = text, .errc = code};
    return frame->api->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error *failed(const XLA_FFI_CallFrame *frame, int status) {
    return fail(frame,
                status == PAGEDCACHE_NO_MEMORY ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
                                               : XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "pagedcache: %s", pc->error());
}

/* Attributes are 64-bit numbers; XLA has sorted them by name, and there are few. */
static const void *attribute(const XLA_FFI_Attrs *attrs, const char *name, XLA_FFI_DataType dtype) {
    for (int64_t i = 0; i < attrs->size; i++) {
        const XLA_FFI_ByteSpan *found = attrs->names[i];
        if (found->len != strlen(name) || memcmp(found->ptr, name, found->len)) continue;
        const XLA_FFI_Scalar *scalar = attrs->attrs[i];
        return attrs->types[i] == XLA_FFI_AttrType_SCALAR && scalar->dtype == dtype ? scalar->value : NULL;
    }
    return NULL;
}

static int64_t whole(const XLA_FFI_Attrs *attrs, const char *name) {
    const int64_t *value = attribute(attrs, name, XLA_FFI_DataType_S64);
    return value ? *value : 0;
}

static double real(const XLA_FFI_Attrs *attrs, const char *name) {
    const double *value = attribute(attrs, name, XLA_FFI_DataType_F64);
    return value ? *value : 0;
}

static int32_t number(XLA_FFI_DataType dtype) {
    switch (dtype) {
    case XLA_FFI_DataType_F32: return PAGEDCACHE_FLOAT32;
    case XLA_FFI_DataType_F16: return PAGEDCACHE_FLOAT16;
    case XLA_FFI_DataType_BF16: return PAGEDCACHE_BFLOAT16;
    default: return -1;
    }
}

/* -- what is wrong with it ----------------------------------------------------------------------------------- */

static XLA_FFI_Error *check(const XLA_FFI_CallFrame *frame, XLA_FFI_Buffer *const *args, XLA_FFI_Buffer *const *rets) {
    const XLA_FFI_Error_Code invalid = XLA_FFI_Error_Code_INVALID_ARGUMENT;
    for (int i = 0; i < NUM_ARGS; i++) {
        if (args[i]->rank != ranks[i])
            return fail(frame, invalid, "pagedcache: %s has %d axes; it must have %d", names[i], (int)args[i]->rank,
                        ranks[i]);
        if (i < BLOCK_TABLES ? number(args[i]->dtype) < 0 : args[i]->dtype != XLA_FFI_DataType_S32)
            return fail(frame, invalid, "pagedcache: %s must be %s", names[i],
                        i < BLOCK_TABLES ? "float32, float16 or bfloat16" : "int32");
    }
    const int64_t n = args[BLOCK_TABLES]->dims[0], *q = args[Q]->dims, *pool = args[K_POOL]->dims;
    if (args[QO_INDPTR]->dims[0] != n + 1 || args[KV_LENS]->dims[0] != n || args[KV_PADS]->dims[0] != n ||
        args[KV_STARTS]->dims[0] != n)
        return fail(frame, invalid, "pagedcache: block_tables has %d rows, and the other arrays as many do not agree",
                    (int)n);
    for (int i = 0; i < 2; i++) {
        const int64_t *rows = args[K + i]->dims, *own = args[K_POOL + i]->dims;
        if (rows[0] != q[0] || rows[1] != own[2] || rows[2] != own[3] || own[0] != pool[0] || own[1] != pool[1] ||
            own[2] != pool[2] || args[K]->dtype != args[V]->dtype || args[K_POOL]->dtype != args[V_POOL]->dtype)
            return fail(frame, invalid, "pagedcache: q, k, v and the pools do not fit together; see %s", names[K + i]);
        if (rets[K_POOL_OUT + i]->data != args[K_POOL + i]->data)
            return fail(frame, XLA_FFI_Error_Code_INTERNAL, "pagedcache: XLA has given the pool another place");
    }
    if (q[2] != pool[3] || args[SLOTS]->dims[0] != q[0])
        return fail(frame, invalid,
                    "pagedcache: q has rows of %d numbers and %d tokens; k_pool has heads of %d, and "
                    "there are %d slots",
                    (int)q[2], (int)q[0], (int)pool[3], (int)args[SLOTS]->dims[0]);
    if (pool[0] < 2 || pool[0] > INT32_MAX || q[0] > INT32_MAX || q[1] > INT32_MAX)
        return fail(frame, invalid,
                    "pagedcache: the pool has %lld rows; it must have the zero block, and 1 to 2^31 - 2 "
                    "others",
                    (long long)pool[0]);
    return NULL;
}

/* -- the work -------------------------------------------------------------------------------------------------- */

enum { TOO_MANY_TOKENS = -1, NO_MEMORY = -2 }; /* beside the statuses of pagedcache.h */

static int64_t bytes_of_row(const XLA_FFI_Buffer *rows) {
    const int64_t size = rows->dtype == XLA_FFI_DataType_F32 ? 4 : 2;
    return size * rows->dims[1] * rows->dims[2];
}

static int write(const pagedcache_layer *layer, XLA_FFI_Buffer *const *args, int64_t tokens, int32_t threads) {
    int64_t few[64], *slots = few;
    if (tokens > 64 && !(slots = malloc(sizeof *slots * (size_t)tokens))) return NO_MEMORY;
    for (int64_t i = 0; i < tokens; i++) slots[i] = ((const int32_t *)args[SLOTS]->data)[i];
    const int status = pc->write(layer, args[K]->data, args[V]->data, number(args[K]->dtype), slots, tokens, threads);
    if (slots != few) free(slots);
    return status;
}

static int work(const XLA_FFI_Attrs *attrs, XLA_FFI_Buffer *const *args, XLA_FFI_Buffer *out) {
    const int64_t *pool = args[K_POOL]->dims;
    const pagedcache_layer layer = {.k = args[K_POOL]->data,
                                    .v = args[V_POOL]->data,
                                    .num_blocks = (int32_t)pool[0] - 1,
                                    .block_size = (int32_t)pool[1],
                                    .kv_heads = (int32_t)pool[2],
                                    .head_dim = (int32_t)pool[3],
                                    .v_head_dim = (int32_t)args[V_POOL]->dims[3],
                                    .dtype = number(args[K_POOL]->dtype)};
    const int32_t *starts = args[QO_INDPTR]->data;
    int32_t n = (int32_t)args[BLOCK_TABLES]->dims[0];
    while (n && starts[n] == starts[n - 1]) n--; /* rows that only fill up */
    const int32_t tokens = starts[n];
    if (tokens < 0 || tokens > args[Q]->dims[0]) return TOO_MANY_TOKENS;
    const pagedcache_step step = {.num_sequences = n,
                                  .num_tokens = tokens,
                                  .table_width = (int32_t)args[BLOCK_TABLES]->dims[1],
                                  .block_tables = args[BLOCK_TABLES]->data,
                                  .qo_indptr = starts,
                                  .kv_lens = args[KV_LENS]->data,
                                  .kv_pads = args[KV_PADS]->data,
                                  .kv_starts = args[KV_STARTS]->data,
                                  .window = whole(attrs, "window"),
                                  .sink_tokens = whole(attrs, "sink_tokens")};
    const pagedcache_options options = {.scale = real(attrs, "scale"),
                                        .softcap = real(attrs, "softcap"),
                                        .exact = (int32_t)whole(attrs, "exact"),
                                        .threads = (int32_t)whole(attrs, "threads")};
    pagedcache_plan *plan;
    int status = pc->plan_make(&layer, &step, (int32_t)args[Q]->dims[1], &plan);
    if (status) return status;
    if (!(status = write(&layer, args, tokens, options.threads)))
        status = pc->attend(&layer, plan, args[Q]->data, number(args[Q]->dtype), out->data, number(out->dtype), NULL,
                            &options);
    pc->plan_free(plan);
    const int64_t row = bytes_of_row(out);
    memset((char *)out->data + tokens * row, 0, (size_t)((out->dims[0] - tokens) * row));
    return status;
}

static int asks_what_this_is(const XLA_FFI_CallFrame *frame) {
    for (XLA_FFI_Extension_Base *each = frame->extension_start; each; each = each->next) {
        if (each->type != XLA_FFI_Extension_Metadata) continue;
        XLA_FFI_Metadata *about = ((XLA_FFI_Metadata_Extension *)each)->metadata;
        about->api_version.major_version = XLA_FFI_API_MAJOR;
        about->api_version.minor_version = XLA_FFI_API_MINOR;
        return 1;
    }
    return 0;
}

SHOWN XLA_FFI_Error *pagedcache_jax_attend(XLA_FFI_CallFrame *frame) {
    if (asks_what_this_is(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return NULL;
    if (frame->args.size != NUM_ARGS || frame->rets.size != NUM_RETS)
        return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                    "pagedcache: %d arguments and %d results; there are %d "
                    "and %d",
                    (int)frame->args.size, (int)frame->rets.size, NUM_ARGS, NUM_RETS);
    XLA_FFI_Buffer *const *args = (XLA_FFI_Buffer *const *)frame->args.args;
    XLA_FFI_Buffer *const *rets = (XLA_FFI_Buffer *const *)frame->rets.rets;
    XLA_FFI_Error *wrong = check(frame, args, rets);
    if (wrong) return wrong;
    const int status = work(&frame->attrs, args, rets[OUT]);
    if (status == TOO_MANY_TOKENS)
        return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "pagedcache: qo_indptr names more tokens than q has");
    if (status == NO_MEMORY)
        return fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "pagedcache: no memory for the slots of a step");
    return status ? failed(frame, status) : NULL;
}
