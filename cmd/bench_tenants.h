#pragma once

/*
 * bench_tenants - collects the results of a trace's tenants for the table of the simulator
 * (docs/design/simulator.md), as a client measures them.
 *
 *   first token     from the time when the turn was first due, with refusals and the pauses after
 *                   them. A turn without a first token when the test ends counts with its time so
 *                   far: then percentiles are lower bounds
 *   between tokens  between pieces of text; a piece may hold several tokens
 *   job             from an agent's beginning to the end of its last turn
 *   served          tokens of prompts (cached or not) and answers of turns that were finished
 */

#include <stdio.h>

#include "base/lib_types.h"
#include "cmd/bench_http.h"
#include "cmd/bench_stats.h"

#define TENANTS 64u

/* A span of time, from_ns <= to_ns. */
struct span {
    int64_t from_ns, to_ns;
};

/* Spans in the order in which they were added; n <= cap. */
struct spans {
    struct span *v;
    size_t n, cap;
};

/* Measurements of one tenant. */
struct tenant {
    char name[24];
    bool here;
    double weight;
    /* n_failed: turns that got neither a refusal nor an answer */
    uint64_t n_turns, n_finished, n_failed;
    /* turns without a first token when the test ended */
    uint64_t n_unanswered;
    /* finished turns with fewer tokens than requested */
    uint64_t n_short;
    uint64_t n_jobs, n_jobs_all;
    /* n_unexplained: refusals without Retry-After */
    uint64_t n_refused, n_unexplained;
    /* prompt tokens according to the trace */
    uint64_t n_planned;
    uint64_t n_prompt, n_cached, n_out,
        /* received pieces, including those of unfinished turns */
        n_received;
    /* in seconds */
    struct samples ttft, itl, worst, job, refusal;
    /* times in which turns waited for their first token */
    struct spans wait;
    /* times between tokens */
    struct spans gap;
};

/* Results of all tenants; zeroed at first. */
struct bench_tenants {
    /* tenants of the trace have `here` set */
    struct tenant tenant[TENANTS];
    int64_t start_ns, end_ns;
    char first_error[200];
};

void bench_tenants_deinit(struct bench_tenants *r); /* accepts a zeroed one */

/* Counts a finished turn, which was first due at @q's due_ns. @n_output: requested tokens. Returns
 * 0 or -ENOMEM, as do the functions below. */
int bench_tenants_finished(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                           uint32_t n_output);
/* Count a turn that was refused and may be sent again, and a turn that has failed. */
int bench_tenants_refused(struct tenant *t, const struct bench_request *q);
void bench_tenants_failed(struct bench_tenants *r, struct tenant *t, const struct bench_request *q);
/* Counts a turn during which the test ended; @q NULL: it paused after a refusal. */
int bench_tenants_cut(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                      int64_t due_ns);

/* Returns Jain's fairness index, (sum x)^2 / (n sum x^2), of the tokens served per weight: over all
 * tenants or, if @wanting, over those that waited for a first token nearly all the time and so
 * could have used more. *n: number of these tenants. Returns 0 if there are fewer than two. */
double bench_tenants_jain(struct bench_tenants *r, bool wanting, uint32_t *n);

/* Collects the inter-token times of @t that overlap with times in which a turn of @other waited for
 * its first token. The caller frees the samples. Returns 0 or -ENOMEM. */
int bench_tenants_during(const struct tenant *t, struct tenant *other, struct samples *out);

/* Prints the table. @during: tenant for which the figures of bench_tenants_during() are printed
 * too; NULL: none. */
void bench_tenants_print(struct bench_tenants *r, struct tenant *during, FILE *f);
void bench_tenants_json(struct bench_tenants *r, struct tenant *during, yyjson_mut_doc *d,
                        yyjson_mut_val *root);
