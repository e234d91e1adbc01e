#pragma once

/*
 * worker_chan - the front's end of a worker's channel, on the event loop.
 *
 * A fast worker answers what is submitted while its answers are read, so the channel may never be
 * empty. What one iteration of the loop takes from it is therefore bounded by time: the rest has
 * its turn in the next iteration, after the other clients' sockets. A frame may hold the events of
 * many requests, so a turn may also end between two parts of a frame.
 */

#include <stdbool.h>
#include <uv.h>
#include "base/chan.h"
#include "base/clock.h"

#define WORKER_CHAN_TURN_NS 1000000 /* a turn ends at the first part that ends after it */

struct worker_chan_opts {
    uv_loop_t *loop;
    struct clock *clock;
    void *ctx;
    /* A frame has come. True: it has parts, and its data stays valid until part() is false. Either
     * may close the channel. */
    bool (*frame)(void *ctx, const struct chan_frame *f);
    /* The next part of the last frame. False: there is none. */
    bool (*part)(void *ctx);
    /* The channel has ended in both directions; called once, and may close the channel. NULL: the
     * owner notices otherwise. */
    void (*ended)(void *ctx);
};

/* `rest` is active while something may be left of a turn. has_parts implies open; a channel that is
 * dead stays open until it is closed. */
struct worker_chan {
    struct worker_chan_opts opts;
    struct chan chan;
    uv_poll_t poll;
    uv_idle_t rest; /* the turn goes on in the next iteration */
    int waits_for;  /* events that `poll` was started with; 0: it is stopped */
    bool open;      /* the members above are in use */
    bool has_parts; /* the last frame has further parts */
};

/* Opens a channel over the socket @fd, which it takes over. @opts is copied. The handles of the
 * last use must have been closed. */
void worker_chan_open(struct worker_chan *c, int fd, const struct worker_chan_opts *opts);
/* Stops reading and sending; a second call does nothing. The handles are closed in the next
 * iteration. */
void worker_chan_close(struct worker_chan *c);
/* Sends like chan_send(). */
int worker_chan_send(struct worker_chan *c, uint16_t type, const struct buf *payload);
/* Returns the number of bytes that the socket has not taken yet. */
size_t worker_chan_queued(const struct worker_chan *c);
/* Takes all that has arrived, however long that is: the worker is gone and says no more. */
void worker_chan_drain(struct worker_chan *c);
