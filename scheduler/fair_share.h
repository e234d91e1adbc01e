#pragma once

/*
 * fair_share - weighted fair queueing of device time among tenants in virtual time. The first half
 * of the functions knows numbers and no requests; the second half connects them with requests and
 * the plan. docs/design/fairness.md and the top of fair_share.c describe it. Private.
 */

#include <stdbool.h>
#include <stdint.h>

struct batch;
struct msg_served;
struct request;
struct sched_view;

/* tenants that are remembered; when all have requests, further tenants share the last entry */
#define FAIR_TENANTS 256u
#define FAIR_WINDOW 64u     /* waiting requests of a tenant that are considered, oldest first */
#define FAIR_CLASSES 3u     /* normal, interactive, batch */
#define FAIR_ITEMS 4096u    /* waiting requests that are put in order */
#define FAIR_CANDIDATES 32u /* waiting requests that a plan considers */

struct fair_tenant {
    uint32_t id;
    uint8_t class;
    /* weight of the tenant times the factor of its class */
    double weight;
    /* virtual time: charged device time divided by weight */
    double served_ns;
    /* charged device time, of which sched_served() has reported told_ns */
    double own_ns;
    double told_ns;
    /* device time at other workers: elsewhere_ns is not yet in served_ns, counted_ns is */
    double elsewhere_ns;
    double counted_ns;
    /* device time here and elsewhere, decaying with FAIR_HALF_LIFE_NS */
    double recent_ns;
    /* time of recent_ns */
    int64_t recent_at;
    /* last arrival or end of a request */
    int64_t seen_ns;
    /* part of its last pauses that were short; a pause is a time without requests */
    double soon;
    /* requests, waiting and running */
    uint32_t n_live;
    /* requests that run, those of them whose last token a step computes, and the pages that they
     * hold; set before each plan */
    uint32_t n_running;
    uint32_t n_last;
    uint32_t n_pages;
    /* pages promised to its running requests beyond its share; set by fair_note_promises() */
    uint32_t n_beyond;
    /* virtual time of the longest remaining part of a running prompt; set before each plan */
    double coming_ns;
    /* running mean of the slots that the tenant needs, at most its share */
    double slots;
    struct {
        /* recent turns of sessions, and the number of them after which the session returned */
        uint32_t n_ended, n_returned;
        /* mean tokens by which a turn is longer than the previous one */
        float growth;
    } turns; /* for pin.h: a tenant of single requests pins nothing */
    /* scratch of fair_pick() and fair_waiting(), to the end of the struct */
    uint32_t n_window;
    uint32_t leaves;
    double next_ns;
    uint32_t head;
};

/* One waiting request. */
struct fair_item {
    /* index in fair_share.tenant */
    uint16_t tenant;
    /* times that requests of its tenant may still overtake it */
    uint32_t n_left;
    /* virtual arrival */
    int64_t key;
    /* order of submission, for equal keys */
    uint64_t order;
    /* estimated device time of its remaining work */
    double cost_ns;
    void *who;
    /* scratch */
    uint32_t next;
};

/* Sum of weights, of the live tenants or of those seen lately at the time @at. */
struct fair_sum {
    bool valid;
    int64_t at;
    double weights;
};

struct fair_share {
    const struct sched_view *view;
    struct fair_tenant tenant[FAIR_TENANTS];
    uint32_t n_tenants;
    /* virtual time of a tenant that always uses its share */
    double fair_ns;
    /* time of fair_ns */
    int64_t fair_at;
    /* time at which the means of slots were updated */
    int64_t slots_at;
    /* least virtual time of the live tenants; monotonic */
    double clock_ns;
    /* [lately] until a tenant comes or leaves */
    struct fair_sum sum[2];

    /* State of the step that is planned. */
    /* [FAIR_ITEMS] */
    struct fair_item *item;
    /* live tenants, least virtual time first */
    uint16_t order[FAIR_TENANTS];
    /* [tenant] index of the tenant in order[] */
    uint16_t group[FAIR_TENANTS];
    /* [n_groups] weights in this step */
    float weight[FAIR_TENANTS];
    /* [n_groups] part of a step for prefill: 1, or the share of a tenant far ahead */
    float part[FAIR_TENANTS];
    /* [n_groups] the tenant is above its share of the sequences */
    bool over[FAIR_TENANTS];
    /* [n_groups] FAIR_BEHIND_NS behind the tenant furthest ahead */
    bool behind[FAIR_TENANTS];
    uint32_t n_groups;
    /* sum of fair_tenant.n_beyond */
    uint32_t n_beyond;
    /* tenant whose slot is preempted, FAIR_TENANTS: none */
    uint32_t victim;
};

/* Returns 0 or -ENOMEM. */
int fair_init(struct fair_share *f, const struct sched_view *view);
void fair_deinit(struct fair_share *f);

/* ---- numbers ---- */

/* Notes that a request of tenant number @tenant arrives. Returns the index of the tenant in
 * fair_share.tenant, which stays valid while it has requests. @weight_milli: weight in thousandths;
 * 0: 1000. */
uint16_t fair_enter(struct fair_share *f, uint32_t tenant, uint32_t weight_milli, uint8_t class,
                    int64_t now);
/* Notes that a request of the tenant with index @tenant has ended. */
void fair_exit(struct fair_share *f, uint16_t tenant, int64_t now);
/* Charges @ns of device time to the tenant with index @tenant. */
void fair_charge(struct fair_share *f, uint16_t tenant, double ns, int64_t now);
/* Notes that tenant number @tenant used @ns of the device at another worker. Ignored if it has no
 * requests here. */
void fair_charge_elsewhere(struct fair_share *f, uint32_t tenant, uint64_t ns, int64_t now);
/* Writes to @out, for at most @max tenants, the device time charged since the last call. Returns
 * their number. */
uint32_t fair_served(struct fair_share *f, struct msg_served *out, uint32_t max);

/* Puts the indices of the first @max of @item[0, n), in order of admission, into @out. Returns
 * their number. */
uint32_t fair_pick(struct fair_share *f, struct fair_item *item, uint32_t n, uint32_t *out,
                   uint32_t max);

/* Returns whether @held of @total is more than the share of tenant @t among the live tenants, with
 * @lately also among those seen within FAIR_LATELY_NS. */
bool fair_is_over(struct fair_share *f, uint32_t t, uint32_t held, uint32_t total, bool lately,
                  int64_t now);
/* Returns how many of @more pages tenant @t, which holds @held, would have beyond its share among
 * the tenants seen within FAIR_LATELY_NS. */
uint32_t fair_beyond(struct fair_share *f, uint32_t t, uint32_t held, uint32_t more, int64_t now);
/* Updates fair_tenant.slots for @total slots, before a plan; n_running of all tenants must be
 * set. */
void fair_note_slots(struct fair_share *f, uint32_t total, int64_t now);
/* Returns how many of @total sequences tenant @t, if it is above its share, must leave free for
 * tenants with fewer sequences for their weight and less virtual time: their mean need plus
 * FAIR_SURGE standard deviations, minus the sequences that they have. */
uint32_t fair_yields(struct fair_share *f, uint32_t t, uint32_t total, int64_t now);
/* Returns true if more than one tenant was seen within FAIR_LATELY_NS. */
bool fair_is_shared(const struct fair_share *f, int64_t now);
/* Returns whether a tenant without requests, that would be behind with one, is expected back. */
bool fair_expects(const struct fair_share *f, int64_t now);
/* Fills order, group, weight and part with the live tenants. Returns their number. */
uint32_t fair_order(struct fair_share *f, int64_t now);
/* Returns Jain's index (sum x)^2 / (n * sum x^2) of the live tenants' device time by weight: 1 is
 * fair, also for one tenant. *n_live: number of live tenants. */
double fair_jain(const struct fair_share *f, int64_t now, uint32_t *n_live);

/* ---- requests and the plan ---- */

/* Room that a waiting request must leave to other tenants (plan.h). */
struct fair_limits {
    bool over;
    uint32_t leave_seqs, n_beyond;
};

/* Note the arrival of @r and its tenant, and the end of @r. */
void fair_enter_request(struct fair_share *f, struct request *r, uint32_t tenant,
                        uint32_t weight_milli, uint8_t class);
void fair_exit_request(struct fair_share *f, struct request *r);

/* Fills the plan's groups, their weights and reserves, before a plan. */
void fair_begin_step(struct fair_share *f, int64_t now);
/* Counts the pages that the plan's running requests are promised beyond the shares of their
 * tenants, if there are several tenants. */
void fair_note_promises(struct fair_share *f, int64_t now);
/* Returns true if the tenant of @r was FAIR_BEHIND_NS behind when the step began. */
bool fair_is_behind(const struct fair_share *f, const struct request *r);
/* Returns whether the tenant of @r is above its share of the pages; @r then ranks below requests of
 * other tenants. */
bool fair_ranks_low(struct fair_share *f, const struct request *r);
/* Returns whether all slots are taken and some waiting tenant has less virtual time than another
 * one and, with one slot more, still fewer slots for its weight. The other tenant is then the
 * victim (fair_is_victim()). */
bool fair_preempts(struct fair_share *f, int64_t now);
bool fair_is_victim(const struct fair_share *f, const struct request *r);
/* Puts into @out at most @max waiting requests in order of admission, and into @limits the room
 * that each must leave. Leaves out requests with a step in flight and those that are paused
 * (pin_pause()). Returns their number. */
uint32_t fair_waiting(struct fair_share *f, struct request **out, struct fair_limits *limits,
                      uint32_t max);
/* Counts the plan's admissions for the requests that they overtook. */
void fair_note_admissions(struct fair_share *f, struct request *const *planned);
/* Charges step @t, which took @ns, to the tenants in it. */
void fair_charge_step(struct fair_share *f, const struct batch *t, int64_t ns, int64_t now);
