#pragma once

/*
 * bench_tenants - the results of a trace's tenants: the table of the simulator (docs/simulator.md),
 * as measured by a client.
 *
 *   first token     from when the turn was first due, refusals and pauses after them included. A
 *                   turn without a first token when the test ends counts with what it had waited:
 *                   then percentiles are lower bounds
 *   between tokens  between pieces of text; a piece may hold several tokens
 *   job             from an agent's beginning to the end of its last turn
 *   served          tokens of prompts (cached or not) and answers of turns that were finished
 */

#include <stdio.h>
#include <yyjson.h>
#include "cmd/bench_http.h"
#include "cmd/bench_stats.h"

#define TENANTS 64u

/* from_ns <= to_ns. */
struct span {
    int64_t from_ns, to_ns;
};

/* In the order in which they were added; n <= cap. */
struct spans {
    struct span *v;
    size_t n, cap;
};

/* Measurements of one tenant. */
struct tenant {
    char name[24];
    bool here;
    double weight;
    uint64_t n_turns, n_finished, n_failed; /* failed: not refused, but no answer either */
    uint64_t n_unanswered;                  /* without a first token when the test ended */
    uint64_t n_short;                       /* finished, with fewer tokens than were asked for */
    uint64_t n_jobs, n_jobs_all;
    uint64_t n_refused, n_unexplained; /* unexplained: without Retry-After */
    uint64_t n_planned;                /* prompt tokens, by the trace */
    uint64_t n_prompt, n_cached, n_out,
        n_received;                                /* received: pieces, unfinished turns included */
    struct samples ttft, itl, worst, job, refusal; /* seconds */
    struct spans wait;                             /* turns that waited for their first token */
    struct spans gap;                              /* the inter-token times */
};

/* Zeroed at first. */
struct bench_tenants {
    struct tenant tenant[TENANTS]; /* tenants of the trace have `here` set */
    int64_t start_ns, end_ns;
    char first_error[200];
};

void bench_tenants_deinit(struct bench_tenants *r); /* accepts a zeroed one */

/* Counts a finished turn, which was first due at @q's due_ns. @n_output: requested tokens. 0 or
 * -ENOMEM, as all below. */
int bench_tenants_finished(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                           uint32_t n_output);
/* Count a turn that was refused and may be sent again, and a turn that has failed. */
int bench_tenants_refused(struct tenant *t, const struct bench_request *q);
void bench_tenants_failed(struct bench_tenants *r, struct tenant *t, const struct bench_request *q);
/* Counts a turn during which the test ended; @q NULL: it paused after a refusal. */
int bench_tenants_cut(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                      int64_t due_ns);

/* Returns Jain's fairness index, (sum x)^2 / (n sum x^2), of the tokens served per weight: of all
 * tenants, or, if @wanting, of those that waited for a first token nearly all the time and so could
 * have used more. *n: number of these tenants. Returns 0 if there are fewer than two. */
double bench_tenants_jain(struct bench_tenants *r, bool wanting, uint32_t *n);

/* The inter-token times of @t that lie in, or reach into, those in which a turn of @other waited
 * for its first token. The caller frees the samples. Returns 0 or -ENOMEM. */
int bench_tenants_during(const struct tenant *t, struct tenant *other, struct samples *out);

/* Prints the table. @during (NULL: none): tenant for which bench_tenants_during() is called,
 * too. */
void bench_tenants_print(struct bench_tenants *r, struct tenant *during, FILE *f);
void bench_tenants_json(struct bench_tenants *r, struct tenant *during, yyjson_mut_doc *d,
                        yyjson_mut_val *root);
