/*
 * Frames that were read from the socket already make no descriptor readable, so the rest of a turn
 * cannot wait for the poll. An idle handle runs once in each iteration and keeps the loop from
 * sleeping. While it is active the poll only writes, so that an iteration has one turn and not two.
 */

#include "daemon/workers/worker_chan.h"

#include <assert.h>
#include <sys/socket.h>

#include "api/api.h"
#include "proto/messages.h"

static void on_poll(uv_poll_t *poll, int status, int events);
static void worker_chan_on_rest(uv_idle_t *rest);

static bool has_room_again(const struct worker_chan *c) {
    return c->open && c->full && !c->chan.dead && !chan_wants_write(&c->chan);
}

/* Polls the channel: always for frames, and for room while frames are unsent. Starting a poll anew
 * costs system calls, so this is done only when the wanted events change. */
static void update_poll(struct worker_chan *c) {
    int want = UV_READABLE | (chan_wants_write(&c->chan) ? UV_WRITABLE : 0);

    if (!c->open)
        return;
    c->full |= chan_wants_write(&c->chan);
    if (c->chan.dead) { /* ended(), or the end of the process, completes the rest */
        uv_poll_stop(&c->poll);
        /* the error is on this side, so the other end must see it too */
        shutdown(c->chan.fd, SHUT_RDWR);
        want = 0;
        if (c->opts.ended)
            uv_idle_start(&c->rest, worker_chan_on_rest);
    } else if (want != c->waits_for) {
        uv_poll_start(&c->poll, want, on_poll);
    }
    c->waits_for = want;
    if (has_room_again(c)) /* a send may have emptied it, in which no submit may begin */
        uv_idle_start(&c->rest, worker_chan_on_rest);
}

/* Reports that all that had to wait has been sent, by this turn or by another message. */
static void notify_room(struct worker_chan *c) {
    if (!has_room_again(c))
        return;
    c->full = false;
    if (c->opts.room)
        c->opts.room(c->opts.ctx);
}

/* Takes one part or frame. Returns 0, CHAN_EMPTY or -errno. */
static int worker_chan_receive_one(struct worker_chan *c) {
    struct chan_frame f;

    assert(c->open);
    if (c->has_parts) {
        bool more = c->opts.part(c->opts.ctx);

        c->has_parts = c->open && more;
        return 0;
    }
    int r = chan_recv(&c->chan, &f);
    if (r == 0) {
        bool parts = c->opts.frame(c->opts.ctx, &f);

        c->has_parts = c->open && parts;
    }
    return r;
}

/* Handles at least one frame or part. Returns whether more may be left. */
static bool worker_chan_receive_turn(struct worker_chan *c) {
    int64_t end = clock_now(c->opts.clock) + WORKER_CHAN_TURN_NS;
    bool over = false;
    int r = 0;

    while (c->open && !over && (r = worker_chan_receive_one(c)) == 0)
        over = clock_now(c->opts.clock) >= end;
    if (!c->open)
        return false;
    assert(r == 0 || !c->has_parts);
    chan_flush(&c->chan);
    update_poll(c);
    return r == 0;
}

static void worker_chan_on_rest(uv_idle_t *rest) {
    struct worker_chan *c = CONTAINER_OF(rest, struct worker_chan, rest);

    api_mark_loop("what a worker says");
    bool more = worker_chan_receive_turn(c);
    if (!more)
        uv_idle_stop(rest);
    notify_room(c);
    if (more)
        return;
    if (c->open && c->chan.dead && c->opts.ended)
        c->opts.ended(c->opts.ctx);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct worker_chan *c = CONTAINER_OF(poll, struct worker_chan, poll);

    api_mark_loop("what a worker says");
    if (status < 0) {
        uv_poll_stop(poll);
        c->waits_for = 0;
        if (c->opts.ended) /* called after the frames that can still be read */
            uv_idle_start(&c->rest, worker_chan_on_rest);
        return;
    }
    if (uv_is_active((uv_handle_t *)&c->rest)) {
        chan_flush(&c->chan);
        update_poll(c);
    } else if (worker_chan_receive_turn(c)) {
        uv_idle_start(&c->rest, worker_chan_on_rest);
    }
    notify_room(c);
}

void worker_chan_open(struct worker_chan *c, int fd, const struct worker_chan_opts *opts) {
    assert(!c->open && opts->frame);
    *c = (struct worker_chan){.opts = *opts, .open = true};
    chan_init(&c->chan, fd, MSG_MAX_FRAME, MSG_MAX_QUEUED);
    uv_poll_init(opts->loop, &c->poll, fd);
    uv_idle_init(opts->loop, &c->rest);
    update_poll(c);
}

void worker_chan_close(struct worker_chan *c) {
    if (!c->open)
        return;
    c->open = c->has_parts = false;
    uv_poll_stop(&c->poll);
    chan_deinit(&c->chan);
    uv_close((uv_handle_t *)&c->poll, NULL);
    uv_close((uv_handle_t *)&c->rest, NULL);
}

int worker_chan_send(struct worker_chan *c, uint16_t type, const struct buf *payload) {
    assert(c->open);
    int r = chan_send(&c->chan, type, payload->data, (uint32_t)payload->len);

    update_poll(c);
    return r;
}

size_t worker_chan_queued(const struct worker_chan *c) {
    return c->chan.out.len - c->chan.sent;
}

void worker_chan_want_room(struct worker_chan *c) {
    assert(c->open);
    c->full = true;
    uv_idle_start(&c->rest, worker_chan_on_rest);
}

void worker_chan_drain(struct worker_chan *c) {
    /* From here on, no byte can be added, also by another process that has the other end: the loop
     * reads no more than the socket's buffer. */
    if (c->open)
        shutdown(c->chan.fd, SHUT_RD);
    while (c->open && worker_chan_receive_one(c) == 0)
        ;
}
