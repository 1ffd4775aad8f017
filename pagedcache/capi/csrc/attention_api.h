/* The functions of the table that work on the caller's memory; pagedcache.h says what they do. */
#pragma once
#include "pagedcache.h"

const char *pc_api_isa(void);
int pc_api_write(const pagedcache_layer *layer, const void *k, const void *v, int32_t dtype, const int64_t *slots,
                 int64_t n, int32_t threads);
int pc_api_attend(const pagedcache_layer *layer, const pagedcache_plan *plan, const void *q, int32_t q_dtype, void *out,
                  int32_t out_dtype, float *lse, const pagedcache_options *options);
int pc_api_copy_blocks(const pagedcache_layer *layers, int32_t num_layers, const int32_t *pairs, int64_t n,
                       int32_t threads);
