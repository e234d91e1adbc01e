#pragma once

/*
 * bench_result - the measurements of a load test, summed over requests; printed as a table and as
 * JSON.
 *
 *   ttft   from the time when the request was due to its first text
 *   itl    between consecutive pieces of text, over all requests
 *   tpot   (last text - first text) / (output tokens - 1), one value per request
 *   e2e    from the time when the request was due to its end
 *   gap    the largest inter-token gap, one value per request
 *
 * A request of an open-loop test is due at its arrival time, also when it was sent later: a slow
 * server cannot hide its queue in the client.
 */

#include <stdio.h>

#include "base/lib_types.h"
#include "cmd/bench_http.h"
#include "cmd/bench_stats.h"

/* Sums of a load test; zeroed at first except for start_ns and the objectives. n_good, n_guessed <=
 * number of requests that are done; end_ns is the time of the last end. */
struct bench_result {
    /* requests by outcome */
    uint64_t n[OUTCOMES];
    /* requests that met both objectives */
    uint64_t n_good;
    /* requests without usage, whose pieces are counted as tokens */
    uint64_t n_guessed;
    uint64_t prompt_tokens, cached_tokens, output_tokens;
    /* in seconds */
    struct samples ttft, itl, tpot, e2e, gap;
    /* energy that the device used during the test; 0: the server reports none */
    double joules;
    int64_t start_ns, end_ns;
    char first_error[200];
    /* objectives; 0: none */
    double slo_ttft_s, slo_itl_s;
};

void bench_result_deinit(struct bench_result *r); /* accepts a zeroed one */
/* Counts @q, which is done. Returns 0 or -ENOMEM. */
int bench_result_add(struct bench_result *r, const struct bench_request *q);
/* Returns the number of added requests of any outcome. */
uint64_t bench_result_n_done(const struct bench_result *r);

/* Print the result as a table, or add it to @root as members. Both sort the samples. */
void bench_result_print(struct bench_result *r, FILE *f);
void bench_result_json(struct bench_result *r, yyjson_mut_doc *d, yyjson_mut_val *root);
