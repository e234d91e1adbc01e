#pragma once

/*
 * serving - serves requests by a scheduler on a real engine with a small model and records their
 * results, for tests that compare the results of two ways of serving bit for bit.
 */

#include "base/rng.h"
#include "scheduler/scheduler.h"

#define HEARD_MAX 56 /* most output tokens of a request */

struct heard {
    uint32_t n, n_ends, finish, n_accepted;
    int32_t token[HEARD_MAX];
    uint64_t digest[HEARD_MAX];
    /* 0 if none was requested */
    float logprob[HEARD_MAX];
    uint32_t n_vector;
    /* hash of the vector */
    uint64_t vector;
};

struct serving {
    /* draft: file of a draft model, or NULL */
    const struct gguf *model, *draft;
    /* engine_opts.block: file of the block, or NULL */
    const struct gguf *apart;
    const char *backend;
    /* NULL: the first device */
    char *devices;
    /* snapshots of a hybrid model */
    uint32_t n_snapshots;
    uint32_t n_host_pages;
    /* bytes for snapshots and pages of host memory, or 0 */
    uint64_t host_kv_bytes;
    /* engine_opts.windows */
    bool windows;
    /* engine_opts.drafts, unless speculation is off */
    bool block;
    /* 0: 128 */
    uint32_t max_context;
    /* most sequences of the engine */
    uint32_t max_seqs;
    /* number of pages; if few, requests preempt each other */
    uint32_t n_pages;
    uint32_t draft_pages, draft_page_tokens;
    uint32_t first,
        /* requests [first, n_requests) are served; all[i] has the results of request i, whose id
         * is i + 1 */
        n_requests;
    /* number of requests submitted before the first step; 0: all */
    uint32_t at_once;
    /* number of output tokens that @submit gives to each; the tokens behind them are recorded */
    uint32_t n_given;
    /* submits requests that are served first and not recorded; or NULL */
    void (*before)(struct sched *s);
    void (*submit)(struct sched *s, uint32_t i, bool drafts);
};

/* Serves the requests with @opts, whose sizes and times are set here; the depth is at most the
 * engine's. *stats: statistics at the end. */
void serving_run(const struct serving *w, const struct sched_opts *opts, struct heard *all,
                 struct msg_stats *stats);

/* Records the events of @s in all[id - 1]. A request that is refused or fails fails the test. */
void heard_listen(struct heard *all, struct sched *s);
/* Asserts that each request ended once, with the same results in both. */
void heard_compare(const struct heard *a, const struct heard *b, uint32_t n);
/* Makes the recorded output, with mistakes, the prediction of @m; @out: its tokens. */
void heard_predict(const struct heard *h, uint64_t seed, uint32_t n_vocab, int32_t out[HEARD_MAX],
                   struct submit *m);
/* Draws temperature, truncation and penalties, each with its default in many cases. */
void serving_draw(struct rng *r, struct sampling *s);
