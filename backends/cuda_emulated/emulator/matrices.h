// What tensor cores and their loads do, for a warp whose 32 lanes have come: element l of `lanes` is lane l's argument.
// How elements lie in lanes is described in backends/cuda/kernels/primitives.cuh.
#pragma once

#include "runtime.h"

namespace emulator {

struct MatrixRow { // argument of a lane
    u32 *r;
    const Bytes *row;
};

struct Product { // argument of a lane
    float *c;
    const u32 *a, *b;
};

void load_plain(void **lanes);
void load_transposed(void **lanes);
void product_of_f16(void **lanes);
void product_of_bf16(void **lanes);

} // namespace emulator
