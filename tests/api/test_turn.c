/* Order in which connections are served if more have data to read than there is time for. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api/http/conn.h"
#include "api/http/turn.h"
#include "api/parts.h"
#include "base/util.h"
#include "world.h"

#define EACH_NS 20000
#define MANY 64

struct payer_scene {
    struct turn_flow flow;
    struct turn conn[MANY];
    uint32_t n_turns[MANY], n;
};

struct scene {
    struct turn_flow root;
    struct payer_scene *payer;
    uint32_t n_payers;
};

static void setup(struct scene *s, struct payer_scene *p, uint32_t n) {
    *s = (struct scene){.payer = p, .n_payers = n};
    turn_flow_init(&s->root, NULL, true, 1);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = (struct payer_scene){0};
        turn_flow_init(&p[i].flow, &s->root, false, 1);
        for (int k = 0; k < MANY; k++)
            turn_init(&p[i].conn[k]);
    }
}

/* Runs the next turn for @ns; its connection asks for another one at once. Returns the number of
 * its payer. */
static uint32_t one_turn(struct scene *s, int64_t ns) {
    struct turn *t = turn_next(&s->root);

    cr_assert(t);
    for (uint32_t i = 0; i < s->n_payers; i++) {
        struct payer_scene *p = &s->payer[i];

        if (t < p->conn || t >= p->conn + MANY)
            continue;
        p->n_turns[t - p->conn]++;
        p->n++;
        turn_charge(&p->flow, ns);
        turn_want(t, &p->flow);
        return i;
    }
    cr_assert_fail("it is of no payer");
    return UINT32_MAX;
}

static void want(struct payer_scene *p, int n) {
    for (int k = 0; k < n; k++)
        turn_want(&p->conn[k], &p->flow);
}

Test(turn, payers_share_however_many_connections_they_have) {
    static struct payer_scene p[2];
    struct scene s;

    setup(&s, p, 2);
    want(&p[0], MANY);
    want(&p[1], 1);
    for (int i = 0; i < 1000; i++)
        one_turn(&s, EACH_NS);
    cr_expect(p[0].n >= 499 && p[0].n <= 501, "%u and %u", p[0].n, p[1].n);
    for (int k = 0; k < MANY; k++)
        cr_expect(p[0].n_turns[k] >= 7 && p[0].n_turns[k] <= 8, "%u", p[0].n_turns[k]);
}

Test(turn, time_counts_and_not_requests) {
    static struct payer_scene p[2];
    int64_t took[2] = {0};
    struct scene s;

    setup(&s, p, 2);
    want(&p[0], MANY);
    want(&p[1], MANY);
    for (int i = 0; i < 3000; i++) {
        uint32_t who = p[0].flow.virtual_ns <= p[1].flow.virtual_ns ? 0 : 1;
        int64_t ns = who == 0 ? 10 * EACH_NS : EACH_NS;

        cr_assert_eq(one_turn(&s, ns), who);
        took[who] += ns;
    }
    cr_expect_lt(llabs(took[0] - took[1]), 20 * EACH_NS);
}

Test(turn, shares_are_by_weight) {
    static struct payer_scene p[2];
    struct scene s;

    setup(&s, p, 2);
    p[1].flow.weight = 3;
    want(&p[0], MANY);
    want(&p[1], 1);
    for (int i = 0; i < 1000; i++)
        one_turn(&s, EACH_NS);
    cr_expect(p[1].n >= 748 && p[1].n <= 752, "%u", p[1].n);
}

/* The wait is one turn also after long work of its own or of the other. */
Test(turn, who_comes_back_waits_for_one_turn) {
    static struct payer_scene p[2];
    struct scene s;

    setup(&s, p, 2);
    want(&p[0], MANY);
    for (int i = 0; i < 1000; i++) {
        uint32_t n = p[1].n;

        cr_assert_eq(one_turn(&s, EACH_NS), 0);
        want(&p[1], 1);
        struct turn *t = turn_next(&s.root);
        cr_assert(t == &p[1].conn[0]);
        turn_charge(&p[1].flow, EACH_NS);
        p[1].n = n + 1;
        cr_assert_eq(one_turn(&s, EACH_NS), 0);
    }
}

Test(turn, absence_earns_nothing) {
    static struct payer_scene p[2];
    struct scene s;

    setup(&s, p, 2);
    want(&p[0], 1);
    for (int i = 0; i < 1000; i++)
        one_turn(&s, EACH_NS);
    want(&p[1], MANY);
    p[0].n = p[1].n = 0;
    for (int i = 0; i < 100; i++)
        one_turn(&s, EACH_NS);
    cr_expect(p[0].n >= 49 && p[1].n >= 49, "%u and %u", p[0].n, p[1].n);
}

/* Many addresses without a key count as one among the tenants. */
Test(turn, a_group_shares_as_one) {
    static struct payer_scene p[4];
    struct turn_flow group;
    struct scene s;

    setup(&s, p, 4);
    turn_flow_init(&group, &s.root, true, 1);
    for (int i = 1; i < 4; i++)
        turn_flow_init(&p[i].flow, &group, false, 1);
    want(&p[0], 1);
    for (int i = 1; i < 4; i++)
        want(&p[i], i == 1 ? MANY : 1);
    for (int i = 0; i < 600; i++)
        one_turn(&s, EACH_NS);
    cr_expect(p[0].n >= 299 && p[0].n <= 301, "%u", p[0].n);
    for (int i = 1; i < 4; i++)
        cr_expect(p[i].n >= 99 && p[i].n <= 101, "%u", p[i].n);
}

Test(turn, who_is_gone_has_no_turn) {
    static struct payer_scene p[2];
    struct scene s;

    setup(&s, p, 2);
    want(&p[0], 2);
    want(&p[0], 2); /* asking twice counts once */
    want(&p[1], 1);
    turn_withdraw(&p[1].conn[0], &p[1].flow);
    turn_withdraw(&p[1].conn[0], &p[1].flow);
    turn_withdraw(&p[0].conn[0], &p[0].flow);
    cr_expect(turn_next(&s.root) == &p[0].conn[1]);
    cr_expect_null(turn_next(&s.root));
    cr_expect(list_empty(&s.root.ready));
}

/* ---- on a loop ---- */

struct answers {
    struct buf text;
    /* offset in text; the answers before it were counted */
    size_t at;
    uint32_t n;
};

/* Returns the number of answers that have arrived. Searches only new text, because a sanitizer's
 * strstr() reads all of it. */
static uint32_t answers(struct answers *a, int fd) {
    static char text[1 << 20];
    ssize_t got = recv(fd, text, sizeof(text), MSG_DONTWAIT);
    const char *next;

    if (got > 0)
        buf_add(&a->text, text, (size_t)got);
    while (a->at < a->text.len && (next = strstr(a->text.data + a->at, "HTTP/1.1 200"))) {
        a->at = (size_t)(next - a->text.data) + 1;
        a->n++;
    }
    return a->n;
}

/* The requests arrive in one read, and each costs much more than its bytes. */
Test(turn, pipelined_requests_are_one_turn_each) {
    static const char one[] = "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct answers got = {.text.max = 4 << 20};
    struct world w;
    uint32_t n = 0, turns = 0, before, most = 0;

    world_init(&w);
    world_start(&w);
    int fd = world_connect(&w);
    while (b.len + sizeof(one) < HTTP_READ_SIZE) {
        buf_add_str(&b, one);
        n++;
    }
    world_send(&w, fd, b.data, b.len);
    for (before = 0; before < n && turns < 100000; turns++) {
        world_turn(&w);
        uint32_t now = answers(&got, fd);
        most = MAX(most, now - before);
        before = now;
    }
    cr_expect_eq(before, n);
    cr_expect_lt(most, n / 4, "%u of %u at a time", most, n);
    world_drop(&w, fd);
    world_stop(&w);
    buf_deinit(&got.text);
}

/* 64 connections of one tenant send requests without a pause, beside one connection of another
 * tenant: each iteration serves it. */
/* A clock that advances by READING_NS at each reading, so that the duration of a turn does not
 * depend on other programs. */
#define READING_NS 10000

struct ticking {
    struct clock clock;
    int64_t ns;
};

static int64_t read_ticking(struct clock *c) {
    return CONTAINER_OF(c, struct ticking, clock)->ns += READING_NS;
}

Test(turn, a_tenant_with_many_connections_waits_with_its_own) {
    struct ticking ticking = {{read_ticking}, clock_now(clock_monotonic())};
    static const char many[] =
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n\r\n";
    static const char single[] =
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer kb\r\n\r\n";
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct answers got = {.text.max = 4 << 20};
    char path[64];
    struct world w;
    int fd[MANY], own;
    uint32_t n = 0;

    snprintf(path, sizeof(path), "/tmp/weft-test-turn-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("alice:ka\nbob:kb\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    w.api->http.opts.clock = &ticking.clock;
    unlink(path);
    for (int i = 0; i < 200; i++)
        buf_add_str(&b, many);
    for (int i = 0; i < MANY; i++) {
        fd[i] = world_connect(&w);
        /* the tenant of the connections is known from here on */
        world_send(&w, fd[i], many, sizeof(many) - 1);
        world_turns(&w, 3);
    }
    own = world_connect(&w);
    world_send(&w, own, single, sizeof(single) - 1);
    world_turns(&w, 3);
    for (int i = 0; i < MANY; i++)
        world_send(&w, fd[i], b.data, b.len);
    world_turns(&w, 5);
    cr_assert_neq(w.api->http.payers.turns.ready.next, &w.api->http.payers.turns.ready,
                  "they wait");
    for (int i = 0; i < 20; i++) {
        n = answers(&got, own);
        world_send(&w, own, single, sizeof(single) - 1);
        for (int k = 0; k < 3 && answers(&got, own) == n; k++)
            world_turn(&w);
        cr_assert_eq(answers(&got, own), n + 1, "after %d requests", i);
    }
    cr_expect(!list_empty(&w.api->http.payers.turns.ready), "they still wait");
    for (int i = 0; i < MANY; i++)
        world_drop(&w, fd[i]);
    world_drop(&w, own);
    world_stop(&w);
    buf_deinit(&got.text);
}

#define STRANGERS 200

/* Each connection of an address is a tenant's from its first request on. The address pays for that
 * turn too: else it would be chosen as long as any of its connections waits. */
Test(turn, an_address_pays_for_requests_with_a_key) {
    struct ticking ticking = {{read_ticking}, clock_now(clock_monotonic())};
    static const char keyed[] =
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n\r\n";
    static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct answers got = {.text.max = 4 << 20};
    char path[64];
    struct world w;
    int fd[STRANGERS];

    snprintf(path, sizeof(path), "/tmp/weft-test-turn-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("alice:ka\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.opts.max_connections = STRANGERS + 1;
    world_start(&w);
    w.api->http.opts.clock = &ticking.clock;
    unlink(path);
    int own = world_connect_unix(&w); /* another address */
    for (int i = 0; i < STRANGERS; i++) {
        fd[i] = world_connect(&w);
        world_turn(&w);
    }
    world_turns(&w, 20);
    cr_assert_eq(w.api->http.n_connections, STRANGERS + 1);
    for (int i = 0; i < STRANGERS; i++)
        cr_assert_eq(send(fd[i], keyed, sizeof(keyed) - 1, 0), sizeof(keyed) - 1);
    world_turn(&w);
    cr_assert_eq(send(own, health, sizeof(health) - 1, 0), sizeof(health) - 1);
    for (int k = 0; k < 3 && answers(&got, own) == 0; k++)
        world_turn(&w);
    cr_expect_eq(answers(&got, own), 1);
    cr_expect(!list_empty(&w.api->http.payers.strangers.turns.ready), "others still wait");
    for (int i = 0; i < STRANGERS; i++)
        close(fd[i]);
    world_drop(&w, own);
    world_stop(&w);
    buf_deinit(&got.text);
}

/* Counts the sockets that libuv is told to watch, and how often it would sleep while turns wait. */
static _Thread_local struct {
    /* NULL: nothing is counted */
    const struct http_server *server;
    uint64_t n_events;
    uint32_t n_sleeps;
} polls;

/* libuv calls these two, by its version. */
int epoll_pwait(int fd, struct epoll_event *e, int max, int timeout, const sigset_t *mask) {
    const struct http_server *s = polls.server;

    if (s && timeout != 0 && !list_empty((struct list *)&s->payers.turns.ready)) {
        polls.n_sleeps++;
        timeout = 0;
    }
    int n = (int)syscall(SYS_epoll_pwait, fd, e, max, timeout, mask, _NSIG / 8);
    if (s && n > 0)
        polls.n_events += (uint64_t)n;
    return n;
}

int epoll_wait(int fd, struct epoll_event *e, int max, int timeout) {
    return epoll_pwait(fd, e, max, timeout, NULL);
}

static void stop(uv_check_t *c) {
    uv_stop(c->loop);
}

/* Turns the loop as the daemon does until no connection is left: UV_RUN_ONCE would not sleep while
 * an idle handle is active. */
static void run_until_empty(struct world *w) {
    struct http_server *s = &w->api->http;
    uv_check_t check;

    uv_check_init(&w->loop, &check);
    uv_check_start(&check, stop);
    polls.server = s;
    while (s->n_connections > 0)
        uv_run(&w->loop, UV_RUN_DEFAULT);
    polls.server = NULL;
    uv_close((uv_handle_t *)&check, NULL);
    world_turn(w);
}

#define CLOSED_AT_ONCE 1000

/* An iteration serves some dozens; telling libuv of all others would cost the square of their
 * number. */
Test(turn, closing_many_at_once_takes_two_events_each) {
    struct ticking ticking = {{read_ticking}, clock_now(clock_monotonic())};
    struct rlimit files;
    struct world w;
    int fd[CLOSED_AT_ONCE];

    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    cr_assert_gt(files.rlim_cur, 2 * CLOSED_AT_ONCE + 100);
    world_init(&w);
    w.opts.max_connections = CLOSED_AT_ONCE;
    world_start(&w);
    struct http_server *s = &w.api->http;
    s->opts.clock = &ticking.clock;
    for (int i = 0; i < CLOSED_AT_ONCE; i++) {
        fd[i] = world_connect(&w);
        world_turn(&w);
    }
    while (s->n_connections < CLOSED_AT_ONCE)
        world_turn(&w);
    for (int i = 0; i < CLOSED_AT_ONCE; i++)
        close(fd[i]);
    run_until_empty(&w);
    cr_expect_gt(s->n_deferred, 2, "one iteration is too long for all of them");
    cr_expect_eq(polls.n_sleeps, 0);
    cr_expect_geq(polls.n_events, CLOSED_AT_ONCE);
    cr_expect_leq(polls.n_events, 3 * CLOSED_AT_ONCE, "%llu", (unsigned long long)polls.n_events);
    world_stop(&w);
}
