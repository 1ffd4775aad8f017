/* K/V into the pool and within it: new tokens at their slots, whole blocks to and from records. */
#pragma once
#include "kernels.h"

enum { PC_WIDEST = 1024 }; /* numbers of a head that pc_store converts and scales; wider ones come as float32 */

/* Stores rows src [n, heads, width] at slots; `heads` of the plane lie as its strides say. */
void pc_store(const pc_kernels *kernels, const pc_plane *plane, const pc_rows *src, int32_t block_size,
              const int64_t *slots, int64_t n, int32_t threads);

/* Copies n pieces of `bytes`: from src + from[i] * stride (or in a row, where `from` is NULL) to dst + to[i] * stride.
 */
void pc_copy(const char *src, int64_t src_stride, const int64_t *from, char *dst, int64_t dst_stride, const int64_t *to,
             int64_t bytes, int64_t n, int32_t threads);
