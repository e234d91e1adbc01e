#pragma once

/*
 * cost - predicts how long a step takes, from the steps so far.
 *
 * The time of a step is speed times shape. The shape is a linear model of a batch (struct
 * cost_shape). The speed is the median, over the last steps, of the measured time divided by the
 * time of the shape. It follows within four steps when other programs take the processor, and a
 * single slow step does not change it. A Kalman filter fits the shape to the differences between
 * successive steps, so steps of one size never decide what other sizes cost. It also fits the
 * differences between successive blocks of steps, because contexts grow too slowly to be seen from
 * step to step: without that, the speed would follow a wrong price of context, and with it the
 * price of everything else. No coefficient falls below zero: more work is never cheaper, so
 * bisection finds the greatest chunk under a limit.
 *
 * Before there is data, a prior from the bytes and operations of the model holds. Steps far larger
 * than any seen are not trusted (cost_trusted_rows()): the first long prompt comes in chunks that
 * double.
 */

#include <stdbool.h>
#include <stdint.h>

#define COST_FEATURES 7
#define COST_SPEEDS 7 /* steps over which the median is taken */

struct cost_shape {
    uint32_t rows, seqs;
    /* sum over sequences of the positions they read: decode reads keys */
    uint64_t context;
    /* sum over the rows of prefill chunks of their context: arithmetic */
    uint64_t pairs;
    /* pages copied to or from host memory */
    uint32_t copies;
};

/* Sums over the steps of a block, of which n have been added. */
struct cost_block {
    /* sums of the features */
    double x[COST_FEATURES];
    double ms;
    /* number of steps */
    uint32_t n;
};

struct cost {
    /* ms per unit of each feature at speed 1 */
    double a[COST_FEATURES];
    /* scaled covariance of a */
    double p[COST_FEATURES][COST_FEATURES];
    /* the largest diagonal of p */
    double cap[COST_FEATURES];
    /* mean of the last steps' features per ms */
    double mean[COST_FEATURES];
    /* mean of the relative errors of the last steps */
    double mean_error;
    /* factor of the time that a gives */
    double speed;
    /* speeds of the last steps (ring buffer) */
    double recent[COST_SPEEDS];
    /* bit i: recent[i] is of a step that only decoded */
    uint64_t decodes;
    /* running variance of the relative error */
    double noise;
    /* lower bound of noise, by cost_model.own_processor */
    double least_noise;
    /* running mean of the relative underestimate */
    double error;
    /* last: the previous complete block; block: the one that is being filled */
    struct cost_block last, block;
    uint64_t n_seen, n_speeds;
    /* half of cost_trusted_rows() */
    uint32_t max_rows;
    bool has_copied;
};

/* Sizes of a model, from which the prior follows, and the kind of processor. */
struct cost_model {
    double weight_bytes, n_params;
    /* bytes of keys and values of one position */
    double key_bytes;
    /* multiplications of a row for each position that it attends to */
    double pair_ops;
    /* True if no other program uses the processor: equal steps take equal times, so a few steps are
     * enough to learn from. */
    bool own_processor;
};

/* Initialises @c without data, for a processor that other programs use too: 1 ms a row until the
 * first step sets the scale. */
void cost_init(struct cost *c);
/* Initialises @c for the processor of @m, with the ratios of coefficients that follow from @m, or
 * those of cost_init() if the number of parameters is unknown. */
void cost_init_for(struct cost *c, const struct cost_model *m);

/* Learns from a step of shape @s that took @ns. */
void cost_learn(struct cost *c, const struct cost_shape *s, int64_t ns);

/* Return the time of a step of shape @s in ns: cost_expect_ns() the expected time, cost_bound_ns()
 * that time with a margin for the recent underestimate, for planning. */
int64_t cost_expect_ns(const struct cost *c, const struct cost_shape *s);
int64_t cost_bound_ns(const struct cost *c, const struct cost_shape *s);

/* Returns true on a shared processor while the speed is that of steps that only decode: a chunk may
 * take twice its expected time. */
bool cost_is_of_decode(const struct cost *c);

/* Returns true if the last steps took little longer than expected, so that few probes keep the
 * model right. */
bool cost_is_sure(const struct cost *c);

/* Returns what one more row adds to a step of many rows, in ns, without attention. */
int64_t cost_row_ns(const struct cost *c);

/* Returns the smallest chunk, of at most @max_rows rows from position @pos0 on, that computes its
 * rows at 9/10 of the best rate when nothing else is in its step. */
uint32_t cost_efficient_rows(const struct cost *c, uint32_t pos0, uint32_t max_rows);

/* Returns how many ns copying @n pages adds to a step. */
int64_t cost_copies_ns(const struct cost *c, uint32_t n);

/* Returns the part of a step of shape @all that the rows of @own take, in ms. The parts of all
 * sequences of a step add up to its expected time without copies, which are of no sequence. */
double cost_part_ms(const struct cost *c, const struct cost_shape *all,
                    const struct cost_shape *own);

/* Returns the most rows that a step should have: twice as many as the largest step since a chunk
 * last took twice its expected time, or as many as that chunk's step; at least 32. */
uint32_t cost_trusted_rows(const struct cost *c);

/* Add @n_rows rows of a sequence from position @pos0 on to shape @s, or remove them from it. */
void cost_add(struct cost_shape *s, uint32_t pos0, uint32_t n_rows);
void cost_remove(struct cost_shape *s, uint32_t pos0, uint32_t n_rows);
