#pragma once

/*
 * guests - requests that the daemon before this one has not ended, for one model, over a socket
 * that it has handed over in an upgrade (workers_away.c is its side). Both have the same sources
 * (engine_request_sources()). To the other front this one is a worker:
 *
 *      old front                                   this front
 *      READY   what its worker said of itself ──>
 *                                              <── READY   this model's; or the end: other tokens
 *      SUBMIT, CANCEL, TURN_END ──>            <── EVENTS  one a frame
 *
 * Each SUBMIT is a request of this front (api_guest_new()) with an id of its own, so what befalls
 * this model's worker the other front does not notice. When the socket ends the requests are
 * cancelled.
 */

#include <uv.h>
#include "api/api.h"
#include "base/clock.h"

struct guests;

struct guests_opts {
    uv_loop_t *loop;
    struct clock *clock;
    struct model *model;
    void *ctx;
    void (*asked)(void *ctx); /* guests_answer() or guests_close() is to follow, also at once */
};

/* Begins to take requests over the socket @fd, which it takes over, also after an error. Returns 0
 * or -ENOMEM. */
int guests_new(struct guests **out, const struct guests_opts *o, int fd);
/* Returns true if it has asked and has no answer yet. */
bool guests_ask(const struct guests *g);
/* Answers the other front after the model's worker has reported @ready (the payload of a READY):
 * the requests may come if this worker gives the same tokens as the other one. */
void guests_answer(struct guests *g, const struct buf *ready);
/* Cancels the requests of the other front, which continues them itself. May be called again. */
void guests_close(struct guests *g);
struct guests *
guests_free(struct guests *g); /* needs guests_close() and the end of the loop before */
