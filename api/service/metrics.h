#pragma once

/*
 * metrics - counters and histograms of the front, in vLLM's families and buckets, so that routers and
 * dashboards need no configuration and histograms of several daemons add up. What only the worker
 * knows comes from its last report; a scrape never waits for it.
 *
 * Time to first token runs from the receipt of the request's head, so tokenising and queueing are in
 * it. An event that brings k tokens after a pause of t counts as k intervals of t / k.
 */

#include <stdbool.h>
#include <stdint.h>
#include "proto/messages.h"

#define METRICS_BUCKETS 24

struct histogram {
    const double *bounds; /* ends with a negative one */
    uint64_t count[METRICS_BUCKETS + 1], n;
    double sum;
};

struct metrics {
    struct histogram ttft, between, per_token, e2e, queue, prefill, decode, inference;
    struct histogram prompt_tokens, output_tokens, max_tokens, n;
    uint64_t success[4]; /* stop, length, abort, tool_calls */
    struct msg_stats worker;
    bool has_worker;
    uint64_t n_workers_lost;
};

struct gen;
struct exchange;

void metrics_init(struct metrics *m);
/* A generation's first token has come. */
void metrics_first_token(struct metrics *m, const struct gen *g);
void metrics_between_tokens(struct metrics *m, int64_t ns, uint32_t n);
/* A generation has ended, in whatever way, @n of its request. */
void metrics_gen_done(struct metrics *m, const struct gen *g, const struct exchange *x, uint32_t n);
