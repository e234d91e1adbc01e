#pragma once

/*
 * queue - the order of waiting and running requests, and how long their outputs are expected to be.
 *
 * The key of a request is its virtual arrival: each level of priority moves it by QUEUE_LEVEL_NS.
 * So a request of low priority overtakes later ones of high priority once it has waited long
 * enough, and nothing has to be sorted again as time passes. Requests that were preempted keep
 * their key.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "scheduler/policy.h"
#include "scheduler/sessions.h"

/* Key of a request. Lower priorities come first; 0 is the default. */
struct queue_key {
    /* virtual, ns */
    int64_t arrival;
    /* order of submission, for equal keys */
    uint64_t order;
};

/* Returns the key of a request of @priority (clamped to +-QUEUE_LEVELS) that arrived at
 * @arrived_ns. */
struct queue_key queue_key(int64_t arrived_ns, int priority, uint64_t order);
/* Returns whether @a comes before @b: earlier virtual arrival, then earlier submission. A strict
 * order. */
bool queue_before(const struct queue_key *a, const struct queue_key *b);

/* Link of a queue. */
struct queued {
    struct list link;
    struct queue_key key;
};

/* Inserts @q into list @l, which is sorted by virtual arrival. */
void queue_insert(struct list *l, struct queued *q);

/* Expected output. A session tends to write outputs of similar length, so a mean is kept for each
 * session and one for requests without a session. A session without data uses the mean of all
 * requests. */

struct estimate {
    /* mean of all requests; mean of those without a session, 0: none yet */
    float all, none;
    struct sessions *sessions;
};

/* Initialises @e without data. Means of sessions are kept in @sessions, which outlives @e. */
void estimate_init(struct estimate *e, struct sessions *sessions);
/* Learns from a request of @session (0: none) that ended with @n_out output tokens. */
void estimate_learn(struct estimate *e, uint64_t session, uint32_t n_out);
/* Returns the output tokens that a request of @session is expected to have at its end, given that
 * it has @n_out and may have @max_new. */
uint32_t estimate_output(const struct estimate *e, uint64_t session, uint32_t n_out,
                         uint32_t max_new);
