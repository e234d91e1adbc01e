#pragma once

/* bench_agents_recorded - replays a public trace of agents (bench_recorded.h) against a server. */

#include "cmd/bench_recorded.h"
#include "cmd/bench_target.h"

/* Options of the command, and its arguments for the record. */
struct recorded_opts {
    double tokens, times;             /* factors */
    double max_pause_s;               /* 0: no limit */
    double slo_ttft_ms, slo_itl_ms;   /* objectives; 0: none */
    uint32_t concurrency, n_requests; /* concurrency: sessions at once; n_requests 0: all */
    const char *vocab, *json;         /* vocab: "A-B"; json: NULL, or the path of the record */
    bool sessions;                    /* sends session ids */
    int argc;
    char **argv;
};

/* Replays @trace against @target, prints a table and writes the record. Returns the exit code. */
int agents_replay_recorded(struct bench_target *target, const struct recorded *trace,
                           const struct recorded_opts *opts);
