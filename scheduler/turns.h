#pragma once

/* turns - what share.c must know of the requests, and what the plan must know of it. Private. */

#include "scheduler/share.h"

struct batch;
struct request;
struct sched;

#define TURNS_ITEMS 4096u

struct turns {
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

int turns_init(struct sched *s);
void turns_deinit(struct sched *s);

/* A request comes, and is over. */
void turns_enter(struct sched *s, struct request *r, uint32_t tenant, uint32_t weight_milli,
                 uint8_t class);
void turns_leave(struct sched *s, struct request *r);

/* Before a plan: whose turn it is, what is kept for whom. */
void turns_begin(struct sched *s, int64_t now);
/* Whether the tenant of @r holds more than its part of the pages: then @r stands below those of others. */
bool turns_is_over(const struct sched *s, const struct request *r);
/* Whether all slots are taken and a tenant waits whose turn it is and that has less for its weight than another would
 * have left: then that one is the victim, turns_is_victim(). */
bool turns_preempts(struct sched *s, int64_t now);
bool turns_is_victim(const struct sched *s, const struct request *r);
/* Waiting requests in the order in which they should be admitted, those with a step under way and those whose
 * sessions are paused (@room pages are there) left out, and what each has to leave. How many, at most @max. */
uint32_t turns_waiting(struct sched *s, uint64_t room, struct request **out,
                       struct turns_limits *limits, uint32_t max);
/* After the plan's admissions: counts whom they overtook. */
void turns_note_admissions(struct sched *s);
/* Step @t took @ns: charges those who were in it. */
void turns_charge(struct sched *s, const struct batch *t, int64_t ns, int64_t now);
