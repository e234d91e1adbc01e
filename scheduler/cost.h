#pragma once

/*
 * cost - how long a step takes, learnt from the steps that were taken.
 *
 * A linear model of what a batch looks like (struct cost_shape), fitted by recursive least
 * squares to the relative error, so that a decode step of 5 ms counts as much as a prefill step
 * of 200 ms. Old steps are forgotten slowly, and only in what new ones say something about: hours
 * of pure decode do not change the price of prefill. No coefficient falls below zero: more work
 * never gets cheaper, so the greatest chunk under a limit can be found by bisection.
 *
 * Before there is data, rows are expensive; and nothing is trusted much beyond what was seen
 * (cost_trusted_rows()): the first long prompt comes in chunks that double.
 */

#include <stdbool.h>
#include <stdint.h>

#define COST_FEATURES 7

struct cost_shape {
    uint32_t rows, seqs;
    uint64_t context; /* sum over sequences of the positions they read: decode reads keys */
    uint64_t pairs;   /* sum over the rows of prefill chunks of their context: arithmetic */
    uint32_t copies;  /* pages that go to host memory or come back */
};

struct cost {
    double a[COST_FEATURES];                /* ms for each feature */
    double p[COST_FEATURES][COST_FEATURES]; /* their covariance, scaled */
    double cap[COST_FEATURES];              /* of p's diagonal */
    double error;                           /* running mean of the relative underestimate */
    uint64_t n_seen;
    uint32_t max_rows; /* of a step that was seen */
    bool has_copied;
};

/* Nothing was seen: a millisecond a row. */
void cost_init(struct cost *c);

/* A step of shape @s took @ns. */
void cost_learn(struct cost *c, const struct cost_shape *s, int64_t ns);

/* What is expected; and with a margin for the error made lately, which is what planning uses. */
int64_t cost_expect_ns(const struct cost *c, const struct cost_shape *s);
int64_t cost_bound_ns(const struct cost *c, const struct cost_shape *s);

/* What copying @n pages adds to a step. */
int64_t cost_copies_ns(const struct cost *c, uint32_t n);

/* The part of a step of shape @all that belongs to @own, in ms: the parts add up to what is
 * expected. */
double cost_part_ms(const struct cost *c, const struct cost_shape *all,
                    const struct cost_shape *own);

/* No step should have more rows than this, until one of that size was seen. */
uint32_t cost_trusted_rows(const struct cost *c);

/* Adds a sequence's share to a shape: @n_rows rows from position @pos0 on. */
void cost_add(struct cost_shape *s, uint32_t pos0, uint32_t n_rows);
void cost_remove(struct cost_shape *s, uint32_t pos0, uint32_t n_rows);
