/* What the test program is made of: numbers, the model of attention, random cases.
 *
 * numbers.c  what stored numbers mean, one by one, and whether a table's conversions agree
 * model.c    attention in float64, written as its definition reads
 * cases.c    pools, steps and queries at random, from a seed
 * check.c    runs the kernels on them and compares: the program's main */
#pragma once
#include <stdio.h>

#include "kernels.h"
#include "plan.h"

enum { MOST_WIDTH = 256, MOST_SEQUENCES = 4 };

/* -- numbers.c ------------------------------------------------------------------------------------ */

int32_t size_of(int32_t dtype); /* bytes */
double decode(int32_t dtype, const void *p);
int check_numbers(const pc_kernels *kernels); /* how many were wrong; prints each kind once */

/* -- cases.c -------------------------------------------------------------------------------------- */

enum { DECODE, DRAFT, CHUNK, MIXED, KINDS };
enum {
    F_WINDOW,
    F_SINKS,
    F_LOGITS,
    F_CAP,
    F_SLOPES,
    F_TREE,
    F_PADS,
    F_SHARED,
    F_NATIVE,
    F_HIDDEN_NAN,
    F_LONG,
    FEATURES
};

typedef struct attributes { /* of attend, in natural units; window and sink tokens stand in the step */
    double scale, cap;      /* cap 0: none */
    const float *slopes, *sink_logits;
} attributes;

typedef struct sample {
    char name[200];    /* what it is, in words */
    uint32_t features; /* bit F_... */
    pc_job job;        /* without what pc_attend adds */
    pc_step step;
    attributes attributes;
    pc_rows k, v;   /* what is stored */
    int64_t *slots; /* and where */
    int64_t stored;
    void *owned[32]; /* for free */
    int num_owned;
} sample;

/* `number` decides all; dtype, width of K and group run through all their values first. */
void sample_make(sample *s, int64_t number, const pc_kernels *kernels);
void sample_free(sample *s);
int sample_check_stored(const sample *s); /* how many numbers in the pool are not what was stored, or poison lost */
extern const char *const feature_names[FEATURES];

/* -- model.c -------------------------------------------------------------------------------------- */

typedef struct row { /* of one query head */
    double out[MOST_WIDTH], lse;
    double score, value; /* largest |score| and |v| that it sees */
} row;

typedef struct model { /* a sample, and the numbers of its pool */
    const sample *sample;
    double *k, *v;
} model;

model model_of(const sample *s);
void model_free(model m);

/* Query i of sequence n of the step, for one query head. */
void model_row(const model *m, int32_t n, int32_t i, int32_t head, row *result);
