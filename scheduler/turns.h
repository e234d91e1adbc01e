#pragma once

/* turns - what share.c must know of the requests, and what the plan must know of it. Private. */

#include "scheduler/share.h"

struct batch;
struct clock;
struct cost;
struct estimate;
struct list;
struct pins;
struct plan;
struct request;

#define TURNS_ITEMS 4096u
#define TURNS_CANDIDATES 32u /* waiting requests that a plan looks at */

/* What it may see, all of it owned by others and outliving it. */
struct turns_opts {
    uint32_t n_pages, page_tokens, max_seqs, max_bypass;
    struct clock *clock;
    const struct cost *cost;
    const struct estimate *estimate;
    struct sessions *sessions;
    const struct pins *pins;
    struct plan *plan; /* gets groups, reserves and claims */
    const struct list *waiting, *running;
};

struct turns {
    struct turns_opts opts;
    struct share share;
    struct share_item *item;                          /* [TURNS_ITEMS] */
    uint16_t turn[SHARE_TENANTS];                     /* tenants that are live, by their turn */
    uint16_t group[SHARE_TENANTS];                    /* of a tenant: its place in turn[] */
    float weight[SHARE_TENANTS], part[SHARE_TENANTS]; /* [of groups] */
    bool over[SHARE_TENANTS];                         /* [of groups] */
    uint32_t n_groups;
    uint32_t victim; /* tenant that is to make room, SHARE_TENANTS: none */
};

/* What a waiting request has to leave to others; see plan.h. */
struct turns_limits {
    bool over;
    uint32_t leave_seqs;
};

int turns_init(struct turns *f, const struct turns_opts *opts);
void turns_deinit(struct turns *f);

/* A request comes, and is over. */
void turns_enter(struct turns *f, struct request *r, uint32_t tenant, uint32_t weight_milli,
                 uint8_t class);
void turns_leave(struct turns *f, struct request *r);

/* Before a plan: whose turn it is, what is kept for whom. */
void turns_begin(struct turns *f, int64_t now);
/* Whether the tenant of @r holds more than its part of the pages: then @r stands below those of
 * others. */
bool turns_is_over(const struct turns *f, const struct request *r);
/* Whether all slots are taken and a tenant waits whose turn it is and that has less for its weight
 * than another would have left: then that one is the victim, turns_is_victim(). */
bool turns_preempts(struct turns *f, int64_t now);
bool turns_is_victim(const struct turns *f, const struct request *r);
/* Waiting requests in the order in which they should be admitted, those with a step under way and
 * those whose sessions are paused (@room pages are there) left out, and what each has to leave. How
 * many, at most @max. */
uint32_t turns_waiting(struct turns *f, uint64_t room, struct request **out,
                       struct turns_limits *limits, uint32_t max);
/* After the plan's admissions: counts whom they overtook. */
void turns_note_admissions(struct turns *f, struct request *const *planned);
/* Step @t took @ns: charges those who were in it. */
void turns_charge(struct turns *f, const struct batch *t, int64_t ns, int64_t now);
