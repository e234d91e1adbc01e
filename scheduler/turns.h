#pragma once

/* turns - what share.c must know of the requests, and what the plan must know of it. Private. */

#include "scheduler/share.h"

struct batch;
struct request;
struct sched;

#define TURNS_ITEMS 4096u

struct turns {
    struct share share;
    struct share_item *item;       /* [TURNS_ITEMS] */
    uint16_t turn[SHARE_TENANTS];  /* tenants that are live, by their turn */
    uint16_t group[SHARE_TENANTS]; /* of a tenant: its place in turn[] */
    float weight[SHARE_TENANTS];   /* [of groups] */
    uint32_t n_groups;
};

int turns_init(struct sched *s);
void turns_deinit(struct sched *s);

/* A request comes, and is over. */
void turns_enter(struct sched *s, struct request *r, uint32_t tenant, uint32_t weight_milli,
                 uint8_t class);
void turns_leave(struct sched *s, struct request *r);

/* Before a plan: whose turn it is, what is kept for whom. */
void turns_begin(struct sched *s, int64_t now);
/* Whether @r's tenant holds more than its part of the pages: such requests stand below all others. */
bool turns_is_low(const struct sched *s, const struct request *r);
/* Waiting requests in the order in which they should be admitted, those with a step under way left out. @over: which
 * of them would give their tenants more than their parts. How many, at most @max. */
uint32_t turns_waiting(struct sched *s, struct request **out, bool *over, uint32_t max);
/* After the plan's admissions: counts whom they overtook. */
void turns_note_admissions(struct sched *s);
/* Step @t took @ns: charges those who were in it. */
void turns_charge(struct sched *s, const struct batch *t, int64_t ns, int64_t now);
