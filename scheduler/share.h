#pragma once

/*
 * share - who of many has the next turn: between tenants by weight, between the sessions of a
 * tenant by what they have had lately. It knows numbers, not requests; what it is told are costs
 * and times. How it decides is told in docs/fairness.md and at the top of share.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include "scheduler/sessions.h"

#define SHARE_TENANTS 256u /* of which something is known at once; more share the last one */
#define SHARE_WINDOW 64u   /* waiting requests of a tenant that are looked at, oldest first */
#define SHARE_CLASSES 3u   /* normal, interactive, batch */

struct share_tenant {
    uint32_t id;
    uint8_t class;
    double weight;      /* with that of the class */
    double served_ns;   /* device time had, divided by weight: the virtual time of its turn */
    double recent_ns;   /* device time had, by half a minute's half-life */
    int64_t recent_at;  /* when recent_ns was true */
    int64_t seen_ns;    /* last heard of */
    uint32_t n_live;    /* requests, waiting and running */
    uint32_t n_running; /* of them; and the pages that they hold: set before each plan */
    uint32_t n_pages;
    double coming_ns;  /* what prompts of those that run will still take, by weight: likewise */
    double slots;      /* running mean of those that it used or wanted, up to its part */
    uint32_t n_window; /* scratch of share_pick() */
    double next_ns;
    uint32_t head;
};

struct share {
    struct share_tenant tenant[SHARE_TENANTS];
    struct sessions *sessions;
    uint32_t n_tenants;
    double fair_ns;   /* what a clock would say that had had its part of all the time since the
                         beginning, */
    int64_t fair_at;  /* when that was true */
    int64_t slots_at; /* when the means of slots were true */
    double
        clock_ns; /* that of the slowest live tenant, when it was last looked at; never goes back */
};

/* What a request keeps of it. */
struct share_ref {
    uint64_t session; /* 0: none */
    uint16_t tenant;
};

void share_init(struct share *s, struct sessions *sessions);

/* A request of @tenant comes, and has gone. */
struct share_ref share_enter(struct share *s, uint32_t tenant, uint32_t weight_milli, uint8_t class,
                             uint64_t session, int64_t now);
void share_leave(struct share *s, struct share_ref ref, int64_t now);
/* It has had @ns of the device. */
void share_charge(struct share *s, struct share_ref ref, double ns, int64_t now);

/* How much later than it did a request counts as having come, for what its session has had
 * lately. */
int64_t share_delay_ns(const struct share *s, struct share_ref ref, int64_t now);

/* One waiting request. */
struct share_item {
    struct share_ref ref;
    uint32_t n_left; /* overtakings by others of its tenant that it must still suffer */
    int64_t key;     /* virtual arrival */
    uint64_t order;  /* for equal ones */
    uint32_t n_hit, n_tokens;
    double cost_ns; /* what it will take, roughly */
    void *who;
    /* Scratch. */
    int64_t turn;
    uint32_t next;
};

/* Whether another waiting request of its tenant should be looked at: SHARE_WINDOW are enough. */
bool share_wants(struct share *s, struct share_ref ref);
void share_begin_pick(struct share *s);
/* The first @max of @item[0, n) in the order in which they should be admitted: indices in @out. How
 * many. */
uint32_t share_pick(struct share *s, struct share_item *item, uint32_t n, uint32_t *out,
                    uint32_t max, int64_t now);

/* Whether @held of @total is more than the part of tenant @t, of those that are live, or of all
 * that were lately when @lately. */
bool share_is_over(const struct share *s, uint32_t t, uint32_t held, uint32_t total, bool lately,
                   int64_t now);
/* Before a plan, with n_running of all tenants set: what each needs of @total sequences. */
void share_note_slots(struct share *s, uint32_t total, int64_t now);
/* Of @total sequences, how many tenant @t, if it has more than its part, has to leave to those that
 * have less for their weights and have had less: what they lack of what they needed lately, and as
 * much more as chance may bring. */
uint32_t share_leaves(const struct share *s, uint32_t t, uint32_t total, int64_t now);
/* Whether tenant @t has had less for its weight than tenant @other. */
bool share_is_behind(const struct share *s, uint32_t t, uint32_t other);
/* More than one tenant has been here lately. */
bool share_is_shared(const struct share *s, int64_t now);
/* Tenants that are live, by their turn: numbers in @out, their weights for this step in @weight.
 * @part: 1, or of those that have had much more than others their part of the device. */
uint32_t share_turns(struct share *s, int64_t now, uint16_t out[SHARE_TENANTS],
                     float weight[SHARE_TENANTS], float part[SHARE_TENANTS]);
/* (sum x)^2 / (n * sum x^2) over the live tenants' device time by weight: 1 is fair; 1 for one
 * alone. */
double share_jain(const struct share *s, int64_t now, uint32_t *n_live);
