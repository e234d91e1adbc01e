#pragma once

/*
 * bench_trace - reads a workload of agents from a text file with one statement per line
 * (docs/design/simulator.md has the grammar):
 *
 *   machine h200
 *   pool pages=20000 page=16
 *   server seqs=64 rows=2048 context=131072 itl=50 step=200 depth=2 bypass=8
 *   agents coder tenant=1 count=8 turns=5-10 system=4000 first=500-2000 more=100-1500 output=50-400
 *   until 120000
 *
 * Values are drawn uniformly from ranges. Times are in ms. The simulator replays traces against the
 * scheduler, weft-bench against servers.
 */

#include <stdbool.h>

#include "base/err.h"

#define TRACE_GROUPS 16

struct range {
    uint32_t low, high;
};

/* A group of equal agents. An agent's turn is a request; when it has ended, a tool runs for a
 * while, and the next turn sends the whole conversation and the tool's result. */
struct trace_group {
    char name[24];
    /* weight in thousandths */
    struct range tenant, weight, class, priority, count;
    /* time when an agent begins */
    struct range start;
    /* in tokens; system: the common system prompt */
    struct range turns, system, first, more, output;
    /* time until the next turn */
    struct range pause;
    /* one pause in think_every takes the time of `think` instead; 0: none */
    struct range think_every, think;
    /* time after which the client leaves, unless its turn has ended; 0: it stays */
    struct range leave;
    struct range subs_every, subs,
        /* one turn in subs_every waits for this many sub-agents first */
        sub_turns;
};

struct trace_file {
    struct trace_group group[TRACE_GROUPS];
    uint32_t n_groups;
    /* size of the KV cache */
    uint32_t n_pages, page_tokens, n_host_pages;
    /* slots of recurrent states; 0: none */
    uint32_t n_states, n_snapshots;
    /* options of the server, down to `noise` */
    uint32_t max_seqs, max_rows, max_context, depth;
    /* noise of a step's time in percent */
    uint32_t itl_ms, step_ms, max_bypass, noise;
    char machine[16], drafts[16];
    uint64_t seed;
    /* 0: the run ends when all agents have ended */
    uint32_t until_ms;
};

/* Reads a trace. @check (may be NULL) is called after each line and returns false for a wrong name
 * that only the caller knows (a machine, drafts). Returns 0 or -EINVAL with @err. */
int bench_trace_read(struct trace_file *t, const char *path,
                     bool (*check)(const struct trace_file *t), struct err *err);
/* Replaces values of a file: "GROUP.KEY=RANGE", "until=MS" or "seed=N", separated by commas.
 * Returns 0 or -EINVAL. */
int bench_trace_set(struct trace_file *t, const char *values, struct err *err);
