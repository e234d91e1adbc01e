#pragma once

/*
 * fair_share - weighted fair queueing of device time among tenants, in virtual time by weight. The
 * first half of its functions knows numbers and no requests; the second carries them between
 * requests and the plan. docs/fairness.md and the top of fair_share.c describe it.
 * Private.
 */

#include <stdbool.h>
#include <stdint.h>

struct batch;
struct msg_served;
struct request;
struct sched_view;

#define FAIR_TENANTS 256u   /* remembered; when all have requests further ones share the last */
#define FAIR_WINDOW 64u     /* waiting requests of a tenant that are looked at, oldest first */
#define FAIR_CLASSES 3u     /* normal, interactive, batch */
#define FAIR_ITEMS 4096u    /* waiting requests that are ordered */
#define FAIR_CANDIDATES 32u /* of them, that a plan looks at */

struct fair_tenant {
    uint32_t id;
    uint8_t class;
    double weight;    /* with that of the class */
    double served_ns; /* virtual time: device time charged, divided by weight */
    double own_ns;    /* device time charged, of which sched_served() has told told_ns */
    double told_ns;
    double elsewhere_ns; /* had at other workers, not counted yet; and counted in served_ns */
    double counted_ns;
    double recent_ns;   /* device time had here and elsewhere, decaying with FAIR_HALF_LIFE_NS */
    int64_t recent_at;  /* when recent_ns was true */
    int64_t seen_ns;    /* last arrival or end of a request */
    uint32_t n_live;    /* requests, waiting and running */
    uint32_t n_running; /* of them; and the pages that they hold: set before each plan */
    uint32_t n_pages;
    double coming_ns;  /* by weight, of the longest rest of a running prompt: likewise */
    double slots;      /* running mean of slots needed, at most its share */
    uint32_t n_window; /* scratch of fair_pick(), fair_waiting() */
    uint32_t leaves;
    double next_ns;
    uint32_t head;
};

/* One waiting request. */
struct fair_item {
    uint16_t tenant; /* index in fair_share.tenant */
    uint32_t n_left; /* times that others of its tenant may still overtake it */
    int64_t key;     /* virtual arrival */
    uint64_t order;  /* for equal ones */
    double cost_ns;  /* what it will take, roughly */
    void *who;
    uint32_t next; /* scratch */
};

struct fair_share {
    const struct sched_view *view;
    struct fair_tenant tenant[FAIR_TENANTS];
    uint32_t n_tenants;
    double fair_ns;   /* the fair virtual time: that of a tenant that always used its share, */
    int64_t fair_at;  /* when that was true */
    int64_t slots_at; /* when the means of slots were true */
    double clock_ns;  /* least virtual time of the live tenants; never goes back */

    /* State of the step. */
    struct fair_item *item;       /* [FAIR_ITEMS] */
    uint16_t order[FAIR_TENANTS]; /* live tenants, least virtual time first */
    uint16_t group[FAIR_TENANTS]; /* of a tenant: its place in order[] */
    float weight[FAIR_TENANTS];   /* [of groups] in this step */
    float part[FAIR_TENANTS];     /* of a step for prefill: 1, or the share of a tenant far ahead */
    bool over[FAIR_TENANTS];      /* above its share of the sequences */
    uint32_t n_groups;
    uint32_t victim; /* tenant whose slot is preempted, FAIR_TENANTS: none */
};

/* 0, -ENOMEM. */
int fair_init(struct fair_share *f, const struct sched_view *view);
void fair_deinit(struct fair_share *f);

/* ---- numbers ---- */

/* A request of tenant number @tenant comes: the tenant's index in fair_share.tenant, which it keeps
 * while it has requests. @weight_milli 0: 1000. */
uint16_t fair_enter(struct fair_share *f, uint32_t tenant, uint32_t weight_milli, uint8_t class,
                    int64_t now);
/* A request of the tenant with this index is over. */
void fair_leave(struct fair_share *f, uint16_t tenant, int64_t now);
/* Charges @ns of device time. */
void fair_charge(struct fair_share *f, uint16_t tenant, double ns, int64_t now);
/* Tenant number @tenant had @ns of the same device at another worker. Counts while it has requests
 * here. */
void fair_charge_elsewhere(struct fair_share *f, uint32_t tenant, uint64_t ns, int64_t now);
/* Returns what the tenants were charged since the last call, of those that were: at most @max, in
 * @out. How many. */
uint32_t fair_served(struct fair_share *f, struct msg_served *out, uint32_t max);

/* The first @max of @item[0, n) in the order in which they should be admitted: indices in @out. How
 * many. */
uint32_t fair_pick(struct fair_share *f, struct fair_item *item, uint32_t n, uint32_t *out,
                   uint32_t max);

/* Returns whether @held of @total is more than the share of tenant @t among the live tenants, or,
 * when @lately, among those seen within FAIR_LATELY_NS. */
bool fair_is_over(const struct fair_share *f, uint32_t t, uint32_t held, uint32_t total,
                  bool lately, int64_t now);
/* Before a plan, with n_running of all tenants set: updates fair_tenant.slots, of @total. */
void fair_note_slots(struct fair_share *f, uint32_t total, int64_t now);
/* Returns how many of @total sequences tenant @t, if above its share, has to leave free for tenants
 * with fewer for their weight and less virtual time: their mean need and FAIR_SURGE standard
 * deviations, less what they have. */
uint32_t fair_leaves(const struct fair_share *f, uint32_t t, uint32_t total, int64_t now);
/* More than one tenant was seen within FAIR_LATELY_NS. */
bool fair_is_shared(const struct fair_share *f, int64_t now);
/* Fills order, group, weight and part with the live tenants. How many. */
uint32_t fair_order(struct fair_share *f, int64_t now);
/* (sum x)^2 / (n * sum x^2) over the live tenants' device time by weight: 1 is fair; 1 for one
 * alone. */
double fair_jain(const struct fair_share *f, int64_t now, uint32_t *n_live);

/* ---- requests and the plan ---- */

/* Room that a waiting request has to leave to others; see plan.h. */
struct fair_limits {
    bool over;
    uint32_t leave_seqs;
};

/* A request arrives; a request has ended. */
void fair_enter_request(struct fair_share *f, struct request *r, uint32_t tenant,
                        uint32_t weight_milli, uint8_t class);
void fair_leave_request(struct fair_share *f, struct request *r);

/* Before a plan: fills the plan's groups, their weights and reserves. */
void fair_begin_step(struct fair_share *f, int64_t now);
/* Returns whether the tenant of @r is above its share of the pages: then @r ranks below those of
 * others. */
bool fair_ranks_low(const struct fair_share *f, const struct request *r);
/* Returns whether all slots are taken and a tenant waits that has less virtual time than another
 * and, with one more, still fewer slots for its weight: the other is the victim then,
 * fair_is_victim(). */
bool fair_preempts(struct fair_share *f, int64_t now);
bool fair_is_victim(const struct fair_share *f, const struct request *r);
/* Waiting requests in the order in which they should be admitted, those with a step under way and
 * those whose sessions are paused (@room pages are there) left out, and what each has to leave. How
 * many, at most @max. */
uint32_t fair_waiting(struct fair_share *f, uint64_t room, struct request **out,
                      struct fair_limits *limits, uint32_t max);
/* After the plan's admissions: counts them for the requests that they overtook. */
void fair_note_admissions(struct fair_share *f, struct request *const *planned);
/* Step @t took @ns: charges it to the tenants in it. */
void fair_charge_step(struct fair_share *f, const struct batch *t, int64_t ns, int64_t now);
