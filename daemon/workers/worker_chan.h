#pragma once

/*
 * worker_chan - the front's end of a worker's channel, on the event loop.
 *
 * A fast worker may answer submitted requests while earlier answers are read, so the channel may
 * never become empty. Reading is therefore bounded by time: the remaining frames are read in the
 * next iteration of the loop, after the clients' sockets. A frame may hold the events of many
 * requests, so a turn may also end between two parts of a frame.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/chan.h"
#include "base/clock.h"

/* a turn ends with the first part that takes it beyond this time */
#define WORKER_CHAN_TURN_NS 1000000

struct worker_chan_opts {
    uv_loop_t *loop;
    struct clock *clock;
    void *ctx;
    /* Takes a frame. Returns true if it has parts; its data then stays valid until part() returns
     * false. Either function may close the channel. */
    bool (*frame)(void *ctx, const struct chan_frame *f);
    /* Takes the next part of the last frame. Returns false if there is none. NULL: no frame has
     * parts. */
    bool (*part)(void *ctx);
    /* The socket has taken all bytes that had to wait. NULL: that is of no use. */
    void (*room)(void *ctx);
    /* Called once when the channel has ended in both directions; may close the channel. NULL: the
     * owner notices the end by other means. */
    void (*ended)(void *ctx);
};

/* State of a channel. `rest` is active while frames of the last turn may be left. has_parts implies
 * open; a channel that is dead stays open until it is closed. */
struct worker_chan {
    struct worker_chan_opts opts;
    struct chan chan;
    uv_poll_t poll;
    /* the turn goes on in the next iteration */
    uv_idle_t rest;
    /* events that `poll` was started with; 0: it is stopped */
    int waits_for;
    /* the members above are in use */
    bool open;
    /* the last frame has further parts */
    bool has_parts;
    /* bytes had to wait, and room() has not been called since */
    bool full;
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
/* Lets room() be called in the next iteration of the loop, if nothing has to wait then. */
void worker_chan_want_room(struct worker_chan *c);
/* Reads all frames that have arrived, because the worker has ended; nothing arrives afterwards. */
void worker_chan_drain(struct worker_chan *c);
