#pragma once

/* pin - pins the pages of a session's last turn until its next one comes. Private. */

#include "base/list.h"
#include "kvpager/kvpager.h"
#include "scheduler/fair_share.h"
#include "scheduler/sessions.h"

struct request;
struct sched_view;
struct turn_end;

#define PIN_MAX 256u /* turns that may be pinned */

struct pin {
    struct list link; /* pins.pinned, the oldest first; or pins.unused */
    struct kv_seq *seq;
    uint64_t session, turn; /* turn: id of the request */
    uint16_t tenant;
    uint8_t end;                    /* enum pause_after */
    bool spare;                     /* after an answer whose next turn is not expected soon */
    uint32_t n_tokens, n_exclusive; /* n_exclusive: pages of reference count 1 when pinned */
    int64_t since_ns, until_ns;
};

struct pins {
    const struct sched_view *view;
    struct pin all[PIN_MAX];
    struct list pinned, unused;
    struct pauses any; /* pauses of all sessions */
    struct {
        uint32_t n_ended, n_returned; /* turns lately */
        float growth;                 /* tokens that a turn has more than the one before */
    } of_tenant[FAIR_TENANTS];        /* one whose requests are single ones pins nothing */
    uint64_t growth_pages;            /* pages that running and pinned sessions will soon need */
    uint64_t spare_pages;             /* exclusive pages of spare pins */
};

/* Begins with no pins and nothing known. */
void pin_init(struct pins *t, const struct sched_view *view);
void pin_deinit(struct pins *t); /* frees what is pinned */

/* A session's next turn comes. */
void pin_note_turn(struct pins *t, uint64_t session, uint16_t tenant, int64_t now);
/* @r has ended as it should: takes its sequence over if its next turn is to be expected, else
 * frees it. r->seq is NULL then. */
void pin_turn(struct pins *t, struct request *r, int64_t now);
/* Takes what the front says of the turn that ended last: from now on it is waited for as after such
 * ends. */
void pin_turn_end(struct pins *t, const struct turn_end *m);
/* Returns whether @session is likely to come back after a turn: as after its last turns, or, as
 * long as these are few, as other sessions of its tenant. */
bool pin_returns(const struct pins *t, uint64_t session, uint16_t tenant);
/* Returns whether the turn after @turn is still to come, and its pages are wanted. */
bool pin_expects(const struct pins *t, uint64_t session, uint64_t turn);
/* Prewarm request @r has computed how the turn that is expected will begin: its sequence is pinned
 * in place of what was pinned for that turn, and r->seq is NULL then; or left as it is. */
void pin_prewarmed(struct pins *t, struct request *r);
/* @r has just been admitted: what was pinned of its session and is in its own pages now need not
 * be pinned. Counts what it has to compute again. */
void pin_admitted(struct pins *t, const struct request *r);
/* Before a plan, when it is known who runs: drops what was not used in time, and what is pinned
 * as far as those that run lack pages for their next rows. */
void pin_begin_step(struct pins *t, int64_t now);
/* Returns whether waiting request @r should not be looked at yet: its session is not among those
 * that fit. @room: pages that it could take. */
bool pin_delays(const struct pins *t, const struct request *r, uint64_t room, int64_t now);
/* Drops what is pinned for the first of @r[0, n) that has waited long enough, or for the very
 * first when no request runs. @promised: pages that the running ones will take. */
void pin_release_for_waiting(struct pins *t, struct request *const *r, uint32_t n,
                             uint64_t promised, int64_t now);
