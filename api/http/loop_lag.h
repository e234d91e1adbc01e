#pragma once

/*
 * loop_lag - measures how long the front's event loop was busy between two polls of its sockets:
 * the time that any other client may have waited for its turn. Each iteration is one observation of
 * weft_loop_lag_seconds (wall time) and of weft_loop_cpu_seconds (CPU time of the thread, which a
 * busy machine does not change). One that used more than LOOP_LAG_LONG_NS of it is logged, with the
 * callback that used the most.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define LOOP_LAG_LONG_NS 20000000

/* A long iteration. */
struct loop_lag_long {
    uint64_t busy_ns, cpu_ns;
    /* the callback that used the most CPU time */
    const char *in;
    uint64_t in_cpu_ns;
};

struct loop_lag {
    /* runs after each iteration's callbacks; does not keep the loop alive, nor does @prepare */
    uv_check_t check;
    /* runs before each poll */
    uv_prepare_t prepare;
    /* end of the last iteration; 0: there was none */
    uint64_t at_ns, idle_ns, cpu_ns;
    /* start of the current half of the last minute */
    uint64_t slot_ns;
    /* longest iteration of the current and of the previous half */
    uint64_t longest_ns[2];
    void (*on_iteration)(void *ctx, uint64_t busy_ns, uint64_t cpu_ns);
    void (*on_long)(void *ctx, const struct loop_lag_long *it);
    void *ctx;
    bool open;
};

/* Begins to observe @loop, which was configured with UV_METRICS_IDLE_TIME. @on_iteration is called
 * after each iteration, with the wall time that it was busy and the CPU time of the thread. */
void loop_lag_init(struct loop_lag *l, uv_loop_t *loop,
                   void (*on_iteration)(void *ctx, uint64_t busy_ns, uint64_t cpu_ns),
                   void (*on_long)(void *ctx, const struct loop_lag_long *it), void *ctx);
/* Names the activity of the loop's thread from now on; @what must stay valid. Callbacks call it
 * when they begin; the time of a callback that does not counts for the previous one. Of a callback
 * that takes less than a millisecond by the clock, this time counts as its CPU time. */
void loop_lag_mark(const char *what);
void loop_lag_close(struct loop_lag *l); /* closes the handle; call it before the loop ends */
/* Returns the longest iteration of the last 30 to 60 s. */
uint64_t loop_lag_longest_ns(const struct loop_lag *l);
