#pragma once

/*
 * serving - requests served by a scheduler on a real engine with a small model, and what each of
 * them heard: for tests that compare what a request gets in some way of serving with what it gets
 * in another, bit for bit.
 */

#include "base/rng.h"
#include "scheduler/scheduler.h"

#define HEARD_MAX 56 /* output tokens of a request */

struct heard {
    uint32_t n, n_ends, finish, n_accepted;
    int32_t token[HEARD_MAX];
    uint64_t digest[HEARD_MAX];
    float logprob[HEARD_MAX]; /* 0 where none was asked for */
    uint32_t n_vector;
    uint64_t vector; /* a hash of it */
};

struct serving {
    const struct gguf *model, *draft; /* draft: of a draft model, or NULL */
    const struct gguf *apart;         /* engine_opts.block: @block in a file of its own, or NULL */
    const char *backend;
    char *devices;        /* NULL: the first */
    uint32_t n_snapshots; /* of a hybrid model */
    uint32_t n_host_pages;
    uint64_t host_kv_bytes; /* snapshots and pages of host memory, or 0 */
    bool windows;           /* engine_opts.windows */
    bool block;             /* engine_opts.drafts, unless speculation is off */
    uint32_t max_context;   /* 0: 128 */
    uint32_t max_seqs;      /* of the engine */
    uint32_t n_pages;       /* few, and requests preempt each other */
    uint32_t draft_pages, draft_page_tokens;
    uint32_t first,
        n_requests;   /* which are served; all[i] is what request i hears, its id is i + 1 */
    uint32_t at_once; /* submitted before steps are made; 0: all */
    uint32_t n_given; /* tokens that @submit gives of each output: what follows them is heard */
    void (*before)(struct sched *s); /* submits what is served before, unheard; or NULL */
    void (*submit)(struct sched *s, uint32_t i, bool drafts);
};

/* Serves them with @opts, whose sizes and times are filled in; depth at most the engine's. *stats:
 * of the end. */
void serving_run(const struct serving *w, const struct sched_opts *opts, struct heard *all,
                 struct msg_stats *stats);

/* What @s has to say, to all[id - 1]. A request that is refused or fails fails the test. */
void heard_listen(struct heard *all, struct sched *s);
/* Each ended once, and heard the same in both. */
void heard_compare(const struct heard *a, const struct heard *b, uint32_t n);
/* What was heard, with mistakes, becomes the prediction of @m; @out: its tokens. */
void heard_predict(const struct heard *h, uint64_t seed, uint32_t n_vocab, int32_t out[HEARD_MAX],
                   struct submit *m);
/* Temperature, truncation and penalties, each at its default in many cases. */
void serving_draw(struct rng *r, struct sampling *s);
