// Numbers that the kernels compute with. No header of CUDA's is needed: a type that C lacks is a struct of its bits.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct f16 { // IEEE binary16
    u16 bits;
};
struct bf16 { // the upper half of a float
    u16 bits;
};
struct e4m3 { // 8 bits: sign, exponent of 4 (bias 7), mantissa of 3; no infinity
    u8 bits;
};
struct e5m2 { // 8 bits: the upper half of an f16
    u8 bits;
};

// How q, k, v and out are given, whatever the pool stores; the numbers stand in backends/cuda/_params.py too.
enum Given { GIVEN_F32 = 0, GIVEN_F16 = 1, GIVEN_BF16 = 2 };
