#pragma once

/*
 * metrics - /metrics: the rows of proto/stats.h and the front's histograms, in vLLM's families and
 * buckets, so that routers and dashboards need no configuration and histograms of several daemons
 * add up. Values of the worker come from its last report; a scrape never waits for the worker.
 *
 * Time to first token runs from the receipt of the request's head, so tokenising and queueing are
 * in it. An event that brings k tokens after a pause of t counts as k intervals of t / k.
 */

#include <stdbool.h>
#include <stdint.h>

#include "proto/messages.h"

#define METRICS_BUCKETS 24

/* Outcomes of a generation. */
enum metrics_outcome {
    METRICS_STOP,
    METRICS_LENGTH,
    METRICS_ABORT,
    METRICS_TOOL_CALLS,
    METRICS_REPETITION,
    METRICS_OUTCOMES
};

/* Invariants: n is the sum of count; count[i] has the values above bounds[i - 1] and up to
 * bounds[i], the last one all larger values. */
struct histogram {
    /* ends with a negative one */
    const double *bounds;
    uint64_t count[METRICS_BUCKETS + 1], n;
    double sum;
};

/* A histogram is a row, as in proto/stats.h: ROW(FIELD, BOUNDS, FAMILY, HELP), and its
 * observe(). */
#define METRICS_HISTOGRAMS(ROW)                                                                    \
    ROW(ttft, ttft_bounds, "vllm:time_to_first_token_seconds",                                     \
        "Time from receipt to the first token.")                                                   \
    ROW(between, between_bounds, "vllm:inter_token_latency_seconds", "Time between tokens.")       \
    ROW(per_token, between_bounds, "vllm:request_time_per_output_token_seconds",                   \
        "Mean time per output token of a generation.")                                             \
    ROW(e2e, e2e_bounds, "vllm:e2e_request_latency_seconds",                                       \
        "Time from receipt to the last token.")                                                    \
    ROW(queue, e2e_bounds, "vllm:request_queue_time_seconds",                                      \
        "Time from receipt to the first step.")                                                    \
    ROW(prefill, e2e_bounds, "vllm:request_prefill_time_seconds",                                  \
        "Time from the first step to the first token.")                                            \
    ROW(decode, e2e_bounds, "vllm:request_decode_time_seconds",                                    \
        "Time from the first to the last token.")                                                  \
    ROW(inference, e2e_bounds, "vllm:request_inference_time_seconds",                              \
        "Time from the first step to the last token.")                                             \
    ROW(prompt_tokens, token_bounds, "vllm:request_prompt_tokens",                                 \
        "Prompt tokens of a generation.")                                                          \
    ROW(output_tokens, token_bounds, "vllm:request_generation_tokens",                             \
        "Output tokens of a generation.")                                                          \
    ROW(max_tokens, token_bounds, "vllm:request_params_max_tokens", "max_tokens after clamping.")  \
    ROW(n, n_bounds, "vllm:request_params_n", "n of a request.")                                   \
    ROW(longest, token_bounds, "vllm:request_max_num_generation_tokens",                           \
        "Output tokens of the longest choice of a request.")                                       \
    ROW(loop_lag, loop_bounds, "weft_loop_lag_seconds",                                            \
        "Time that one iteration of the front's event loop was busy.")                             \
    ROW(loop_cpu, loop_bounds, "weft_loop_cpu_seconds",                                            \
        "CPU time of one iteration of the front's event loop.")

#define METRICS_HISTOGRAM_FIELD(field, bounds, family, help) struct histogram field;

struct metrics {
    METRICS_HISTOGRAMS(METRICS_HISTOGRAM_FIELD)
    uint64_t success[METRICS_OUTCOMES];
};

/* Figures of a generation for the histograms. Times by the front's clock, 0: not reached. */
struct metrics_gen {
    /* start of the exchange */
    int64_t started_ns;
    int64_t arrived_ns, first_step_ns, first_token_ns, last_token_ns, done_ns;
    /* tokens */
    uint32_t n_prompt, n_output, max_new;
    /* choices of the request; 0: another choice has counted them */
    uint32_t n_choices;
    /* output tokens of the longest of them */
    uint32_t n_longest;
    enum metrics_outcome outcome;
    /* the result is a vector */
    bool embeds;
};

/* Zeroes everything and sets the bounds of the histograms. */
void metrics_init(struct metrics *m);
/* Counts the first token of a generation. */
void metrics_first_token(struct metrics *m, const struct metrics_gen *g);
/* Counts @n > 0 tokens that arrived after a pause of @ns. */
void metrics_between_tokens(struct metrics *m, int64_t ns, uint32_t n);
/* Counts an iteration of the front's event loop that took @busy_ns, of these @cpu_ns of CPU
 * time. */
void metrics_loop(struct metrics *m, uint64_t busy_ns, uint64_t cpu_ns);
/* Counts a generation that has ended for any reason. */
void metrics_gen_done(struct metrics *m, const struct metrics_gen *g);
