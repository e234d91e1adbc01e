#pragma once

/* warm - prefixes computed ahead, for turns that have not come yet, while nobody else asks for anything. Private. */

#include "base/list.h"
#include "scheduler/request.h"

struct sched;

#define WARM_MAX 64u   /* that wait; more: the oldest is forgotten */
#define WARM_DONE 256u /* of which it is known what was computed */

/* What was computed for a session's next turn: pages [from, to) of a prompt with these hashes. */
struct warm_done {
    uint64_t session;
    uint64_t *hash; /* [to] or NULL */
    uint32_t from, to;
};

struct warm {
    struct list waiting; /* request.queued, the latest first */
    uint32_t n_waiting;
    struct request *now;                    /* in sched.waiting or sched.running; NULL: none */
    int64_t max_step_ns;                    /* of a plan without one */
    uint64_t n_lookup_tokens, n_hit_tokens; /* that the pager has counted for them */
    struct warm_done done[WARM_DONE];
};

void warm_init(struct sched *s);
void warm_deinit(struct warm *w);

/* One comes, and is ended by whatever it is that ends requests. */
void warm_submit(struct sched *s, struct request *r);
void warm_finish(struct sched *s, struct request *r, enum finish_reason why);
/* @r, somebody's, comes: what was computed ahead of it is all that will be. */
void warm_note_turn(struct sched *s, const struct request *r);
/* @r, somebody's, is admitted: counts what it has found of what was computed for it. */
void warm_found(struct sched *s, const struct request *r);
/* kv_seq_attach() of one that runs. */
uint32_t warm_attach(struct sched *s, const struct request *r);
/* Before a plan: lets the next one run if nobody else is there, takes it back when somebody is. */
void warm_turn(struct sched *s);
