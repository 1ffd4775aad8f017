/* The kernels for AVX-512 and AVX-512-BF16, on any processor with AVX2. */
#define PC_EMULATED 1
#define PC_TABLES (1 << 2 | 1 << 3)
#include "emulated_avx512.h"
#include "kernels.c"
