/* Bodies of requests: their memory, their frames, and pipelined requests behind them. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/http/http.h"
#include "world.h"

#define HELLO R"({"messages":[{"role":"user","content":"hi"}]})"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* Feeds @head and a body of @n bytes in pieces of 60,000, and checks the capacity of the body. */
static void feed_body(const char *head, bool chunked, size_t n, size_t max, size_t *cap) {
    struct http_limits limits = {.target = 1000, .head = 4000, .body = max, .n_headers = 10};
    static char piece[60000 + 20];
    struct http h;
    struct err err = {0};
    size_t used, moved = 0;
    const char *at = NULL;

    http_init(&h, &limits);
    cr_assert_eq(http_feed(&h, head, strlen(head), &used, &err), HTTP_HEAD_DONE, "%s", err.message);
    for (size_t done = 0, len; done < n; done += len) {
        int before = 0;

        len = MIN(n - done, (size_t)60000);
        if (chunked)
            before = sprintf(piece, "%zx\r\n", len);
        memset(piece + before, 'a' + (int)(done / 60000 % 26), len);
        int after = chunked ? sprintf(piece + before + len, "\r\n") : 0;
        int r = http_feed(&h, piece, (size_t)before + len + (size_t)after, &used, &err);
        cr_assert(r >= 0, "%s", err.message);
        moved += done > (256u << 10) && h.body.data != at;
        at = h.body.data;
    }
    cr_expect_eq(h.body.len, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(h.body.data[i], 'a' + (char)(i / 60000 % 26), "byte %zu", i);
    cr_expect_leq(moved, 1, "a large body was copied %zu times", moved);
    *cap = h.body.cap;
    http_deinit(&h);
}

/* The growth of a body must not copy all of it in one step of the loop. */
Test(http_body, a_large_body_gets_its_room_at_once) {
    size_t cap;

    feed_body("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n", false, 2000000,
              8 << 20, &cap);
    cr_expect(cap >= 2000000 && cap < 2000100, "%zu", cap);
    feed_body("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", true, 2000000,
              8 << 20, &cap);
    cr_expect_geq(cap, 8 << 20);
    feed_body("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", true, 100000,
              8 << 20, &cap);
    cr_expect_lt(cap, 300000, "a small one has no more room than it needs");
}

Test(http_body, chunks_and_expectations_are_understood) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};

    started(&w);
    w.port.script = "ok";
    int fd = world_connect(&w);
    world_say(&w, fd,
              "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
              "Content-Length: %zu\r\n\r\n",
              strlen(HELLO));
    cr_assert(world_read_until(&w, fd, &b, "HTTP/1.1 100 Continue\r\n\r\n"));
    world_say(&w, fd, "%s", HELLO);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_say(&w, fd,
              "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
              "chunked\r\n\r\n");
    for (size_t i = 0; i < strlen(HELLO); i++)
        world_say(&w, fd, "1;x=y\r\n%c\r\n", HELLO[i]);
    world_say(&w, fd, "0\r\nAuthorization: late\r\n\r\n");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http_body, what_all_clients_send_is_bounded_together) {
    struct world w;
    struct reply r;
    char half[60001];
    int fd[16], n_refused = 0;

    world_init(&w);
    w.opts.max_body_bytes = 65536;
    world_start(&w);
    memset(half, ' ', sizeof(half) - 1);
    half[sizeof(half) - 1] = 0;
    for (int i = 0; i < 16; i++) {
        fd[i] = world_connect(&w);
        world_say(&w, fd[i],
                  "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: 65000\r\n\r\n%s",
                  half);
        world_turns(&w, 4);
    }
    for (int i = 0; i < 16; i++) {
        char c;

        if (recv(fd[i], &c, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
            continue;
        world_receive(&w, fd[i], &r);
        cr_expect_eq(r.status, 503);
        n_refused++;
        reply_deinit(&r);
    }
    cr_expect_eq(n_refused, 8);
    for (int i = 0; i < 16; i++)
        world_drop(&w, fd[i]);
    for (int i = 0; i < 10; i++) { /* the room of the other bodies is free again */
        fd[0] = world_connect(&w);
        world_say(&w, fd[0],
                  "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60015\r\n\r\n"
                  R"({"prompt":"abc"%s})",
                  half + 1);
        world_receive(&w, fd[0], &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd[0]);
    }
    world_stop(&w);
}

Test(http_body, a_pipelined_request_waits_for_the_answer_before_it) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};

    started(&w);
    int fd = world_connect(&w);
    world_say(
        &w, fd,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s"
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        strlen(HELLO), HELLO);
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    world_turns(&w, 5);
    char c;
    cr_expect_lt(recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT), 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_assert(world_read_until(&w, fd, &b, "serving"));
    cr_expect_lt(strstr(b.data, "chat.completion"), strstr(b.data, "serving"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http_body, too_many_pipelined_bytes_close_after_the_answer) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    started(&w);
    int fd = world_connect(&w);
    buf_printf(&b,
               "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n"
               "\r\n%s",
               strlen(HELLO), HELLO);
    for (int i = 0; i < 3000; i++)
        buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_send(&w, fd, b.data, b.len);
    world_turns(&w, 20);
    fake_accept(&w.port, 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http_body, http_1_0_gets_a_stream_that_ends_with_the_connection) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    static const char body[] = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

    started(&w);
    w.port.script = "ok";
    int fd = world_connect(&w);
    world_say(&w, fd, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
              strlen(body), body);
    while (world_read_until(&w, fd, &b, "never"))
        ;
    cr_expect(!strcasestr(b.data, "transfer-encoding"));
    cr_expect(strstr(b.data, "\r\n\r\ndata: {"), "%s", b.data);
    cr_expect_eq(strcmp(b.data + b.len - 14, "data: [DONE]\n\n"), 0);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Clients that send all of a body before they read would lose the answer with the connection. */
Test(http_body, one_that_is_refused_may_be_sent_for_longer) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_say(
        &w, fd,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 999999999\r\n\r\n");
    for (int i = 0; i < 50; i++) { /* 2.5 s, of which the answer takes none */
        world_say(&w, fd, "%1000d", i);
        world_turns(&w, 2);
        usleep(50000);
    }
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 413);
    cr_expect(strstr(r.body.data, "body_too_large"));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}
