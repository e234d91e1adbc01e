/* Frames that a worker takes from its channel between two steps. */

#include <criterion/criterion.h>
#include <errno.h>
#include <sys/socket.h>

#include "base/chan.h"
#include "base/clock.h"
#include "daemon/worker/handle_frames.h"

#define EACH_NS 1000
#define LIMIT 7 /* frames in the time of a call */

/* Both ends of a channel. */
struct scene {
    struct chan front, worker;
    struct clock_virtual clock;
    /* frames taken */
    uint32_t n;
    /* the front answers each frame with two */
    bool sends_always;
    /* type of a frame that is not taken */
    uint16_t refused;
};

static int take(void *ctx, const struct chan_frame *f) {
    struct scene *s = ctx;

    s->n++;
    s->clock.ns += EACH_NS;
    for (int i = 0; i < 2 && s->sends_always; i++)
        cr_assert_eq(chan_send(&s->front, 1, NULL, 0), 0);
    return f->type == s->refused ? -EPROTO : 0;
}

static void setup(struct scene *s) {
    int pair[2];

    *s = (struct scene){0};
    clock_virtual_init(&s->clock, 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    chan_init(&s->front, pair[0], 4096, 1 << 20);
    chan_init(&s->worker, pair[1], 4096, 1 << 20);
}

static void teardown(struct scene *s) {
    chan_deinit(&s->front);
    chan_deinit(&s->worker);
}

static int facets_read_some(struct scene *s) {
    return handle_frames(&s->worker, &s->clock.clock, LIMIT * EACH_NS, take, s);
}

static void send_frames(struct scene *s, int n, uint16_t type) {
    for (int i = 0; i < n; i++)
        cr_assert_eq(chan_send(&s->front, type, NULL, 0), 0);
}

Test(handle_frames, all_that_have_arrived_are_taken) {
    struct scene s;

    setup(&s);
    cr_expect_eq(facets_read_some(&s), CHAN_EMPTY);
    send_frames(&s, LIMIT - 1, 1);
    cr_expect_eq(facets_read_some(&s), CHAN_EMPTY);
    cr_expect_eq(s.n, LIMIT - 1);
    teardown(&s);
}

/* A front that sends faster than the worker takes does not keep it from its step. */
Test(handle_frames, the_time_is_limited_however_much_arrives, .timeout = 60) {
    struct scene s;

    setup(&s);
    s.sends_always = true;
    send_frames(&s, 1, 1);
    for (uint32_t i = 1; i <= 3; i++) {
        cr_expect_eq(facets_read_some(&s), 0, "frames in the buffer make no socket readable");
        cr_expect_eq(s.n, i * LIMIT, "%u", s.n);
    }
    s.sends_always = false;
    for (int i = 0; i < 10; i++)
        facets_read_some(&s);
    cr_expect_eq(s.n, 1 + 2 * 3 * LIMIT, "none is lost");
    teardown(&s);
}

Test(handle_frames, an_error_ends_it_and_so_does_the_end_of_the_channel) {
    struct scene s;

    setup(&s);
    s.refused = 2;
    send_frames(&s, 2, 1);
    send_frames(&s, 1, 2);
    send_frames(&s, 1, 1);
    cr_expect_eq(facets_read_some(&s), -EPROTO);
    cr_expect_eq(s.n, 3);
    chan_deinit(&s.front);
    cr_expect_eq(facets_read_some(&s), -EPIPE);
    cr_expect_eq(s.n, 4, "what was sent before the end is taken");
    chan_deinit(&s.worker);
}
