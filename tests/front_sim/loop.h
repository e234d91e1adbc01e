#pragma once

/*
 * loop - in place of libuv: one loop for each front. Private to loop.c, stream.c and process.c.
 *
 * A handle that is not closed has a struct sim_handle, found by handle->u.reserved[0]; flags are
 * those of uv_is_closing(). An iteration is libuv's: timers, what is pending, idle handles, the
 * poll, check handles, closed handles. In the poll the world acts, and of what is ready then any
 * part is told, in any order.
 */

#include <uv.h>
#include "tests/front_sim/sim.h"

#define HANDLE_CLOSING 1u
#define HANDLE_CLOSED 2u

struct sim_handle {
    struct list link; /* handles */
    uv_handle_t *h;
    bool active, unref, closing;
    uv_close_cb on_closed;
    union {
        uv_timer_cb timer;
        uv_idle_cb idle;
        uv_check_cb check;
        uv_poll_cb poll;
        uv_async_cb async;
        uv_signal_cb signal;
        uv_exit_cb exit;
        uv_connection_cb connection;
        uv_read_cb read;
    } cb;
    /* timer */
    uint64_t due_ms, repeat_ms, number;
    /* poll, stream: fd -1: none. */
    int fd, wants;
    bool listens, reads, has_ended;
    bool waits_for_accept; /* the callback did not accept: the stream is not looked at */
    uv_alloc_cb on_alloc;
    struct list writes; /* sim_write.link */
    uv_shutdown_t *shutdown;
    uv_shutdown_cb on_shutdown;
    /* async, signal, process */
    uint32_t n_pending;
    int signum;
    bool exited;
    int64_t status;
    int term_signal;
    void *program; /* of a process */
};

static inline struct sim_handle *handle_of(const void *h) {
    return ((const uv_handle_t *)h)->u.reserved[0];
}

/* A new one for @h. */
struct sim_handle *handle_new(uv_loop_t *loop, void *h, uv_handle_type type);
/* Asserts that the front may use @h: it was made and is not closing. */
struct sim_handle *handle_usable(const void *h, const char *call);

/* Runs a callback of the front. */
#define IN_FRONT(call)                                                                             \
    do {                                                                                           \
        sim.in_front = true;                                                                       \
        sim.n_calls = 0;                                                                           \
        call;                                                                                      \
        sim.in_front = false;                                                                      \
    } while (0)

/* stream.c: what streams and polls have to tell. */
int stream_ready(const struct sim_handle *s); /* 0: nothing */
void stream_tell(struct sim_handle *s);
void stream_closing(struct sim_handle *s); /* uv_close() */
void stream_closed(struct sim_handle *s);  /* before the callback */
bool stream_busy(const struct sim_handle *s);
/* process.c */
void process_tell(struct sim_handle *s);
void process_closing(struct sim_handle *s); /* uv_close() */
