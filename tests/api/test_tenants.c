#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/limits/admit.h"
#include "api/limits/tenant.h"
#include "api/parts.h"
#include "base/clock.h"
#include "base/loop_bytes.h"
#include "base/rng.h"
#include "stream.h"

static struct world w;
static char keys_path[64];

/* A world with the keys alice:ka, bob:kb and carol:kc, and kr of an operator. */
static void start(const struct api_tenant *rows, uint32_t n) {
    snprintf(keys_path, sizeof(keys_path), "/tmp/weft-test-quota-%d", getpid());
    FILE *f = fopen(keys_path, "w");
    fputs("alice:ka\nbob:kb\ncarol:kc\nroot:kr operator\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = keys_path;
    world_start(&w);
    unlink(keys_path);
    cr_assert_eq(api_set_tenants(w.api, rows, n), 0);
}

static struct api_tenant_info info_of(const char *name) {
    static struct api_tenant_info t[64];
    uint32_t n = api_tenants(w.api, t, 64);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return t[i];
    return (struct api_tenant_info){0};
}

/* Asserts that no tenant holds anything. */
static void stop(void) {
    static struct api_tenant_info t[64];

    world_turns(&w, 4);
    uint32_t n = api_tenants(w.api, t, 64);
    for (uint32_t i = 0; i < n; i++) {
        cr_expect_eq(t[i].stats.n_running + t[i].stats.n_queued, 0, "%s", t[i].name);
        cr_expect_eq(t[i].stats.n_context, 0, "%s", t[i].name);
        cr_expect_eq(t[i].stats.n_reserved, 0, "%s", t[i].name);
    }
    world_stop(&w);
}

static int ask(const char *key, const char *more) {
    char body[300];
    int fd = world_connect(&w);

    snprintf(body, sizeof(body), R"({"prompt":"hello"%s})", more);
    world_say(&w, fd,
              "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              key, strlen(body), body);
    world_turns(&w, 3);
    return fd;
}

static int answer(int fd, struct reply *r) {
    world_receive(&w, fd, r);
    int status = r->status;
    reply_deinit(r);
    world_drop(&w, fd);
    return status;
}

/* Returns the number of requests that /slots shows as running to the client with @key. */
static int slots_of(const char *key) {
    struct reply r;
    int fd = world_connect(&w), n = 0;

    world_say(&w, fd, "GET /slots HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n",
              key);
    world_receive(&w, fd, &r);
    for (const char *at = r.body.data; (at = strstr(at, R"("id_task":)")); at++)
        n++;
    reply_deinit(&r);
    world_drop(&w, fd);
    return n;
}

static double header(const struct reply *r, const char *name) {
    char text[64];

    return *reply_header(r, name, text, sizeof(text)) ? atof(text) : -1;
}

Test(tenants, requests_per_minute_are_told_and_held) {
    struct api_tenant rows[] = {
        {.name = "alice", .weight = 1, .requests_per_minute = 3, .tokens_per_minute = 100000}};
    struct reply r;
    char text[64];

    start(rows, 1);
    w.port.script = "x";
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(answer(ask("ka", ""), &r), 200);
        cr_expect_eq(header(&r, "x-ratelimit-limit-requests"), 3);
        cr_expect_eq(header(&r, "x-ratelimit-remaining-requests"), 2 - i);
        cr_expect_eq(header(&r, "x-ratelimit-limit-tokens"), 100000);
    }
    cr_expect_eq(answer(ask("ka", ""), &r), 429);
    cr_expect(header(&r, "retry-after") >= 15 && header(&r, "retry-after") <= 20, "%s", r.head);
    cr_expect(header(&r, "retry-after-ms") > 15000 && header(&r, "retry-after-ms") <= 20000);
    reply_header(&r, "x-ratelimit-reset-requests", text, sizeof(text));
    cr_expect(strcmp(text, "1m0s") == 0 || strstr(text, "59."), "%s", text);
    cr_expect_eq(answer(ask("kb", ""), &r), 200, "others have their own minute");
    cr_expect_eq(header(&r, "x-ratelimit-limit-requests"), -1);
    cr_expect_eq(info_of("alice").stats.n_limited, 1);
    stop();
}

Test(tenants, slots_show_a_tenant_its_own_requests) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1}};
    struct reply r;

    start(rows, 1);
    int first = ask("ka", ""), second = ask("ka", ""), other = ask("kb", "");
    cr_expect_eq(slots_of("ka"), 2);
    cr_expect_eq(slots_of("kb"), 1);
    cr_expect_eq(slots_of("kc"), 0);
    cr_expect_eq(slots_of("kr"), 3, "an operator sees all");
    for (uint32_t i = 0; i < 3; i++) {
        fake_accept(&w.port, i);
        fake_finish(&w.port, i, FINISH_STOP);
    }
    cr_expect_eq(answer(first, &r), 200);
    cr_expect_eq(answer(second, &r), 200);
    cr_expect_eq(answer(other, &r), 200);
    stop();
}

Test(tenants, tokens_are_reserved_and_what_was_not_used_comes_back) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .tokens_per_minute = 200}};
    struct reply r;

    start(rows, 1);
    int first = ask("ka", R"(,"max_tokens":150)"); /* and 5 tokens of the prompt */
    cr_expect_eq(info_of("alice").stats.n_reserved, 155);
    cr_expect_eq(answer(ask("ka", R"(,"max_tokens":100)"), &r), 429);
    cr_expect_lt(header(&r, "x-ratelimit-remaining-tokens"), 60);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect_eq(answer(first, &r), 200);
    cr_expect_eq(info_of("alice").stats.n_reserved, 0);
    w.port.script = "x";
    cr_expect_eq(answer(ask("ka", R"(,"max_tokens":100)"), &r), 200);
    cr_expect(strstr(r.head, "x-ratelimit-reset-tokens: "), "%s", r.head);
    stop();
}

Test(tenants, a_request_larger_than_the_minute_is_served_when_it_is_full) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .tokens_per_minute = 50}};
    struct reply r;

    start(rows, 1);
    w.port.script = "x";
    cr_expect_eq(answer(ask("ka", R"(,"max_tokens":400)"), &r), 200);
    stop();
}

Test(tenants, one_that_waits_does_not_hold_up_others) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .max_running = 1, .max_queued = 1}};
    struct reply r;

    start(rows, 1);
    int a = ask("ka", ""), b = ask("ka", ""), c = ask("kb", "");
    cr_expect_eq(w.port.n, 2, "one of each is at the worker");
    cr_expect_eq(info_of("alice").stats.n_queued, 1);
    cr_expect_eq(answer(ask("ka", ""), &r), 429, "its queue is full");
    w.port.script = "x";
    cr_expect_eq(answer(c, &r), 200);
    cr_expect_eq(answer(a, &r), 200);
    cr_expect_eq(answer(b, &r), 200);
    stop();
}

static int embed(const char *input) {
    char body[300];
    int fd = world_connect(&w);

    snprintf(body, sizeof(body), R"({"input":%s})", input);
    world_say(&w, fd,
              "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              strlen(body), body);
    world_turns(&w, 3);
    return fd;
}

Test(tenants, embeddings_are_paid_for_by_their_tokens) {
    struct api_tenant rows[] = {
        {.name = "alice", .weight = 1, .tokens_per_minute = 50, .max_context = 10}};
    struct reply r;

    start(rows, 1);
    w.port.script = "";
    cr_expect_eq(answer(embed(R"(["hello","world","vwxyz"])"), &r), 200);
    cr_expect_eq(info_of("alice").stats.n_prompt_tokens, 15);
    cr_expect_eq(info_of("alice").stats.n_reserved, 0);
    cr_expect_eq(answer(embed(R"(["hello","hello world"])"), &r), 400);
    cr_expect_eq(answer(embed("[[1,2,3,4,5,6,7,8,9],[1,2,3,4,5,6,7,8,9],[1,2,3,4,5,6,7,8,9],"
                              "[1,2,3,4,5,6,7,8,9],[1,2,3,4,5,6,7,8,9]]"),
                        &r),
                 429);
    stop();
}

Test(tenants, context_at_the_worker_is_limited) {
    struct api_tenant rows[] = {
        {.name = "alice", .weight = 1, .kv_tokens = 100, .max_context = 200}};
    struct reply r;

    start(rows, 1);
    int a = ask("ka", R"(,"max_tokens":60)"), b = ask("ka", R"(,"max_tokens":60)");
    cr_expect_eq(w.port.n, 1);
    cr_expect_eq(info_of("alice").stats.n_context, 65);
    w.port.script = "x";
    cr_expect_eq(answer(a, &r), 200);
    cr_expect_eq(answer(b, &r), 200);
    int c = ask("ka", R"(,"max_tokens":1000)");
    cr_expect_eq(w.port.r[2].m.max_new, 195, "%u", w.port.r[2].m.max_new);
    cr_expect_eq(answer(c, &r), 200);
    stop();
}

Test(tenants, places_go_to_who_has_the_fewest) {
    int fd[8], late[4];
    struct reply r;

    start(NULL, 0);
    w.opts.max_running = 8;
    for (int i = 0; i < 8; i++)
        fd[i] = ask("ka", "");
    for (int i = 0; i < 4; i++)
        late[i] = ask(i < 2 ? "ka" : "kb", "");
    cr_expect_eq(w.port.n, 10, "%u: bob has less than his part and finds a place", w.port.n);
    cr_expect_eq(info_of("bob").stats.n_running, 2);
    cr_expect_eq(info_of("alice").stats.n_queued, 2);
    w.port.script = "x";
    for (int i = 0; i < 8; i++)
        cr_expect_eq(answer(fd[i], &r), 200);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(answer(late[i], &r), 200);
    stop();
}

Test(tenants, a_full_queue_drops_the_flood) {
    int fd[20];
    struct reply r;

    start(NULL, 0);
    for (int i = 0; i < 12; i++) /* 8 run, 4 wait: the queue is full */
        fd[i] = ask("ka", "");
    cr_expect_eq(answer(ask("ka", ""), &r), 429);
    for (int i = 0; i < 4; i++) /* two places of the overflow, then two of the queue */
        fd[12 + i] = ask("kb", "");
    cr_expect_eq(info_of("bob").stats.n_running, 2);
    cr_expect_eq(info_of("bob").stats.n_queued, 2);
    cr_expect_eq(info_of("alice").stats.n_queued, 2);
    cr_expect_eq(answer(fd[11], &r), 429, "the flood's last one went");
    cr_expect_gt(header(&r, "retry-after-ms"), 0);
    cr_expect_eq(answer(fd[10], &r), 429);
    cr_expect_eq(answer(ask("kb", ""), &r), 429, "equals do not push each other out");
    w.port.script = "x";
    for (int i = 0; i < 16; i++)
        if (i != 10 && i != 11)
            cr_expect_eq(answer(fd[i], &r), 200, "%d", i);
    stop();
}

Test(tenants, what_cannot_be_taken_is_refused_unread) {
    int fd[12];
    struct reply r;

    start(NULL, 0);
    for (int i = 0; i < 12; i++)
        fd[i] = ask("ka", "");
    cr_expect_eq(answer(ask("ka", R"(,"temperature":"warm")"), &r), 429);
    cr_expect_gt(header(&r, "retry-after-ms"), 0);
    cr_expect_eq(info_of("alice").stats.n_limited, 1);
    cr_expect_eq(info_of("alice").stats.n_requests, 12);
    cr_expect_eq(answer(ask("kb", R"(,"temperature":"warm")"), &r), 400, "bob's would be taken");
    cr_expect_eq(info_of("bob").stats.n_limited, 0);
    w.port.script = "x";
    for (int i = 0; i < 12; i++)
        cr_expect_eq(answer(fd[i], &r), 200, "%d", i);
    stop();
}

Test(tenants, those_sent_away_are_told_to_come_one_after_the_other) {
    int fd[12];
    struct reply r;
    double first = 0, last = 0;

    start(NULL, 0);
    for (int i = 0; i < 12; i++)
        fd[i] = ask("ka", "");
    /* 8 requests run, each expected to take a second: 125 ms for each place */
    for (int i = 0; i < 100; i++) {
        cr_expect_eq(answer(ask("ka", ""), &r), 429);
        last = header(&r, "retry-after-ms");
        first = i == 0 ? last : first;
    }
    cr_expect(first >= 500 && first <= 1.25 * 5 * 125, "%f", first);
    cr_expect(last > 2 * first && last <= 60000, "%f, then %f", first, last);
    w.port.script = "x";
    for (int i = 0; i < 12; i++)
        cr_expect_eq(answer(fd[i], &r), 200, "%d", i);
    stop();
}

Test(tenants, one_that_waits_for_its_own_place_is_told_how_long_that_takes) {
    const struct api_tenant row = {
        .name = "alice", .weight = 1, .max_running = 1, .max_queued = 1, .n_keys = 1};
    int fd[2];
    struct reply r;

    start(&row, 1);
    for (int i = 0; i < 2; i++)
        fd[i] = ask("ka", "");
    cr_expect_eq(answer(ask("ka", ""), &r), 429); /* two generations of a second are before it */
    cr_expect(header(&r, "retry-after-ms") >= 2000, "%s", r.head);
    w.port.script = "x";
    for (int i = 0; i < 2; i++)
        cr_expect_eq(answer(fd[i], &r), 200, "%d", i);
    stop();
}

static bool needs_no_retry(void *ctx) {
    return false;
}

static void ignore(struct waiter *waiter) {}

Test(tenants, long_generations_are_noticed_before_one_has_ended) {
    struct clock_virtual clock;
    struct rng rng = {1};
    uv_loop_t loop;
    struct admit m;
    struct tenant t = {.conf = {.weight = 1}};
    struct waiter runs = {.tenant = &t, .n = 1, .admitted = ignore}, more = runs;
    struct err err;
    uint32_t retry_ms;

    clock_virtual_init(&clock, 1);
    uv_loop_init(&loop);
    list_init(&t.waiting);
    list_init(&t.link);
    admit_init(&m, &(struct admit_opts){.loop = &loop,
                                        .clock = &clock.clock,
                                        .rng = &rng,
                                        .max_running = 1,
                                        .retry = needs_no_retry});
    cr_assert_eq(admit_enter(&m, &runs, &retry_ms, &err), 0);
    t.stats.n_running = 1;
    cr_expect_lt(admit_enter(&m, &more, &retry_ms, &err), 0);
    cr_expect(retry_ms >= 1000 && retry_ms <= 1250, "a second is assumed: %u", retry_ms);
    clock.ns += 20000000000;
    cr_expect_lt(admit_enter(&m, &more, &retry_ms, &err), 0);
    cr_expect(retry_ms >= 20000 && retry_ms <= 25000, "%u", retry_ms);
    cr_expect_float_eq(admit_wait_ms(&m, &t, 0), 20000, 1);
    clock.ns += 2000000000000;
    cr_expect_lt(admit_enter(&m, &more, &retry_ms, &err), 0);
    cr_expect(retry_ms >= 48000 && retry_ms <= 60000, "%u", retry_ms);
    t.stats.n_running = 0;
    admit_release(&m, &t, 1);
    cr_expect_lt(admit_wait_ms(&m, &t, 0), 1001);
    admit_close(&m);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}

/* Each generation that ends moves the mean by a tenth, and each place that becomes free while
 * others wait moves the time between two of them by a twentieth. */
Test(tenants, the_wait_follows_what_was_measured) {
    struct clock_virtual clock;
    struct rng rng = {1};
    uv_loop_t loop;
    struct admit m;
    struct tenant t = {.conf = {.weight = 1}, .stats = {.n_running = 2}};

    clock_virtual_init(&clock, 1);
    uv_loop_init(&loop);
    list_init(&t.waiting);
    list_init(&t.link);
    admit_init(&m, &(struct admit_opts){.loop = &loop,
                                        .clock = &clock.clock,
                                        .rng = &rng,
                                        .max_running = 4,
                                        .retry = needs_no_retry});
    m.n_running = 4;
    m.changed_ns = clock.ns;
    cr_expect_float_eq(admit_wait_ms(&m, &t, 0), 500, 1e-6);
    cr_expect_float_eq(admit_wait_ms(&m, &t, 2), 1500, 1e-6);
    admit_took(&m, 2000000000);
    cr_expect_float_eq(admit_wait_ms(&m, &t, 0), 550, 1e-6);
    admit_took(&m, 2000000000);
    cr_expect_float_eq(admit_wait_ms(&m, &t, 0), 595, 1e-6);
    m.n_queued = 1;
    admit_release(&m, &t, 1);
    cr_expect_float_eq(m.each_ms, 297.5, 1e-6);
    clock.ns += 1000000000;
    admit_release(&m, &t, 2);
    cr_expect_float_eq(m.each_ms, 317.75, 1e-6);
    cr_expect_eq(m.n_running, 1);
    m.n_queued = 0;
    admit_release(&m, &t, 1);
    clock.ns += 9000000000;
    admit_release(&m, &t, 0);
    cr_expect_float_eq(m.each_ms, 317.75 + 0.05 * (0 - 317.75), 1e-6, "none waited since");
    admit_close(&m);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}

Test(tenants, weights_and_classes_reach_the_worker) {
    struct api_tenant rows[] = {{.name = "team", .weight = 2.5, .class = 2, .n_keys = 1},
                                {.name = "bob", .weight = 1, .share = "g"},
                                {.name = "carol", .weight = 1, .share = "g"}};
    struct reply r;

    strcpy(rows[0].keys[0], "alice");
    start(rows, 3);
    w.port.script = "x";
    cr_expect_eq(answer(ask("ka", ""), &r), 200);
    cr_expect_eq(answer(ask("kb", ""), &r), 200);
    cr_expect_eq(answer(ask("kc", ""), &r), 200);
    cr_expect_eq(w.port.r[0].m.weight_milli, 2500);
    cr_expect_eq(w.port.r[0].m.class, 2);
    cr_expect_eq(info_of("team").stats.n_requests, 1);
    cr_expect_eq(memcmp(w.port.r[1].m.isolation_key, w.port.r[2].m.isolation_key, 16), 0);
    cr_expect_neq(memcmp(w.port.r[0].m.isolation_key, w.port.r[1].m.isolation_key, 16), 0);
    cr_expect_neq(w.port.r[1].m.tenant, w.port.r[2].m.tenant);
    stop();
}

Test(tenants, a_listed_user_of_a_socket_needs_no_key) {
    struct api_tenant rows[] = {{.name = "local", .weight = 1, .n_uids = 1}};
    struct reply r;

    rows[0].uids[0] = getuid();
    start(rows, 1);
    w.port.script = "x";
    int fd = world_connect_unix(&w);
    world_post(&w, fd, TEXT, R"({"prompt":"hello"})");
    cr_expect_eq(answer(fd, &r), 200);
    cr_expect_eq(info_of("local").stats.n_requests, 1);
    fd = world_connect(&w);
    world_post(&w, fd, TEXT, R"({"prompt":"hello"})");
    cr_expect_eq(answer(fd, &r), 401);
    cr_expect_eq(api_set_tenants(w.api, NULL, 0), 0);
    fd = world_connect_unix(&w);
    world_post(&w, fd, TEXT, R"({"prompt":"hello"})");
    cr_expect_eq(answer(fd, &r), 401, "no longer");
    stop();
}

Test(tenants, a_reload_gives_nobody_a_new_minute) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .requests_per_minute = 2}};
    struct reply r;

    start(rows, 1);
    w.port.script = "x";
    cr_expect_eq(answer(ask("ka", ""), &r), 200);
    cr_expect_eq(answer(ask("ka", ""), &r), 200);
    rows[0].weight = 3;
    cr_expect_eq(api_set_tenants(w.api, rows, 1), 0);
    cr_expect_eq(answer(ask("ka", ""), &r), 429);
    cr_expect_eq(api_set_tenants(w.api, NULL, 0), 0);
    cr_expect_eq(answer(ask("ka", ""), &r), 200, "no limit any more");
    stop();
}

Test(tenants, a_reload_admits_those_that_waited) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .max_running = 1}};
    struct reply r;

    start(rows, 1);
    int a = ask("ka", ""), b = ask("ka", "");
    cr_expect_eq(w.port.n, 1);
    rows[0].max_running = 2;
    cr_expect_eq(api_set_tenants(w.api, rows, 1), 0);
    cr_expect_eq(w.port.n, 2);
    w.port.script = "x";
    cr_expect_eq(answer(a, &r), 200);
    cr_expect_eq(answer(b, &r), 200);
    stop();
}

/* However generations end, their charges are returned; stop() checks this. */
Test(tenants, charges_never_leak) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .max_running = 3, .kv_tokens = 300},
                                {.name = "bob", .weight = 2, .tokens_per_minute = 1000000}};
    static const char *const keys[] = {"ka", "kb", "kc"};
    struct rng rng = {9};
    int fd[24];
    uint32_t n = 0;

    start(rows, 2);
    for (int i = 0; i < 300; i++) {
        if (n < 24 && rng_below(&rng, 2)) {
            fd[n++] = ask(keys[rng_below(&rng, 3)],
                          rng_below(&rng, 2) ? R"(,"n":3,"max_tokens":30)" : R"(,"stream":true)");
        } else if (n > 0 && rng_below(&rng, 2)) {
            uint32_t k = rng_below(&rng, n);

            world_drop(&w, fd[k]);
            fd[k] = fd[--n];
        }
        if (w.port.n > 0 && w.port.n + 8 < FAKE_MAX) {
            uint32_t k = rng_below(&rng, w.port.n);

            if (!w.port.r[k].finished && !w.port.r[k].cancelled) {
                if (!w.port.r[k].accepted)
                    fake_accept(&w.port, k);
                else if (rng_below(&rng, 3))
                    fake_tokens(&w.port, k, "ab");
                else if (rng_below(&rng, 3))
                    fake_finish(&w.port, k, FINISH_STOP);
                else
                    fake_fail(&w.port, k, 500, "broken");
            }
        }
        if (w.port.n + 8 >= FAKE_MAX)
            break;
        world_turn(&w);
    }
    while (n > 0)
        world_drop(&w, fd[--n]);
    stop();
}

static atomic_int n_decoded;
static atomic_bool reloaded;

static int decode(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                  struct picture *out, struct picture_layout *layout, struct err *err) {
    n_decoded++;
    while (!reloaded)
        usleep(1000);
    return picture_decode_fit(data, len, fit, out, layout, err);
}

#define PART                                                                                       \
    R"({"type":"image_url","image_url":{"url":"data:image/png;base64,)"                            \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJ"  \
    R"(ggg=="}})"

/* Sends one picture twice on the pool: it belongs to the same tenant when a reload changes the
 * tenant in between. */
Test(tenants, a_reload_is_not_seen_by_a_request_on_the_pool) {
    struct api_tenant row = {.name = "default", .weight = 1, .share = "group"};
    struct reply r;

    world_init(&w);
    world_see(&w);
    w.model.max_context = 4096;
    w.opts.decode = decode;
    w.port.script = "ok";
    world_start(&w);
    n_decoded = 0;
    reloaded = false;
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, R"({"messages":[{"role":"user","content":[)" PART "," PART "]}]}");
    while (n_decoded == 0)
        world_turn(&w);
    cr_assert_eq(api_set_tenants(w.api, &row, 1), 0);
    reloaded = true;
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(n_decoded, 1, "it is known");
    reply_deinit(&r);
    world_drop(&w, fd);
    stop();
}

/* The way to the worker is full: what waits goes in the order of the tenants' shares when there is
 * room, a new request overtakes none of it, and a client that leaves is not submitted. */
Test(tenants, submits_wait_in_the_order_of_shares) {
    static const char keys[] = "one:sk-one\ntwo:sk-two\n";
    static const struct {
        const char *key;
        int max_tokens;
    } asks[] = {{"sk-one", 1}, {"sk-one", 2}, {"sk-one", 3}, {"sk-one", 4}, {"sk-two", 5}};
    static const uint32_t order[] = {1, 5, 2, 4, 6};
    char path[] = "/tmp/weft-keys-XXXXXX";
    int file = mkstemp(path), fd[ARRAY_SIZE(asks) + 1];
    struct world w;

    cr_assert_eq(write(file, keys, sizeof(keys) - 1), (ssize_t)sizeof(keys) - 1);
    close(file);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    w.port.n_again = 1000;
    for (size_t i = 0; i <= ARRAY_SIZE(asks); i++) {
        bool last = i == ARRAY_SIZE(asks);
        char body[100];
        int len = snprintf(body, sizeof(body), R"({"prompt":"a","max_tokens":%d})",
                           last ? 6 : asks[i].max_tokens);

        if (last) { /* there is room from here on, which the port has not reported yet */
            world_drop(&w, fd[2]);
            world_turns(&w, 2);
            w.port.n_again = 0;
        }
        fd[i] = world_connect(&w);
        world_say(&w, fd[i],
                  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                  "Content-Length: %d\r\n\r\n%s",
                  last ? "sk-one" : asks[i].key, len, body);
        world_turns(&w, 4);
        cr_assert_eq(w.port.n, last ? w.port.n : 0);
    }
    api_worker_room(api_first_model(w.api));
    cr_assert_eq(w.port.n, ARRAY_SIZE(order));
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        cr_expect_eq(w.port.r[i].m.max_new, order[i], "%zu: %u", i, w.port.r[i].m.max_new);
    for (size_t i = 0; i <= ARRAY_SIZE(asks); i++)
        if (i != 2)
            world_drop(&w, fd[i]);
    world_turns(&w, 4);
    world_stop(&w);
    unlink(path);
}

/* Clients that send requests and leave at once cost no step of the worker, although their
 * connections wait for the turns in which they read that: with room, and where they waited for
 * room. */
Test(tenants, a_request_whose_client_has_left_is_not_submitted) {
    static const char leaves[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                 "Content-Length: 29\r\n\r\n"
                                 R"({"prompt":"a","max_tokens":7})";
    struct world w;

    world_init(&w);
    world_start(&w);
    for (int i = 0; i < 2; i++) {
        bool waits = i == 1;
        uint32_t n = w.port.n;
        int fd = world_connect(&w), stays = world_connect(&w);

        w.port.n_again = waits ? 1000 : 0;
        world_post(&w, stays, "/v1/completions", R"({"prompt":"a","max_tokens":8})");
        cr_assert_eq(send(fd, leaves, sizeof(leaves) - 1, 0), (ssize_t)sizeof(leaves) - 1);
        if (waits)
            world_turns(&w, 4);
        cr_assert_eq(close(fd), 0);
        if (waits) {
            w.port.n_again = 0;
            api_worker_room(api_first_model(w.api));
        }
        world_turns(&w, 4);
        cr_assert_eq(w.port.n, n + 1, "%d: %u", i, w.port.n);
        cr_expect_eq(w.port.r[n].m.max_new, 8, "%d: %u", i, w.port.r[n].m.max_new);
        world_drop(&w, stays);
        world_turns(&w, 4);
    }
    world_stop(&w);
}

/* Sends a prompt of @n bytes with @key on a connection of its own. */
static int ask_long(struct world *w, const char *key, uint32_t n, int max_tokens) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20}, all = {.max = 1 << 20};
    int fd = world_connect(w);

    cr_assert_eq(buf_add_str(&body, R"({"prompt":")"), 0);
    while (n-- > 0)
        cr_assert_eq(buf_add_char(&body, 'a'), 0);
    cr_assert_eq(buf_printf(&body, R"(","max_tokens":%d})", max_tokens), 0);
    cr_assert_eq(buf_printf(&all,
                            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                            "Authorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n%s",
                            key, body.len, body.data),
                 0);
    cr_assert_eq(send(fd, all.data, all.len, 0), (ssize_t)all.len);
    world_turns(w, 40); /* the body is read; then the prompt is made on the pool */
    for (uint64_t end = world_limit(); jobs_n(w->api->env.pool.jobs) > 0 && uv_hrtime() < end;)
        world_turn(w);
    world_turns(w, 4);
    return fd;
}

/* While a large request is sent in parts, another tenant's small one overtakes it, and large ones
 * wait; if its client leaves, the worker is told, and the next one begins. */
Test(tenants, a_large_request_is_sent_in_parts) {
    static const char keys[] = "one:sk-one\ntwo:sk-two\n";
    char path[] = "/tmp/weft-keys-XXXXXX";
    int file = mkstemp(path);
    struct world w;

    cr_assert_eq(write(file, keys, sizeof(keys) - 1), (ssize_t)sizeof(keys) - 1);
    close(file);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.model.max_context = 40000;
    w.port.part = 30000;
    w.port.n_parts = 4;
    world_start(&w);
    struct model *m = api_first_model(w.api);
    int whole = ask_long(&w, "sk-one", 20000, 7);
    cr_assert_eq(w.port.n, 1);
    cr_expect(w.port.r[0].m.n_tokens == 20000 && !m->half);
    cr_assert_eq(w.port.n_parts, 1);
    int leaves = ask_long(&w, "sk-one", 20000, 8);
    cr_assert(m->half && m->half->sent == 30000);
    int waits = ask_long(&w, "sk-two", 20000, 9), small = ask_long(&w, "sk-two", 20, 10);
    for (uint64_t end = world_limit(); w.port.n < 2 && uv_hrtime() < end;)
        world_turn(&w); /* a timer offers it again */
    cr_assert_eq(w.port.n, 2);
    cr_expect_eq(w.port.r[1].m.max_new, 10);
    w.port.n_parts = 1;
    api_worker_room(m);
    cr_assert(w.port.n == 2 && m->half && m->half->sent == 60000);
    world_drop(&w, leaves);
    world_turns(&w, 4);
    cr_expect_eq(w.port.n_cancels, 1);
    cr_expect(!m->half);
    w.port.n_parts = 100;
    api_worker_room(m);
    cr_assert_eq(w.port.n, 3);
    cr_expect_eq(w.port.r[2].m.max_new, 9);
    cr_expect(!m->half);
    world_drop(&w, whole);
    world_drop(&w, waits);
    world_drop(&w, small);
    world_turns(&w, 4);
    world_stop(&w);
    unlink(path);
}

/* A worker that dies between the parts of a request knows none of them: the next one gets the whole
 * request, and nothing is cancelled there. */
Test(tenants, parts_begin_anew_when_the_worker_dies) {
    struct world w;

    world_init(&w);
    w.model.max_context = 40000;
    w.port.part = 30000;
    w.port.n_parts = 1;
    world_start(&w);
    struct model *m = api_first_model(w.api);
    int large = ask_long(&w, "any", 20000, 7);
    cr_assert(m->half && m->half->sent == 30000);
    api_worker_down(m);
    cr_expect(!m->half);
    int small = ask_long(&w, "any", 20, 8);
    cr_expect_eq(w.port.n, 0);
    w.port.n_parts = 1;
    api_worker_up(m, NULL);
    cr_assert(m->half && m->half->sent == 30000, "it begins with the first part");
    cr_assert_eq(w.port.n, 0);
    w.port.n_parts = 100;
    api_worker_room(m);
    cr_assert_eq(w.port.n, 2);
    cr_expect(w.port.r[0].m.max_new == 7 && w.port.r[0].m.n_tokens == 20000 && !m->half);
    cr_expect_eq(w.port.r[0].n_submits, 1);
    cr_expect_eq(w.port.r[1].m.max_new, 8);
    cr_expect_eq(w.port.n_cancels, 0);
    world_drop(&w, large);
    world_drop(&w, small);
    world_turns(&w, 4);
    world_stop(&w);
}

static size_t n_items;

static void count_items(size_t bytes, size_t items) {
    n_items += items;
}

static void run(struct waiter *waiter) {
    waiter->tenant->stats.n_running++;
}

Test(tenants, a_free_place_visits_each_tenant_a_few_times) {
    enum { N = 200 };
    static struct tenant ts[N];
    static struct waiter runs[N], waits[N];
    struct clock_virtual clock;
    struct rng rng = {1};
    uv_loop_t loop;
    struct admit m;
    struct err err;
    uint32_t retry_ms;

    clock_virtual_init(&clock, 1);
    uv_loop_init(&loop);
    admit_init(&m, &(struct admit_opts){.loop = &loop,
                                        .clock = &clock.clock,
                                        .rng = &rng,
                                        .max_running = N,
                                        .max_queued = N,
                                        .retry = needs_no_retry});
    for (int i = 0; i < N; i++) {
        ts[i].conf.weight = 1;
        list_init(&ts[i].waiting);
        list_init(&ts[i].link);
        runs[i] = waits[i] = (struct waiter){.tenant = &ts[i], .n = 1, .admitted = run};
        cr_assert_eq(admit_enter(&m, &runs[i], &retry_ms, &err), 0);
    }
    for (int i = 0; i < N; i++)
        cr_assert_eq(admit_enter(&m, &waits[i], &retry_ms, &err), 0);
    cr_assert_eq(m.n_queued, N);
    n_items = 0;
    loop_watch = count_items;
    ts[7].stats.n_running--;
    admit_release(&m, &ts[7], 1);
    loop_watch = NULL;
    cr_expect_eq(m.n_queued, N - 1);
    cr_expect_eq(ts[7].stats.n_running, 1);
    cr_expect_lt(n_items, 6 * (size_t)N, "%zu", n_items);
    for (int i = 0; i < N; i++)
        admit_cancel(&m, &waits[i]);
    admit_close(&m);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}

/* A clock whose every reading takes half a millisecond. */
static int64_t slow_now(struct clock *c) {
    struct clock_virtual *v = CONTAINER_OF(c, struct clock_virtual, clock);

    return v->ns += 500000;
}

static uint32_t n_expired;

static void count_expired(struct waiter *waiter) {
    n_expired++;
}

Test(tenants, late_waiters_are_found_in_one_pass_and_told_for_a_while) {
    enum { N = 4096 };
    static struct waiter waits[N];
    static struct tenant t;
    struct waiter runs = {.tenant = &t, .n = 1, .admitted = ignore};
    struct clock_virtual clock;
    struct rng rng = {1};
    uv_loop_t loop;
    struct admit m;
    struct err err;
    uint32_t retry_ms, n_most = 0, n_last = 0;

    clock_virtual_init(&clock, 1);
    uv_loop_init(&loop);
    t.conf.weight = 1;
    list_init(&t.waiting);
    list_init(&t.link);
    admit_init(&m, &(struct admit_opts){.loop = &loop,
                                        .clock = &clock.clock,
                                        .rng = &rng,
                                        .max_running = 1,
                                        .max_queued = N,
                                        .retry = needs_no_retry});
    cr_assert_eq(admit_enter(&m, &runs, &retry_ms, &err), 0);
    t.stats.n_running = 1;
    for (int i = 0; i < N; i++) {
        waits[i] = (struct waiter){.tenant = &t,
                                   .n = 1,
                                   .deadline_ns = i % 64 ? INT64_MAX : 1000000000,
                                   .admitted = ignore,
                                   .expired = count_expired};
        cr_assert_eq(admit_enter(&m, &waits[i], &retry_ms, &err), 0);
    }
    loop_watch = count_items;
    n_items = 0;
    uv_run(&loop, UV_RUN_ONCE);
    cr_expect(n_items == 0 && n_expired == 0, "no deadline has come: %zu", n_items);
    clock.ns = 2000000000;
    clock.clock.now_ns = slow_now;
    for (int i = 0; i < N && n_expired < N / 64; i++, n_last = n_expired) {
        uv_run(&loop, UV_RUN_ONCE);
        n_most = MAX(n_most, n_expired - n_last);
    }
    loop_watch = NULL;
    cr_expect_eq(n_expired, N / 64);
    cr_expect_eq(m.n_queued, N - N / 64);
    cr_expect_leq(n_most, 4, "%u in an iteration", n_most);
    cr_expect_lt(n_items, N + 100, "%zu", n_items);
    for (int i = 0; i < N; i++)
        admit_cancel(&m, &waits[i]);
    admit_close(&m);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}

Test(tenants, a_reload_visits_each_tenant_once) {
    static struct api_tenant rows[API_TENANTS_MAX];
    struct payers payers;
    struct tenants ts;
    char name[16];

    cr_assert_eq(payers_init(&payers, false), 0);
    cr_assert_eq(tenants_init(&ts, &payers), 0);
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        cr_assert(tenants_named(&ts, name));
    }
    for (uint32_t i = 0; i < API_TENANTS_MAX; i++) {
        rows[i] = (struct api_tenant){.weight = 2, .n_keys = 1, .n_uids = 1, .uids = {i}};
        snprintf(rows[i].name, sizeof(rows[i].name), "t%u", i);
        snprintf(rows[i].keys[0], sizeof(rows[i].keys[0]), "k%u", i);
    }
    for (int i = 0; i < 2; i++) {
        n_items = 0;
        loop_watch = count_items;
        cr_assert_eq(tenants_set(&ts, rows, API_TENANTS_MAX), 0);
        loop_watch = NULL;
        cr_expect(n_items >= 3000 && n_items < 2 * 3000 + 4 * API_TENANTS_MAX, "%zu", n_items);
    }
    cr_expect_eq(tenants_find(&ts, "t7")->conf.weight, 2);
    cr_expect_eq(tenants_find(&ts, "t2000")->conf.weight, 1);
    cr_expect_eq(tenants_set(&ts, rows, 1), 0);
    cr_expect_eq(tenants_find(&ts, "t7")->conf.weight, 1, "its row is gone");
    strcpy(rows[1].name, "default");
    rows[1].weight = 3;
    cr_expect_eq(tenants_set(&ts, rows, 2), 0);
    cr_expect_eq(tenants_find(&ts, "t0")->conf.weight, 2);
    cr_expect_eq(tenants_find(&ts, "t2000")->conf.weight, 3);
    tenants_deinit(&ts);
    payers_deinit(&payers);
}

/* A key sees its own use, and the operator all. */
Test(tenants, what_keys_have_used_is_told) {
    static const char own[] = R"("model":"tiny","requests":2,"prompt_tokens":10,)"
                              R"("cached_tokens":4,"output_tokens":4})";
    static const char *const keys[] = {"ka", "kb"};
    struct api_tenant rows[] = {{.name = "alice", .weight = 1, .tokens_per_day = 1000}};
    CLEANUP(buf_deinit) struct buf all = {.max = 1 << 20};
    struct reply r;

    start(rows, 1);
    w.port.script = "Hi";
    for (int i = 0; i < 2; i++)
        cr_assert_eq(answer(ask("ka", ""), &r), 200);
    for (int i = 0; i < 2; i++) {
        int fd = world_connect(&w);

        world_say(&w, fd,
                  "GET /v1/usage HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n",
                  keys[i]);
        world_receive(&w, fd, &r);
        cr_expect(strstr(r.body.data, i ? R"({"object":"usage","tenant":"bob","key":"bob",)"
                                        : R"({"object":"usage","tenant":"alice","key":"alice",)"),
                  "%s", r.body.data);
        cr_expect_eq(strstr(r.body.data, own) == NULL, i, "%s", r.body.data);
        cr_expect_eq(strstr(r.body.data, R"("limit":1000,"used":14,"resets_at":"20)") == NULL, i,
                     "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    cr_assert_eq(api_usage(w.api, &all), 0);
    cr_expect(strstr(all.data, R"("tenant":"alice","key":"alice","model":"tiny","requests":2,)"),
              "%s", all.data);
    cr_expect(strstr(all.data, R"({"limits":[{"tenant":"alice","name":)"), "%s", all.data);
    stop();
}

Test(tenants, device_time_is_that_of_who_used_it) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 1}};
    struct reply r;

    start(rows, 1);
    w.port.script = "Hi";
    cr_assert_eq(answer(ask("ka", ""), &r), 200);
    const uint64_t before = info_of("alice").stats.device_ns;
    const struct msg_served served[] = {{.tenant = w.port.r[0].m.tenant, .ns = 7000},
                                        {.tenant = w.port.r[0].m.tenant, .ns = 500},
                                        {.tenant = 0, .ns = 30}};
    const struct api_tenant_info none = info_of("default");
    api_on_served(api_first_model(w.api), served, ARRAY_SIZE(served));
    cr_expect_eq(info_of("alice").stats.device_ns, before + 7500);
    cr_expect_eq(info_of("default").stats.device_ns, none.stats.device_ns + 30);
    stop();
}

/* The operator sees what has ended, of one tenant or of all, and why others wait. */
Test(tenants, ended_and_waiting_requests_are_shown_to_the_operator) {
    struct api_tenant rows[] = {{.name = "alice", .weight = 2}, {.name = "bob", .weight = 3}};
    struct api_ended_filter f = {.oldest_s = 3600};
    struct api_ended_info ended[3];
    struct api_tenant_info first;
    struct reply r;
    char why[200];

    start(rows, 2);
    w.port.script = "Hi";
    cr_assert_eq(answer(ask("ka", ""), &r), 200);
    cr_assert_eq(answer(ask("kb", R"(,"max_tokens":1)"), &r), 200);
    cr_expect_eq(api_ended(w.api, &f, ended, 3), 2);
    cr_expect_str_eq(ended[0].tenant, "bob");
    cr_expect_str_eq(ended[1].tenant, "alice");
    cr_expect_str_eq(ended[1].endpoint, TEXT);
    cr_expect(ended[1].status == 200 && ended[1].n_prompt == 5 && ended[1].n_cached == 2 &&
              ended[1].n_output == 2);
    cr_expect(ended[0].n_output == 1 && strcmp(ended[0].finish, "length") == 0);
    cr_expect_eq(api_ended(w.api, &f, ended, 1), 1);
    strcpy(f.tenant, "alice");
    cr_expect_eq(api_ended(w.api, &f, ended, 3), 1);
    cr_expect_str_eq(ended[0].tenant, "alice");
    strcpy(f.tenant, "dave");
    cr_expect_eq(api_ended(w.api, &f, ended, 3), -ENOENT);
    w.port.script = NULL;
    int fd = ask("ka", "");
    cr_assert(api_wait_text(w.api, w.port.r[2].id, why, sizeof(why)));
    cr_expect_gt(strlen(why), 0);
    fake_accept(&w.port, 2);
    fake_tokens(&w.port, 2, "x");
    cr_expect_not(api_wait_text(w.api, w.port.r[2].id, why, sizeof(why)), "it has a token");
    cr_expect_not(api_wait_text(w.api, 999, why, sizeof(why)));
    fake_finish(&w.port, 2, FINISH_STOP);
    answer(fd, &r);
    cr_expect_eq(api_tenants(w.api, &first, 1), 1);
    cr_expect_eq(info_of("bob").weight, 3);
    stop();
}

/* Anthropic's names of the limits, with the time at which they are whole again. */
Test(tenants, limits_are_told_as_anthropic_does) {
    struct api_tenant rows[] = {
        {.name = "alice", .weight = 1, .requests_per_minute = 3, .tokens_per_minute = 100000}};
    static const char body[] = R"({"model":"tiny","max_tokens":5,)" HI "}";
    static const char *const kinds[] = {"requests", "tokens"};
    struct reply r;
    char name[64], text[64];
    time_t began = time(NULL);

    start(rows, 1);
    w.port.script = "x";
    int fd = world_connect(&w);
    world_say(&w, fd,
              "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nx-api-key: ka\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              strlen(body), body);
    world_turns(&w, 3);
    cr_expect_eq(answer(fd, &r), 200);
    cr_expect_eq(header(&r, "anthropic-ratelimit-requests-limit"), 3);
    cr_expect_eq(header(&r, "anthropic-ratelimit-requests-remaining"), 2);
    cr_expect_eq(header(&r, "anthropic-ratelimit-tokens-limit"), 100000);
    double left = header(&r, "anthropic-ratelimit-tokens-remaining");
    cr_expect(left <= 100000 && left > 99000, "%f", left);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct tm tm = {0};

        snprintf(name, sizeof(name), "anthropic-ratelimit-%s-reset", kinds[i]);
        reply_header(&r, name, text, sizeof(text));
        const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
        cr_assert(end && !*end, "%s: %s", name, text);
        time_t whole = timegm(&tm);
        cr_expect(whole >= began + (i ? 0 : 19) && whole <= time(NULL) + 22, "%s: %s", name, text);
    }
    stop();
}
