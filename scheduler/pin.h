#pragma once

/* pin - pins the pages of a session's last turn until its next turn arrives. Private. */

#include "base/list.h"
#include "kvpager/kvpager.h"
#include "scheduler/fair_share.h"
#include "scheduler/sessions.h"

struct request;
struct sched_view;
struct turn_end;

#define PIN_MAX 256u /* turns that may be pinned */

struct pin {
    /* in pins.pinned, the oldest first, or in pins.unused */
    struct list link;
    struct kv_seq *seq;
    /* turn: id of the request that was the turn */
    uint64_t session, turn;
    uint16_t tenant;
    /* enum pause_after */
    uint8_t end;
    /* pinned after an answer whose next turn is not expected soon */
    bool spare;
    /* n_exclusive: pages of reference count 1 when pinned */
    uint32_t n_tokens, n_exclusive;
    int64_t since_ns, until_ns;
};

struct pins {
    const struct sched_view *view;
    struct pin all[PIN_MAX];
    struct list pinned, unused;
    /* pauses of all sessions */
    struct pauses any;
    /* pages that running and pinned sessions will soon need */
    uint64_t growth_pages;
    /* exclusive pages of spare pins */
    uint64_t spare_pages;
    /* [tenant] pages that it holds, running or pinned, before a plan; pinned ones among them that
     * are beyond its share, less those dropped since; their sum before any was dropped */
    uint32_t n_held[FAIR_TENANTS], n_beyond[FAIR_TENANTS];
    uint64_t beyond_pages;
};

/* The pages of the pool: those that requests can take without a drop of pins, and those that only
 * pins hold. */
struct pin_pages {
    uint32_t n_available, n_pinned, n_pages;
};

/* Initialises @t without pins and without known pauses. */
void pin_init(struct pins *t, const struct sched_view *view);
void pin_deinit(struct pins *t); /* frees all pins */
/* Counts the pages of the pool. */
struct pin_pages pin_pages(const struct pins *t);

/* Notes that the next turn of @session arrives. */
void pin_note_turn(struct pins *t, uint64_t session, uint16_t tenant, int64_t now);
/* Takes over the sequence of @r, which has ended without an error, if its session's next turn is
 * expected; otherwise frees the sequence. Sets r->seq to NULL. */
void pin_turn(struct pins *t, struct request *r, int64_t now);
/* Notes the kind of end that the front reports for a turn; the pause that follows is expected to be
 * as long as earlier pauses after such ends. */
void pin_turn_end(struct pins *t, const struct turn_end *m);
/* Returns whether @session is likely to send another turn, judged by its own last turns or, while
 * these are few, by the turns of the tenant's other sessions. */
bool pin_returns(const struct pins *t, uint64_t session, uint16_t tenant);
/* Returns whether the turn after @turn is still expected and its pages are wanted. */
bool pin_expects(const struct pins *t, uint64_t session, uint64_t turn);
/* Pins the sequence of prewarm @r, which has computed the beginning of the expected turn, in place
 * of the session's pin, and sets r->seq to NULL. Leaves r->seq if no turn is expected. */
void pin_prewarmed(struct pins *t, struct request *r);
/* Drops the pins of @r's session, since @r, just admitted, has the pages now. Counts the tokens
 * that it must compute again. */
void pin_admitted(struct pins *t, const struct request *r);
/* Drops expired pins, and pins whose pages running requests need for their next rows. Called before
 * a plan, once the running requests are known. */
void pin_begin_step(struct pins *t, int64_t now);
/* Sets request.paused of the waiting requests: whether they must wait because their session is not
 * among the sessions whose pages fit. @room: pages that they could take. */
void pin_pause(struct pins *t, uint64_t room, int64_t now);
/* Drops pins for the first of @r[0, n) that has waited long enough, or for @r[0] when no request
 * runs; pins of tenants above their shares also for the first whose tenant is within its share.
 * @promised: pages that running requests will take. */
void pin_release_for_waiting(struct pins *t, struct request *const *r, uint32_t n,
                             uint64_t promised, int64_t now);

/* Saves the pages of @n_tokens of @r, also in the file if its session is expected to return. */
void pin_save(const struct sched_view *v, const struct request *r, uint32_t n_tokens);
