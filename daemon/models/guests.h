#pragma once

/*
 * guests - unfinished requests of the previous daemon for one model, which arrive over a socket
 * that it handed over in an upgrade (workers_away.c is the other side). Both daemons have the same
 * sources (engine_request_sources()). This front acts as a worker of the other front:
 *
 *      old front                                   this front
 *      READY   of its worker ──>
 *                                              <── READY   this model's; or the end: other tokens
 *      SUBMIT, CANCEL, TURN_END ──>            <── EVENTS  one a frame
 *
 * Each SUBMIT becomes a request of this front (api_guest_new()) with its own id, so the other front
 * does not notice when this model's worker is replaced. When the socket ends, the requests are
 * cancelled.
 */

#include "api/api.h"
#include "base/clock.h"
#include "base/lib_types.h"

struct guests;

struct guests_opts {
    uv_loop_t *loop;
    struct clock *clock;
    struct model *model;
    void *ctx;
    /* guests_answer() or guests_close() must follow, perhaps inside the call */
    void (*asked)(void *ctx);
};

/* Begins to receive requests over the socket @fd, which is taken over, also after an error. Returns
 * 0 or -ENOMEM. */
int guests_new(struct guests **out, const struct guests_opts *o, int fd);
/* Returns true if the other front has asked and has no answer yet. */
bool guests_ask(const struct guests *g);
/* Answers the other front after the model's worker has reported @ready (the payload of a READY).
 * Accepts the requests if this worker gives the same tokens as the other one. */
void guests_answer(struct guests *g, const struct buf *ready);
/* Cancels the requests of the other front, which continues them itself. May be called again. */
void guests_close(struct guests *g);
struct guests *
guests_free(struct guests *g); /* needs guests_close() and the end of the loop before */
