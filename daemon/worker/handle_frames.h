#pragma once

/*
 * handle_frames - the worker's end of its channel, between two steps. Taking a frame may cost more
 * than sending it, so a front that sends all the time could keep a worker from its steps: taking is
 * bounded by time, and the rest waits for the end of the next step.
 */

#include <stdint.h>

struct chan;
struct chan_frame;
struct clock;

/* limit of the worker; with the shortest steps it computes for a part of the time nevertheless */
#define HANDLE_FRAMES_NS INT64_C(5000000)

/* Calls handle(@ctx, frame) for each frame of @c that has arrived, at least once if there is one,
 * until @limit_ns have passed. Returns CHAN_EMPTY: none is left; 0: more may be left, also some
 * for which the socket does not become readable; or the negative errno of the channel or of
 * handle(). */
int handle_frames(struct chan *c, struct clock *clock, int64_t limit_ns,
                  int (*handle)(void *ctx, const struct chan_frame *f), void *ctx);
