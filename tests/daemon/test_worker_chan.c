/* The part of a worker's channel that one iteration of the loop handles. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/workers/worker_chan.h"

#define EACH_NS 300000 /* virtual time of the work for one frame or part */
#define MOST ((WORKER_CHAN_TURN_NS + EACH_NS - 1) / EACH_NS)

enum { SINGLE, BATCH };

/* An end of a channel, the other end, and the frames that arrived. */
struct scene {
    uv_loop_t loop;
    /* counts iterations, and the most parts in one of them */
    uv_check_t check;
    struct clock_virtual clock;
    struct worker_chan chan;
    struct chan worker;
    uint32_t n_iterations, n_frames, n_parts, n_here, most_here;
    /* number of frames that the worker still answers */
    uint32_t left;
    /* parts of the present frame */
    uint32_t parts;
    /* number of the part in which the channel is closed; 0: none */
    uint32_t closes;
    /* reports that there is room again */
    uint32_t n_room;
    /* the worker has ended: no process can send in its name */
    bool ended;
    /* frames that had come when the end of the channel was told, and how often it was */
    uint32_t n_before_end, n_ends;
};

static void work(struct scene *s) {
    s->clock.ns += EACH_NS;
    s->n_here++;
}

/* Answers before the callback returns, as the fastest possible worker. */
static bool on_frame(void *ctx, const struct chan_frame *f) {
    struct scene *s = ctx;

    work(s);
    s->n_frames++;
    if (f->type == BATCH) {
        cr_assert_eq(f->len, sizeof(s->parts));
        memcpy(&s->parts, f->data, sizeof(s->parts));
        return true;
    }
    if (s->left > 0) {
        s->left--;
        cr_assert_eq(chan_send(&s->worker, SINGLE, NULL, 0), s->ended ? -EPIPE : 0);
    }
    return false;
}

static bool on_part(void *ctx) {
    struct scene *s = ctx;

    if (s->parts == 0)
        return false;
    work(s);
    s->parts--;
    s->n_parts++;
    if (s->closes && s->n_parts == s->closes)
        worker_chan_close(&s->chan);
    return true;
}

static void on_room(void *ctx) {
    struct scene *s = ctx;

    cr_expect_eq(worker_chan_queued(&s->chan), 0);
    s->n_room++;
}

static void on_ended(void *ctx) {
    struct scene *s = ctx;

    s->n_before_end = s->n_frames;
    s->n_ends++;
}

static void on_check(uv_check_t *check) {
    struct scene *s = check->data;

    s->most_here = MAX(s->most_here, s->n_here);
    s->n_iterations += s->n_here > 0;
    s->n_here = 0;
}

static void setup(struct scene *s) {
    struct worker_chan_opts o = {.loop = &s->loop,
                                 .clock = &s->clock.clock,
                                 .ctx = s,
                                 .frame = on_frame,
                                 .part = on_part,
                                 .room = on_room};
    int pair[2];

    *s = (struct scene){0};
    clock_virtual_init(&s->clock, 1);
    uv_loop_init(&s->loop);
    uv_check_init(&s->loop, &s->check);
    s->check.data = s;
    uv_check_start(&s->check, on_check);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    worker_chan_open(&s->chan, pair[0], &o);
    chan_init(&s->worker, pair[1], 4096, 1 << 20);
}

static void run(struct scene *s, uint32_t iterations) {
    for (uint32_t i = 0; i < iterations; i++)
        uv_run(&s->loop, UV_RUN_NOWAIT);
}

static void teardown(struct scene *s) {
    worker_chan_close(&s->chan);
    chan_deinit(&s->worker);
    uv_close((uv_handle_t *)&s->check, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&s->loop), 0);
}

Test(worker_chan, a_worker_that_answers_at_once_does_not_keep_the_loop) {
    struct scene s;

    setup(&s);
    s.left = 1000;
    chan_send(&s.worker, SINGLE, NULL, 0);
    run(&s, 2000);
    cr_expect_eq(s.n_frames, 1001);
    cr_expect_eq(s.most_here, MOST);
    cr_expect_eq(s.n_iterations, (1001 + MOST - 1) / MOST);
    cr_expect_not(uv_is_active((uv_handle_t *)&s.chan.rest), "a quiet channel lets the loop sleep");
    teardown(&s);
}

/* Frames that are already in the buffer make no descriptor readable. */
Test(worker_chan, frames_that_were_read_already_are_not_forgotten) {
    struct scene s;

    setup(&s);
    for (int i = 0; i < 100; i++)
        chan_send(&s.worker, SINGLE, NULL, 0);
    run(&s, 1);
    cr_expect_eq(s.n_frames, MOST);
    run(&s, 100);
    cr_expect_eq(s.n_frames, 100);
    cr_expect_eq(s.most_here, MOST);
    teardown(&s);
}

Test(worker_chan, a_batch_of_many_events_has_several_turns) {
    struct scene s;
    uint32_t n = 1000;

    setup(&s);
    chan_send(&s.worker, BATCH, &n, sizeof(n));
    chan_send(&s.worker, SINGLE, NULL, 0);
    run(&s, 2);
    cr_expect_lt(s.n_parts, 2 * MOST);
    run(&s, 1000);
    cr_expect_eq(s.n_parts, 1000);
    cr_expect_eq(s.n_frames, 2);
    cr_expect_leq(s.most_here, MOST);
    teardown(&s);
}

Test(worker_chan, what_a_worker_said_before_its_end_is_heard_at_once) {
    struct scene s;
    uint32_t n = 50;

    setup(&s);
    chan_send(&s.worker, BATCH, &n, sizeof(n));
    run(&s, 1);
    chan_send(&s.worker, SINGLE, NULL, 0);
    chan_deinit(&s.worker);
    worker_chan_drain(&s.chan);
    cr_expect_eq(s.n_parts, 50);
    cr_expect_eq(s.n_frames, 2);
    teardown(&s);
}

Test(worker_chan, a_part_may_close_it) {
    struct scene s;
    uint32_t n = 50;

    setup(&s);
    s.closes = 2;
    chan_send(&s.worker, BATCH, &n, sizeof(n));
    run(&s, 10);
    cr_expect_eq(s.n_parts, 2);
    teardown(&s);
}

/* Sends until the socket takes no more. Returns the number of frames. */
static uint32_t fill(struct scene *s) {
    CLEANUP(buf_deinit) struct buf payload = {.max = 4096};
    uint32_t n = 0;

    buf_reserve(&payload, 4096);
    memset(payload.data, 1, payload.len = 4096);
    while (worker_chan_queued(&s->chan) == 0 && n < 10000) {
        cr_assert_eq(worker_chan_send(&s->chan, SINGLE, &payload), 0);
        n++;
    }
    cr_expect_gt(worker_chan_queued(&s->chan), 0);
    return n;
}

/* The channel waits for room in the socket also during a turn. */
Test(worker_chan, what_the_socket_does_not_take_goes_out_later) {
    struct scene s;
    struct chan_frame f;
    uint32_t n = 0;

    setup(&s);
    uint32_t n_sent = fill(&s);
    for (int i = 0; i < 1000 && n < n_sent; i++) {
        while (chan_recv(&s.worker, &f) == 0)
            n++;
        run(&s, 1);
    }
    cr_expect_eq(n, n_sent);
    cr_expect_eq(worker_chan_queued(&s.chan), 0);
    teardown(&s);
}

/* A waiter for room is told of it once, also when another message has sent the rest before the
 * loop looked at the socket. */
Test(worker_chan, room_is_reported_whoever_sends_the_rest) {
    struct buf empty = {0};
    struct chan_frame f;
    struct scene s;

    setup(&s);
    cr_assert_eq(worker_chan_send(&s.chan, SINGLE, &empty), 0);
    run(&s, 10);
    cr_expect_eq(s.n_room, 0, "nothing has waited");
    for (uint32_t i = 1; i <= 3; i++) {
        fill(&s);
        run(&s, 10);
        cr_expect_eq(s.n_room, i - 1, "there is no room yet");
        while (chan_recv(&s.worker, &f) == 0)
            ;
        cr_assert_eq(worker_chan_send(&s.chan, SINGLE, &empty), 0);
        cr_assert_eq(worker_chan_queued(&s.chan), 0);
        cr_expect_eq(s.n_room, i - 1, "not inside of a send");
        run(&s, 10);
        cr_expect_eq(s.n_room, i);
        cr_expect_not(uv_is_active((uv_handle_t *)&s.chan.rest));
    }
    teardown(&s);
}

/* A process that has the other end of a worker that has ended cannot add frames for ever. */
Test(worker_chan, nothing_arrives_after_the_end_of_the_worker, .timeout = 60) {
    struct scene s;

    setup(&s);
    s.left = UINT32_MAX; /* each frame is answered with another */
    chan_send(&s.worker, SINGLE, NULL, 0);
    s.ended = true;
    worker_chan_drain(&s.chan);
    cr_expect_eq(s.n_frames, 1);
    teardown(&s);
}

/* The end is told once, behind all that was said before it, and costs no turns afterwards. */
Test(worker_chan, its_end_is_told_behind_its_frames) {
    for (int how = 0; how < 4; how++) { /* closed, malformed, and both without a listener */
        const uint64_t wrong = UINT64_MAX;
        struct scene s;
        char byte;

        setup(&s);
        if (how < 2)
            s.chan.opts.ended = on_ended;
        for (int i = 0; i < 10; i++)
            chan_send(&s.worker, SINGLE, NULL, 0);
        if (how % 2)
            cr_assert_eq(write(s.worker.fd, &wrong, sizeof(wrong)), sizeof(wrong));
        else
            shutdown(s.worker.fd, SHUT_RDWR);
        run(&s, 20);
        cr_expect_eq(s.n_frames, 10);
        cr_expect_eq(s.n_ends, how < 2 ? 1 : 0, "%d: %u", how, s.n_ends);
        cr_expect_eq(s.n_before_end, how < 2 ? 10 : 0);
        cr_expect_not(uv_is_active((uv_handle_t *)&s.chan.poll), "%d", how);
        cr_expect_not(uv_is_active((uv_handle_t *)&s.chan.rest), "%d", how);
        cr_expect(s.chan.open && s.chan.waits_for == 0);
        cr_expect_eq(read(s.worker.fd, &byte, 1), 0, "the other end sees it");
        worker_chan_close(&s.chan);
        worker_chan_close(&s.chan);
        worker_chan_drain(&s.chan);
        teardown(&s);
    }
}

/* A waiter may ask for a turn although nothing waits in the socket. */
Test(worker_chan, room_can_be_asked_for) {
    struct scene s;

    setup(&s);
    cr_expect_eq(worker_chan_queued(&s.chan), 0);
    for (uint32_t i = 1; i <= 2; i++) {
        worker_chan_want_room(&s.chan);
        cr_expect_eq(s.n_room, i - 1);
        run(&s, 3);
        cr_expect_eq(s.n_room, i);
        cr_expect_not(uv_is_active((uv_handle_t *)&s.chan.rest));
    }
    s.chan.opts.room = NULL;
    worker_chan_want_room(&s.chan);
    run(&s, 3);
    cr_expect_not(s.chan.full);
    cr_expect_eq(s.chan.waits_for, UV_READABLE);
    fill(&s);
    cr_expect_eq(s.chan.waits_for, UV_READABLE | UV_WRITABLE);
    cr_expect(s.chan.full);
    teardown(&s);
}
