#pragma once

/*
 * bench_stats - samples, their mean, deviation and quantiles, and distributions of lengths.
 */

#include <stdbool.h>

#include "base/err.h"
#include "base/rng.h"

/* A growing array of samples; n <= cap; no sample is NaN, since qsort() needs an order. */
struct samples {
    double *v;
    size_t n, cap;
};

struct summary {
    size_t n;
    double mean, sd, min, p50, p90, p99,
        /* 0 if n is 0; sd is the deviation of a sample (divisor n - 1) */
        max;
};

void samples_deinit(struct samples *s); /* accepts a zeroed one */
/* Add samples. Return 0, or -ENOMEM with the samples unchanged (after samples_add_all(): some were
 * added). */
int samples_add(struct samples *s, double v);
int samples_add_all(struct samples *s, const struct samples *from);

/* Returns the quantile @q in [0, 1] of @n > 0 sorted values, interpolated between the two
 * neighbours of position q (n - 1), as numpy's default does. */
double stats_quantile(const double *sorted, size_t n, double q);
/* Returns the summary; sorts the samples. */
struct summary samples_summary(struct samples *s);

/* A distribution of lengths: "N", "A-B" (uniform), "A,B,C" (equally likely), "exp:MEAN",
 * "lognormal:MEDIAN:SIGMA". Draws lie in [1, LENGTH_MAX]. */
#define LENGTH_MAX 1000000u
#define DIST_CHOICES 16u

/* A distribution. After dist_parse(): a >= 1; n > 0 for DIST_CHOICE; a < b for DIST_UNIFORM. */
struct dist {
    enum { DIST_FIXED, DIST_UNIFORM, DIST_CHOICE, DIST_EXP, DIST_LOGNORMAL } kind;
    double a, b;
    uint32_t n, choice[DIST_CHOICES];
};

/* Parses @text. Returns 0, -ENOMEM, or -EINVAL with @err. */
int dist_parse(struct dist *d, const char *text, struct err *err);
/* Draws a length, which depends only on @d and the state of @r. */
uint32_t dist_draw(const struct dist *d, struct rng *r);

/* Draws an exponentially distributed time of mean 1. */
double stats_exponential(struct rng *r);
