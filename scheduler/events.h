#pragma once

/* events - packs a request's events for the front. Events are cumulative (proto/messages.h). */

#include "scheduler/request.h"

#define EVENTS_TOKENS_MAX 8192u /* tokens of one event; the rest comes with the next batch */

/* Appends an event of @r to @out with everything since r->acked, and notes its contents in r->sent.
 * Returns 0, or a negative errno with @out unchanged. */
int events_pack(struct buf *out, struct request *r);

/* Notes that the last event was delivered. Returns true if the front now has all events of @r. */
bool events_delivered(struct request *r);
