/* Requests of the previous daemon: the frames that may come in each state, and the answers. The
 * test is the other front. */

#include <criterion/criterion.h>
#include <errno.h>
#include <sys/socket.h>

#include "base/chan.h"
#include "daemon/models/guests.h"
#include "tests/api/world.h"

#define N_VOCAB 300u
#define CONTEXT 500u

struct scene {
    struct world w;
    struct guests *g;
    struct chan other;
    uint32_t n_asked;
    /* answer given as soon as the other front asks; NULL: the test answers */
    const struct msg_ready *own;
};

static struct msg_ready ready(void) {
    return (struct msg_ready){.n_vocab = N_VOCAB,
                              .max_context = CONTEXT,
                              .page_tokens = 16,
                              .fingerprint = {1, 2, [15] = 3},
                              .arch = {"llama", 5},
                              .backend = {"cpu", 3},
                              .isa = {"avx2", 4}};
}

static void answer(struct scene *s, const struct msg_ready *m) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};

    cr_assert_eq(msg_ready_pack(&b, m), 0);
    guests_answer(s->g, &b);
}

static void on_asked(void *ctx) {
    struct scene *s = ctx;

    s->n_asked++;
    cr_expect(guests_ask(s->g));
    if (s->own)
        answer(s, s->own);
}

static void setup(struct scene *s) {
    struct guests_opts o = {.clock = clock_monotonic(), .ctx = s, .asked = on_asked};
    int pair[2];

    *s = (struct scene){0};
    world_init(&s->w);
    world_start(&s->w);
    o.loop = &s->w.loop;
    o.model = api_first_model(s->w.api);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    cr_assert_eq(guests_new(&s->g, &o, pair[0]), 0);
    chan_init(&s->other, pair[1], MSG_MAX_FRAME, MSG_MAX_QUEUED);
}

static void teardown(struct scene *s) {
    guests_close(s->g);
    guests_close(s->g);
    world_turns(&s->w, 3);
    s->g = guests_free(s->g);
    chan_deinit(&s->other);
    world_stop(&s->w);
}

static void say(struct scene *s, uint16_t type, const struct buf *b) {
    cr_assert_eq(chan_send(&s->other, type, b ? b->data : NULL, b ? (uint32_t)b->len : 0), 0);
    world_turns(&s->w, 3);
}

static void say_ready(struct scene *s, const struct msg_ready *m) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};

    cr_assert_eq(msg_ready_pack(&b, m), 0);
    say(s, MSG_READY, &b);
}

static void say_cancel(struct scene *s, uint64_t id) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};

    msg_cancel_pack(&b, id);
    say(s, MSG_CANCEL, &b);
}

/* Sends a request "hi" as @id; @flags as in struct submit. */
static void say_submit(struct scene *s, uint64_t id, uint16_t flags) {
    static const int32_t tokens[] = {'h', 'i'};
    static const struct submit_picture picture = {
        .n_rows = 1, .n_columns = 1, .n_lines = 1, .n_positions = 1, .width = 2, .height = 2};
    CLEANUP(buf_deinit) struct buf b = {.max = 65536};
    struct submit m = {.id = id,
                       .flags = flags,
                       .n_prompt = 2,
                       .n_tokens = 2,
                       .tokens = tokens,
                       .max_new = 20,
                       .n_pictures = 1,
                       .pictures = &picture,
                       .tenant_name = {"alice", 5}};

    params_init(&m.sampling);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    say(s, MSG_SUBMIT, &b);
}

/* Returns the type of the next frame from the other side; 0: none has arrived; -1: the channel is
 * closed. */
static int heard(struct scene *s, struct chan_frame *f) {
    int r = chan_recv(&s->other, f);

    return r == CHAN_EMPTY ? 0 : r < 0 ? -1 : f->type;
}

static bool is_open(struct scene *s) {
    struct chan_frame f;

    return heard(s, &f) == 0;
}

/* Runs until requests may come. */
static void begin(struct scene *s) {
    const struct msg_ready m = ready();
    struct chan_frame f;

    s->own = &m;
    say_ready(s, &m);
    s->own = NULL;
    cr_assert_eq(s->n_asked, 1);
    cr_assert_eq(heard(s, &f), MSG_READY);
    cr_expect_not(guests_ask(s->g));
}

Test(guests, nothing_comes_before_both_have_described_their_models) {
    static const uint16_t types[] = {MSG_SUBMIT, MSG_CANCEL, MSG_TURN_END, MSG_PICTURE, MSG_EVENTS};
    struct msg_ready m = ready();

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        for (int asked = 0; asked < 2; asked++) {
            CLEANUP(buf_deinit) struct buf id = {.max = 64};
            struct scene s;

            setup(&s);
            cr_expect_not(guests_ask(s.g));
            if (asked)
                say_ready(&s, &m);
            cr_expect_eq(s.n_asked, asked);
            cr_expect_eq(guests_ask(s.g), asked);
            msg_cancel_pack(&id, 1);
            say(&s, types[i], &id);
            cr_expect_not(is_open(&s), "%u", types[i]);
            cr_expect_not(guests_ask(s.g), "whoever has gone is not answered");
            teardown(&s);
        }
    }
}

Test(guests, a_model_is_described_once) {
    struct msg_ready m = ready();
    struct scene s;

    setup(&s);
    begin(&s);
    say_ready(&s, &m);
    cr_expect_eq(s.n_asked, 1);
    cr_expect_not(is_open(&s));
    teardown(&s);
}

/* Requests move only if the tokens are the same and the context is as long. */
Test(guests, another_model_does_not_go_on) {
    struct msg_ready own[5];
    struct chan_frame none;

    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        own[i] = ready();
    own[0].fingerprint[15] = 4;
    own[1].n_vocab++;
    own[2].max_context--;
    own[3].backend = (struct str){"cpx", 3};
    own[4].backend = (struct str){"cp", 2};
    for (size_t i = 0; i < ARRAY_SIZE(own); i++) {
        struct msg_ready m = ready();
        struct scene s;

        setup(&s);
        say_ready(&s, &m);
        answer(&s, &own[i]);
        world_turns(&s.w, 3);
        cr_expect_eq(heard(&s, &none), -1, "%zu", i);
        teardown(&s);
    }
    struct msg_ready m = ready(), longer = ready(), parsed;
    struct chan_frame f;
    struct scene s;

    longer.max_context++;
    longer.isa = (struct str){"avx512", 6};
    setup(&s);
    say_ready(&s, &m);
    answer(&s, &longer);
    world_turns(&s.w, 3);
    cr_assert_eq(heard(&s, &f), MSG_READY);
    cr_assert_eq(msg_ready_parse(f.data, f.len, &parsed), 0);
    cr_expect_eq(parsed.max_context, CONTEXT + 1);
    teardown(&s);
}

Test(guests, a_request_ends_with_its_last_event) {
    struct event_cursor at;
    struct chan_frame f;
    struct event e;
    struct scene s;

    setup(&s);
    begin(&s);
    say_submit(&s, 77, 0);
    say_submit(&s, 78, 0);
    cr_assert_eq(s.w.port.n, 2);
    fake_accept(&s.w.port, 0);
    fake_tokens(&s.w.port, 0, "a");
    fake_finish(&s.w.port, 0, FINISH_STOP);
    fake_reject(&s.w.port, 1, 400, "no");
    world_turns(&s.w, 3);
    uint32_t n = 0, n_ends = 0;
    while (heard(&s, &f) == MSG_EVENTS) {
        msg_events_begin(&at, f.data, f.len);
        cr_assert_eq(msg_events_next(&at, &e), 0);
        cr_expect_eq(e.id, e.kind == EVENT_REJECTED ? 78u : 77u);
        n_ends += e.kind == EVENT_FINISH || e.kind == EVENT_REJECTED;
        n++;
        cr_expect_eq(msg_events_next(&at, &e), 1, "one a frame");
    }
    cr_expect_eq(n_ends, 2);
    cr_expect_geq(n, 3);
    say_cancel(&s, 77); /* the request has ended, so the cancel has no effect */
    cr_expect(is_open(&s));
    say_submit(&s, 77, 0); /* so its number may be used again */
    cr_expect_eq(s.w.port.n, 3);
    cr_expect(is_open(&s));
    say_submit(&s, 77, 0);
    cr_expect_not(is_open(&s), "a number may not come twice at a time");
    cr_expect_eq(s.w.port.n_cancels, 1, "the end of the link cancels");
    teardown(&s);
}

/* A request of more than a frame comes in parts, which a cancel ends. */
Test(guests, a_long_request_comes_in_parts) {
    static const int32_t tokens[40000];
    struct submit m = {.id = 8,
                       .tokens = tokens,
                       .n_prompt = ARRAY_SIZE(tokens),
                       .n_tokens = ARRAY_SIZE(tokens),
                       .max_new = 1,
                       .tenant_name = {"alice", 5}};
    struct scene s;

    params_init(&m.sampling);
    setup(&s);
    begin(&s);
    for (int cancels = 0; cancels < 2; cancels++) {
        for (uint32_t sent = 0; sent < msg_submit_len(&m) && is_open(&s);) {
            CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
            int n = msg_submit_pack_part(&b, &m, sent);

            cr_assert(n > 0 && (uint32_t)n < msg_submit_len(&m));
            cr_expect_eq(s.w.port.n, cancels);
            say(&s, MSG_SUBMIT_PART, &b);
            if (cancels && sent == 0)
                say_cancel(&s, m.id);
            sent += (uint32_t)n;
        }
        cr_assert_eq(s.w.port.n, 1);
        cr_expect_eq(s.w.port.r[0].m.n_tokens, ARRAY_SIZE(tokens));
        cr_expect_eq(is_open(&s), !cancels);
        m.id++;
    }
    teardown(&s);
}

Test(guests, requests_are_cancelled_by_number) {
    CLEANUP(buf_deinit) struct buf few = {.max = 64};
    struct scene s;

    setup(&s);
    begin(&s);
    for (uint64_t id = 1; id <= 3; id++)
        say_submit(&s, id, 0);
    cr_assert_eq(s.w.port.n, 3);
    say_cancel(&s, 2);
    cr_expect_eq(s.w.port.n_cancels, 1);
    cr_expect(s.w.port.r[1].cancelled);
    say_cancel(&s, 2);
    say_cancel(&s, 9);
    cr_expect_eq(s.w.port.n_cancels, 1);
    say_cancel(&s, 3);
    cr_expect(s.w.port.r[2].cancelled);
    cr_expect(is_open(&s));
    buf_add(&few, "123", 3);
    say(&s, MSG_CANCEL, &few);
    cr_expect_not(is_open(&s));
    cr_expect_eq(s.w.port.n_cancels, 3);
    teardown(&s);
}

/* A prefix is not computed ahead for a turn that will not come here, and the end of a turn has no
 * effect on a request that has ended. */
Test(guests, hints_are_left_out) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64};
    const struct turn_end m = {.id = 1};
    struct scene s;

    setup(&s);
    begin(&s);
    say_submit(&s, 1, SUBMIT_PREWARM);
    msg_turn_end_pack(&b, &m);
    say(&s, MSG_TURN_END, &b);
    cr_expect_eq(s.w.port.n, 0);
    cr_expect_eq(s.w.port.n_turns, 0);
    cr_expect(is_open(&s));
    teardown(&s);
}

Test(guests, a_turn_that_the_other_front_ends_is_cancelled_here) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64};
    const struct turn_end m = {.id = 1, .session = 7};
    struct scene s;

    setup(&s);
    begin(&s);
    say_submit(&s, 1, 0);
    msg_turn_end_pack(&b, &m);
    say(&s, MSG_TURN_END, &b);
    cr_expect(s.w.port.r[0].cancelled);
    cr_expect(is_open(&s));
    say(&s, MSG_TURN_END, &b);
    cr_expect_eq(s.w.port.n_cancels, 1);
    teardown(&s);
}

Test(guests, pictures_are_asked_for) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    struct msg_picture part = {.id = 5, .total = 12, .rgb = {"abcdefghijkl", 12}};
    struct msg_need_picture need = {0};
    struct chan_frame f;
    struct scene s;

    setup(&s);
    begin(&s);
    say_submit(&s, 5, 0);
    cr_assert_eq(s.w.port.n, 1);
    need.id = s.w.port.r[0].id;
    const struct msg_need_picture need_again = need;
    api_on_need_picture(s.w.port.model, &need);
    world_turns(&s.w, 3);
    cr_assert_eq(heard(&s, &f), MSG_NEED_PICTURE);
    cr_assert_eq(msg_need_picture_parse(f.data, f.len, &need), 0);
    cr_expect(need.id == 5 && need.index == 0);
    cr_assert_eq(msg_picture_pack(&b, &part), 0);
    say(&s, MSG_PICTURE, &b);
    cr_expect_eq(s.w.port.n_pictures, 1);
    part.id = 6; /* of a request that has ended */
    buf_clear(&b);
    cr_assert_eq(msg_picture_pack(&b, &part), 0);
    say(&s, MSG_PICTURE, &b);
    cr_expect(is_open(&s));
    api_on_need_picture(s.w.port.model, &need_again);
    world_turns(&s.w, 3);
    cr_assert_eq(heard(&s, &f), MSG_NEED_PICTURE);
    cr_expect_eq(msg_need_picture_parse(f.data, f.len, &need), 0);
    part = (struct msg_picture){.id = 5, .total = 12, .rgb = {"abcde", 5}};
    for (int i = 0; i < 2; i++) { /* the second time it is not the next part */
        buf_clear(&b);
        cr_assert_eq(msg_picture_pack(&b, &part), 0);
        say(&s, MSG_PICTURE, &b);
        cr_expect_eq(is_open(&s), i == 0);
    }
    teardown(&s);
}

Test(guests, the_end_of_the_other_front_cancels) {
    struct scene s;

    setup(&s);
    begin(&s);
    say_submit(&s, 1, 0);
    shutdown(s.other.fd, SHUT_RDWR);
    world_turns(&s.w, 5);
    cr_expect_eq(s.w.port.n_cancels, 1);
    teardown(&s);
}
