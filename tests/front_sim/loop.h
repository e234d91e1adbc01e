#pragma once

/*
 * loop - replaces libuv: one loop for each front. Private to loop.c, stream.c and process.c.
 *
 * A handle that is not closed has a struct sim_handle, found by handle->u.reserved[0]; flags are
 * those of uv_is_closing(). An iteration has the order of libuv: timers, pending callbacks, idle
 * handles, prepare handles, the poll, check handles, closed handles. In the poll the actors act,
 * and a random part of the ready handles is reported, in random order. No handle is left out twice
 * in a row: epoll reports all that is ready, and only what becomes ready meanwhile is in the next.
 */

#include <uv.h>

#include "tests/front_sim/sim.h"

#define HANDLE_CLOSING 1u
#define HANDLE_CLOSED 2u

struct sim_handle {
    /* handles */
    struct list link;
    uv_handle_t *h;
    bool active, unref, closing;
    /* it was ready at the last poll, which did not report it */
    bool left_out;
    uv_close_cb on_closed;
    struct sim_handle *next_closing;
    union {
        uv_timer_cb timer;
        uv_idle_cb idle;
        uv_check_cb check;
        uv_prepare_cb prepare;
        uv_poll_cb poll;
        uv_async_cb async;
        uv_signal_cb signal;
        uv_exit_cb exit;
        uv_connection_cb connection;
        uv_read_cb read;
    } cb;
    /* of a timer */
    uint64_t due_ms, repeat_ms, number;
    /* of a poll or stream. fd -1: none. */
    int fd, wants;
    bool listens, reads, has_ended;
    /* the callback did not accept, so the stream is not polled */
    bool waits_for_accept;
    uv_alloc_cb on_alloc;
    /* sim_write.link */
    struct list writes;
    uv_shutdown_t *shutdown;
    uv_shutdown_cb on_shutdown;
    /* of an async, signal or process */
    uint32_t n_pending;
    int signum;
    bool exited;
    int64_t status;
    int term_signal;
    /* of a process */
    void *program;
};

static inline struct sim_handle *handle_of(const void *h) {
    return ((const uv_handle_t *)h)->u.reserved[0];
}

/* Makes the sim_handle of @h. */
struct sim_handle *handle_new(uv_loop_t *loop, void *h, uv_handle_type type);
/* Asserts that the front may use @h: it was initialised and is not closing. */
struct sim_handle *handle_usable(const void *h, const char *call);

/* Runs a callback of the front. */
#define IN_FRONT(call)                                                                             \
    do {                                                                                           \
        sim.in_front = true;                                                                       \
        sim.n_calls = 0;                                                                           \
        call;                                                                                      \
        sim.in_front = false;                                                                      \
    } while (0)

/* stream.c: events of streams and polls. */
int stream_ready(const struct sim_handle *s); /* returns 0 if there are none */
void stream_tell(struct sim_handle *s);
void stream_closing(struct sim_handle *s); /* called by uv_close() */
void stream_closed(struct sim_handle *s);  /* called before the callback */
bool stream_busy(const struct sim_handle *s);
/* process.c */
void process_tell(struct sim_handle *s);
void process_closing(struct sim_handle *s); /* called by uv_close() */
