#pragma once

/* selftest - common declarations of the self-test: selftest.c, and the checks of families
 * (op_family.check). */

#include "engine/cuda/cuda.h"

/* Largest relative error, |got - right| / |right|, of products and of attention. Products of 8-bit
 * codes round the activations to eight bits. */
#define SELFTEST_LIMIT 4e-3
#define SELFTEST_LIMIT_BYTES 2.5e-2

#define SELFTEST_OFF "%s is off by %.3g, at most %.3g is expected"

#define SELFTEST_KEYS 912u /* most rows of a step */

/* A step of a test. */
struct selftest_step {
    struct engine_batch batch;
    struct engine_seq seq[SELFTEST_KEYS];
    /* page: [entries of the page tables] */
    uint32_t start[SELFTEST_KEYS + 1], *page;
};

/* Begins a step of @n rows from position @pos0 on, of one sequence or, with @apart, of one each on
 * the same pages; t->page has room for the page tables. selftest_end() marks the step as idle.
 * Returns 0 or -EIO. */
int selftest_begin(struct be *b, struct selftest_step *t, uint32_t pos0, uint32_t n, bool apart,
                   struct step **s);
void selftest_end(struct be *b);
/* Fills @x with @n pseudo-random numbers around 0 from @seed, nearly normal with variance 1/4. */
void selftest_fill(float *x, size_t n, uint64_t seed);
/* Copies @n floats from pageable host memory to the device. Returns 0 or -EIO. */
int selftest_send(struct be *b, const float *from, float *to, size_t n);
/* Copies @bytes of the device to @to and waits for all enqueued work. Returns 0 or -EIO. */
int selftest_fetch(struct be *b, void *to, const void *from, size_t bytes);
/* Notes in be.about.note that kernel @what is not used, and why; a plainer kernel replaces it.
 * Clears counters that the wrong kernel may have left. Returns 0 or -EIO. */
int selftest_disable(struct be *b, const char *what, const char *why);
/* Returns -EINVAL with a description of wrong results in @err, if no plainer kernel can replace the
 * wrong one. */
__attribute__((format(printf, 3, 4))) int selftest_refuse(const struct be *b, struct err *err,
                                                          const char *format, ...);

/* More than twice the rows that kda() has in shared memory, and more than two blocks of route(). */
#define SELFTEST_ROWS 19u

/* The test of an op: its step, and its numbers in one piece of host memory, which is freed. */
struct selftest_op {
    struct be *b;
    /* the model's */
    const struct model_op *of;
    struct weights weights;
    struct selftest_step step;
    uint32_t n_rows;
    float *all;
};

/* Returns the next op of a kind after @after, or the first (NULL), whose layer is on this device;
 * NULL: there is none. */
const struct model_op *selftest_next(const struct be *b, enum op_kind kind,
                                     const struct model_op *after);
/* Tests an op with @try on at most SELFTEST_ROWS rows. Returns what @try does. */
int selftest_try(struct be *b, const struct model_op *op,
                 int (*try)(struct selftest_op *t, struct err *err), struct err *err);
