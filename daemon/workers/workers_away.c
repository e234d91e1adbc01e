/*
 * Lets the worker of the next daemon compute for this front in an upgrade (models_away.c). The
 * requests stay in this front and are submitted with their tokens so far, as after the death of a
 * worker.
 *
 *      NONE ──offer──> OFFERED ──its READY──> ACCEPTED ──give_way, no process──> TAKEN
 *                         └────── end of the channel ────┴──> REFUSED <────────────┘
 *
 * Over the channel the next front acts as a worker (guests.h), without HELLO and OPEN, because both
 * have the same sources. The first frame is the READY of this front's worker.
 */

#include <assert.h>

#include "base/log.h"
#include "daemon/workers/workers_private.h"

/* time until a device has freed the memory of the other daemon's process */
#define DEVICE_FREE_MS 1000

static void close_next(struct workers *w, enum workers_next how) {
    worker_chan_close(&w->next_chan);
    w->next = how;
}

/* Sends requests over the channel from now on. */
static void use_next_channel(struct workers *w) {
    assert(w->state == WORKERS_AWAY && w->next == NEXT_ACCEPTED && !w->process_open);
    w->next = NEXT_TAKEN;
    log_event(WLOG_INFO, "requests_moved", "n=%u", api_model_use(w->model).n_running);
    api_worker_up(w->model, workers_n_faults);
}

/* Ends the exchange. If the process of this front was ended for it, starts one again. */
static void come_back(struct workers *w, enum workers_next next) {
    if (w->next == NEXT_TAKEN)
        api_worker_down(w->model);
    close_next(w, next);
    if (w->state != WORKERS_AWAY)
        return;
    workers_set_state(w, WORKERS_DOWN);
    w->down_ns = clock_now(w->opts.clock);
    w->backoff_ms = workers_on_device(w) ? DEVICE_FREE_MS : 0;
    if (!w->process_open)
        workers_schedule_restart(w);
}

/* Handles that the next daemon takes no requests, or no longer takes them. */
static void lose_next(struct workers *w) {
    if (w->next == NEXT_TAKEN)
        log_event(WLOG_WARN, "requests_came_back", "n=%u", api_model_use(w->model).n_running);
    come_back(w, NEXT_REFUSED);
    w->opts.on_answer(w->opts.ctx);
}

/* Implements worker_chan_opts.frame. */
static bool workers_away_on_frame(void *ctx, const struct chan_frame *f) {
    struct workers *w = ctx;
    struct msg_need_picture need;
    struct msg_ready m;

    if (f->type == MSG_EVENTS && w->next == NEXT_TAKEN) {
        msg_events_begin(&w->events, f->data, f->len);
        return true;
    }
    if (f->type == MSG_NEED_PICTURE && w->next == NEXT_TAKEN &&
        msg_need_picture_parse(f->data, f->len, &need) == 0) {
        api_on_need_picture(w->model, &need);
    } else if (f->type == MSG_READY && w->next == NEXT_OFFERED &&
               msg_ready_parse(f->data, f->len, &m) == 0) {
        w->next = NEXT_ACCEPTED;
        w->opts.on_answer(w->opts.ctx);
    } else {
        lose_next(w);
    }
    return false;
}

/* Implements worker_chan_opts.part. */
static bool workers_away_on_part(void *ctx) {
    int r = workers_next_event(ctx);

    if (r < 0)
        lose_next(ctx);
    return r == 0;
}

/* Implements worker_chan_opts.ended. */
static void workers_away_on_ended(void *ctx) {
    lose_next(ctx);
}

enum workers_answer workers_answer(const struct workers *w) {
    static const enum workers_answer answers[] = {
        [NEXT_NONE] = WORKERS_UNASKED,      [NEXT_OFFERED] = WORKERS_ASKED,
        [NEXT_ACCEPTED] = WORKERS_ACCEPTED, [NEXT_TAKEN] = WORKERS_ACCEPTED,
        [NEXT_REFUSED] = WORKERS_REFUSED,
    };

    assert(w->next < ARRAY_SIZE(answers));
    return answers[w->next];
}

void workers_offer(struct workers *w, int fd) {
    const struct worker_chan_opts o = {.loop = w->opts.loop,
                                       .clock = w->opts.clock,
                                       .ctx = w,
                                       .frame = workers_away_on_frame,
                                       .part = workers_away_on_part,
                                       .room = workers_on_room,
                                       .ended = workers_away_on_ended};

    assert(w->next == NEXT_NONE && w->ready.len > 0);
    w->next = NEXT_OFFERED;
    worker_chan_open(&w->next_chan, fd, &o);
    worker_chan_send(&w->next_chan, MSG_READY, &w->ready);
}

void workers_gone(struct workers *w) {
    log_event(WLOG_INFO, "worker_gave_way", "pid=%d", w->process.pid);
    if (w->next == NEXT_ACCEPTED)
        use_next_channel(w);
    w->opts.on_away(w->opts.ctx);
}

bool workers_hand_over(struct workers *w) {
    bool served = w->state == WORKERS_SERVING;

    if (w->state == WORKERS_AWAY && w->next == NEXT_ACCEPTED && !w->process_open)
        use_next_channel(w);
    if (w->state != WORKERS_DOWN && w->state != WORKERS_LOADING && !served)
        return false;
    workers_set_state(w, WORKERS_AWAY);
    if (served)
        api_worker_down(w->model);
    workers_end_process(w, served);
    if (!w->process_open && w->next == NEXT_ACCEPTED)
        use_next_channel(w);
    return w->process_open;
}

void workers_come_back(struct workers *w) {
    come_back(w, NEXT_NONE);
}

void workers_detach_next(struct workers *w) {
    close_next(w, NEXT_NONE);
}
