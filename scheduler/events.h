#pragma once

/* events - what the front is told of a request. Events are cumulative (proto/messages.h). */

#include "scheduler/request.h"

#define EVENTS_TOKENS_MAX 8192u /* tokens of one event; the rest comes with the next batch */

/* Appends the events of @r to @out: all that is new since what it was told, and notes in r->sent
 * what that was. 0, or a negative errno with @out as before. */
int events_pack(struct buf *out, struct request *r);

/* The front has what was sent. True when it has everything there is. */
bool events_delivered(struct request *r);
