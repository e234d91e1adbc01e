#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* ---- acceptance and errors ---- */

Test(accept, nothing_is_said_before_the_worker_accepts) {
    struct world w;
    struct reply r;
    char c;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true,"n":2})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 0);
    world_turns(&w, 5);
    cr_expect_lt(read(fd, &c, 1), 0);
    fake_reject(&w.port, 1, 400, "too large");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "too large"));
    cr_expect(w.port.r[0].cancelled, "the sibling goes too");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(accept, a_failure_in_a_stream_is_an_error_event) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    fake_fail(&w.port, 0, 500, "numbers went wrong");
    world_receive(&w, fd, &r);
    reply_expect(&r, 200,
                 ROLE DELTA("ab") R"(data: {"error":{"message":"numbers went wrong","type":)"
                                  R"("server_error","param":null,"code":"engine_error"}})"
                                  "\n\n");
    world_post(&w, fd, CHAT, "{" HI "}"); /* the connection stays open */
    world_turns(&w, 5);
    fake_accept(&w.port, 1);
    fake_finish(&w.port, 1, FINISH_DEADLINE);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 504);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(accept, a_busy_channel_is_tried_again) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    w.port.n_again = 3;
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_eq(w.port.n_again, 0);
    reply_deinit(&r);
    world_stop(&w);
}

Test(cancel, a_client_that_leaves_ends_its_generations) {
    struct world w;

    started(&w);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, i == 2 ? "{" HI "}" : "{" HI R"(,"stream":true,"n":2})");
        world_turns(&w, 5);
    }
    cr_assert_eq(w.port.n, 5);
    fake_accept(&w.port, 0);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 0, "abc");
    world_drop(&w, fd[0]);
    cr_expect(w.port.r[0].cancelled && w.port.r[1].cancelled);
    cr_expect(!w.port.r[2].cancelled);
    world_drop(&w, fd[1]);
    world_drop(&w, fd[2]);
    cr_expect(w.port.r[2].cancelled && w.port.r[4].cancelled);
    fake_tokens(&w.port, 0, "late"); /* events that crossed the cancel message */
    fake_finish(&w.port, 0, FINISH_CANCELLED);
    world_stop(&w);
}

Test(cancel, a_reader_that_does_not_read_is_cancelled_and_others_are_not) {
    struct world w;
    struct reply r;
    char text[2001];
    CLEANUP(buf_deinit) struct buf sent = {.max = 1 << 24};

    world_init(&w);
    w.opts.stream_buffer_bytes = 4096;
    w.opts.stall_timeout_ms = 60;
    w.model.max_context = 4000000;
    world_start(&w);
    memset(text, 'a', 2000);
    text[2000] = 0;
    int slow = world_connect_unix(&w), fast = world_connect(&w);
    world_post(&w, slow, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    world_post(&w, fast, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_accept(&w.port, 1);
    for (int i = 0; i < 1000; i++) {
        fake_tokens(&w.port, 0, text);
        world_turn(&w);
    }
    for (int i = 0; i < 5000 && !w.port.r[0].cancelled; i++) {
        usleep(1000);
        world_turn(&w);
    }
    cr_expect(w.port.r[0].cancelled);
    fake_tokens(&w.port, 1, "fine");
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fast, &r);
    reply_expect(&r, 200, ROLE DELTA("fine") FINISH("stop") DONE);
    while (world_read_until(&w, slow, &sent, "never"))
        ;
    cr_expect_lt(sent.len, 1000000, "two million were told, a buffer and the socket's were sent");
    world_drop(&w, slow);
    world_drop(&w, fast);
    world_stop(&w);
}

/* The end of an answer of HTTP/1.0 is the end of its connection. */
Test(cancel, what_a_slow_reader_was_sent_does_not_look_complete) {
    char text[2001], chunk[1 << 14];
    struct world w;
    ssize_t n;

    world_init(&w);
    w.opts.stream_buffer_bytes = 4096;
    w.opts.stall_timeout_ms = 60;
    w.model.max_context = 40000000;
    world_start(&w);
    memset(text, 'a', 2000);
    text[2000] = 0;
    int fd = world_connect(&w);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int));
    const char *body = "{" HI R"(,"stream":true})";
    world_say(&w, fd, "POST " CHAT " HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
              body);
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    for (int i = 0; i < 4000; i++) {
        fake_tokens(&w.port, 0, text);
        world_turn(&w);
    }
    for (int i = 0; i < 5000 && !w.port.r[0].cancelled; i++) {
        usleep(1000);
        world_turn(&w);
    }
    cr_assert(w.port.r[0].cancelled);
    world_turns(&w, 5);
    while ((n = recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT)) > 0)
        ;
    cr_expect(n < 0 && errno == ECONNRESET, "%zd, %s", n, strerror(errno));
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- readers that leave keep-alives unread ---- */

#define S INT64_C(1000000000)

/* A world whose front cuts off a reader that reads nothing for a minute of @clock. */
static void begin_stalls(struct world *w, struct clock_virtual *clock) {
    world_init(w);
    clock_virtual_init(clock, S);
    w->clock = &clock->clock;
    w->opts.keepalive_ms = 2;
    w->opts.stall_timeout_ms = 60000;
    w->opts.stream_buffer_bytes = 1 << 20;
    w->model.max_context = 4000000;
    world_start(w);
}

/* Begins a stream, number @i, of @n KB: more than the socket holds, less than the front keeps. */
static void stream_much(struct world *w, int fd, uint32_t i, int n) {
    char text[1001];

    memset(text, 'a', 1000);
    text[1000] = 0;
    world_post(w, fd, CHAT, "{" HI R"(,"stream":true})");
    world_turns(w, 5);
    cr_assert_eq(w->port.n, i + 1);
    fake_accept(&w->port, i);
    for (int k = 0; k < n; k++) {
        fake_tokens(&w->port, i, text);
        world_turn(w);
    }
}

/* Turns the loop while several keep-alives become due. */
static void turn_through_keepalives(struct world *w) {
    for (int i = 0; i < 15; i++) {
        usleep(2000);
        world_turn(w);
    }
}

Test(cancel, a_reader_of_no_keep_alive_is_cancelled_after_a_minute) {
    struct clock_virtual clock;
    struct world w;

    begin_stalls(&w, &clock);
    int fd = world_connect_unix(&w);
    stream_much(&w, fd, 0, 500);
    turn_through_keepalives(&w);
    clock.ns += 59 * S;
    turn_through_keepalives(&w);
    cr_expect(!w.port.r[0].cancelled);
    clock.ns += 2 * S;
    for (int i = 0; i < 100 && !w.port.r[0].cancelled; i++)
        turn_through_keepalives(&w);
    cr_expect(w.port.r[0].cancelled);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(cancel, a_slow_reader_of_keep_alives_is_waited_for) {
    struct clock_virtual clock;
    struct world w;
    char part[4096];
    size_t n_read = 0;

    begin_stalls(&w, &clock);
    int fd = world_connect_unix(&w);
    stream_much(&w, fd, 0, 900);
    for (int i = 0; i < 4; i++) {
        turn_through_keepalives(&w);
        clock.ns += 40 * S;
        ssize_t n;
        while ((n = recv(fd, part, sizeof(part), MSG_DONTWAIT)) > 0)
            n_read += (size_t)n;
        turn_through_keepalives(&w);
    }
    cr_expect_lt(n_read, 900000, "some was unread all the time");
    cr_expect(!w.port.r[0].cancelled);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(cancel, what_was_unread_of_one_answer_does_not_count_for_the_next) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct clock_virtual clock;
    struct world w;

    begin_stalls(&w, &clock);
    int fd = world_connect_unix(&w);
    stream_much(&w, fd, 0, 400);
    turn_through_keepalives(&w);
    clock.ns += 40 * S;
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    stream_much(&w, fd, 1, 800);
    clock.ns += 30 * S;
    turn_through_keepalives(&w);
    cr_expect(!w.port.r[1].cancelled);
    world_drop(&w, fd);
    world_stop(&w);
}

#define EURO "\xE2\x82\xAC"

/* Pieces of a text that are sent at a time end between two characters. */
Test(cancel, a_slow_reader_gets_everything_if_it_reads_in_time) {
    struct world w;
    struct reply r;
    char text[2002] = "";
    size_t n = 0;

    world_init(&w);
    w.opts.stream_buffer_bytes = 4096;
    w.model.max_context = 4000000;
    world_start(&w);
    while (strlen(text) < 2001)
        strcat(text, EURO);
    int fd = world_connect_unix(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    for (int i = 0; i < 500; i++) {
        fake_tokens(&w.port, 0, text);
        world_turn(&w);
    }
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 20);
    world_receive(&w, fd, &r);
    for (const char *at = r.body.data; (at = strstr(at, EURO)); at++)
        n++;
    cr_expect_eq(n, 500 * 667, "%zu", n);
    world_turns(&w, 3);
    cr_expect(list_empty(&w.api->http.payers.turns.ready), "nothing is left to do");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(stream, silence_is_filled_with_comments) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 10;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    world_read_until(&w, fd, &b, ": pages: waited for pages of the KV cache\n\n");
    /* some clients count only chunks */
    cr_expect(strstr(b.data, R"({"index":0,"delta":{},"logprobs":null,"finish_reason":null})"),
              "%s", b.data);
    buf_clear(&b);
    world_read_until(&w, fd, &b, ": pages: waited for pages of the KV cache\n\n");
    fake_tokens(&w.port, 0, "x");
    world_read_until(&w, fd, &b, ": keep-alive\n\n");
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    world_drop(&w, fd);
    world_stop(&w);
}

/* Text that may begin a stop string is sent once it is certain that it does not. */
Test(stream, silence_is_filled_while_text_is_held_back) {
    struct world w;
    char sent[4096];
    ssize_t n = 0, r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 20;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT,
               "{" HI R"(,"stream":true,"stop":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    for (int i = 0; i < 40; i++) { /* eight times the longest silence */
        fake_tokens(&w.port, 0, "x");
        world_turns(&w, 2);
        usleep(4000);
    }
    while ((r = recv(fd, sent + n, sizeof(sent) - 1 - (size_t)n, MSG_DONTWAIT)) > 0)
        n += r;
    sent[n] = 0;
    cr_expect(strstr(sent, ": keep-alive\n\n"), "%s", sent);
    fake_tokens(&w.port, 0, "y");
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(stream, silence_tells_how_far_the_prompt_is) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 10;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true,"return_progress":true})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    cr_expect(world_read_until(&w, fd, &b,
                               R"("prompt_progress":{"total":21,"cache":10,"processed":10,)"));
    fake_tokens(&w.port, 0, "x");
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    world_drop(&w, fd);
    world_stop(&w);
}

/* Asks for a stream of @path that the worker does not accept for long, and reads until @sign. */
static int wait_for_head(struct world *w, const char *path, struct buf *seen, const char *sign) {
    int fd = world_connect(w);

    buf_clear(seen);
    world_post(w, fd, path, R"({"model":"tiny",)" HI R"(,"max_tokens":4,"stream":true})");
    cr_assert(world_read_until(w, fd, seen, sign), "%s", path);
    cr_expect(strstr(seen->data, "HTTP/1.1 200 OK"), "%s", seen->data);
    return fd;
}

/* Proxies end a request whose head does not arrive: nginx after 60 s. */
Test(stream, one_that_is_not_accepted_for_long_gets_its_head) {
    static const struct {
        const char *path, *sign, *failed, *end;
    } rows[] = {
        {CHAT, ": pages: waited for pages of the KV cache\n\n", R"(data: {"error":{)", "[DONE]"},
        {"/v1/messages", "event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: error\n",
         "message_stop"},
        {"/api/chat", "application/x-ndjson", R"({"error":)", R"("done":true)"},
    };
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    w.opts.keepalive_ms = 2;
    world_start(&w);
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int fd = wait_for_head(&w, rows[i].path, &b, rows[i].sign);

        fake_accept(&w.port, 2 * i);
        fake_tokens(&w.port, 2 * i, "x");
        fake_finish(&w.port, 2 * i, FINISH_STOP);
        cr_expect(world_read_until(&w, fd, &b, rows[i].end), "%s", b.data);
        cr_expect(world_read_until(&w, fd, &b, "\r\n0\r\n\r\n"), "%s", b.data);
        world_drop(&w, fd);
        fd = wait_for_head(&w, rows[i].path, &b, rows[i].sign);
        fake_reject(&w.port, 2 * i + 1, 503, "busy");
        cr_expect(world_read_until(&w, fd, &b, "\r\n0\r\n\r\n"), "%s", b.data);
        cr_expect(strstr(b.data, rows[i].failed), "%s", b.data);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

Test(stream, one_that_waits_in_the_queue_gets_its_head) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    w.opts.keepalive_ms = 2;
    w.opts.max_running = 1;
    world_start(&w);
    int first = world_connect(&w);
    world_post(&w, first, CHAT, "{" HI "}");
    world_turns(&w, 5);
    int fd = wait_for_head(&w, CHAT, &b, ": place: ");
    cr_expect_eq(w.port.n, 1);
    world_drop(&w, first);
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "x");
    fake_finish(&w.port, 1, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    world_drop(&w, fd);
    world_stop(&w);
}

/* Clients end a request whose head does not arrive: Node's fetch() after 300 s. */
Test(stream, a_whole_answer_begins_with_white_space) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 5;
    world_start(&w);
    int fd = world_connect(&w);
    for (uint32_t fails = 0; fails < 2; fails++) {
        buf_clear(&b);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        fake_accept(&w.port, fails);
        cr_expect(world_read_until(&w, fd, &b, "\r\n\r\n1\r\n \r\n1\r\n \r\n"));
        cr_expect(strstr(b.data, "HTTP/1.1 200 OK") &&
                      strstr(b.data, "Content-Type: application/json"),
                  "%s", b.data);
        if (fails) {
            fake_fail(&w.port, fails, 500, "broken");
        } else {
            fake_tokens(&w.port, fails, "x");
            fake_finish(&w.port, fails, FINISH_STOP);
        }
        cr_expect(world_read_until(&w, fd, &b, "}\r\n0\r\n\r\n"));
        cr_expect(strstr(b.data, fails ? "\r\n"
                                         R"({"error":{)"
                                       : "\r\n"
                                         R"({"id":)"),
                  "%s", b.data);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- admission ---- */

Test(admit, beyond_the_queue_is_429_with_a_time) {
    struct world w;
    struct reply r;
    char v[64];
    int fd[4];

    world_init(&w);
    w.opts.max_running = 2;
    w.opts.max_queued = 1;
    world_start(&w);
    for (int i = 0; i < 4; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, "{" HI "}");
        world_turns(&w, 5);
    }
    cr_expect_eq(w.port.n, 2);
    world_receive(&w, fd[3], &r);
    cr_expect_eq(r.status, 429);
    cr_expect_geq(atoi(reply_header(&r, "retry-after", v, sizeof(v))), 1);
    cr_expect_geq(atoi(reply_header(&r, "retry-after-ms", v, sizeof(v))), 500);
    cr_expect(strstr(r.body.data, "Too many requests are waiting. Please try again in "));
    cr_expect(strstr(r.body.data, R"("type":"rate_limit_error","param":null,)"
                                  R"("code":"rate_limit_exceeded")"));
    reply_deinit(&r);
    fake_accept(&w.port, 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect_eq(w.port.n, 3, "the waiting one follows");
    w.port.script = "x";
    for (int i = 0; i < 3; i++) {
        world_receive(&w, fd[i], &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
    }
    for (int i = 0; i < 4; i++)
        world_drop(&w, fd[i]);
    world_stop(&w);
}

Test(admit, who_waits_longer_than_its_client_is_told) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 1;
    world_start(&w);
    int fd = world_connect(&w), late = world_connect(&w), gone = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_say(&w, late,
              "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-stainless-read-timeout: 1\r\n"
              "Content-Length: %zu\r\n\r\n{" HI "}",
              strlen("{" HI "}"));
    world_turns(&w, 5);
    world_receive(&w, late, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "queue_timeout"), "%s", r.body.data);
    reply_deinit(&r);
    world_post(&w, gone, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_drop(&w, gone);
    world_turns(&w, 5);
    struct api_stats s;
    api_stats(w.api, &s);
    cr_expect_eq(s.n_running, 1);
    cr_expect_eq(s.n_queued, 0);
    world_drop(&w, fd);
    world_drop(&w, late);
    world_stop(&w);
}

static size_t n_visited;

static void count_visited(size_t bytes, size_t items) {
    n_visited += items;
}

Test(admit, a_list_of_all_that_wait_visits_each_a_few_times) {
    enum { N = 60 };
    static struct api_request_info info[N + 1];
    struct world w;
    int fd[N];

    world_init(&w);
    w.opts.max_running = 1;
    w.opts.max_queued = N;
    world_start(&w);
    for (int i = 0; i < N; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, "{" HI "}");
        world_turns(&w, 5);
    }
    n_visited = 0;
    loop_watch = count_visited;
    cr_assert_eq(api_requests(w.api, info, N + 1), N);
    loop_watch = NULL;
    cr_expect_lt(n_visited, 4 * N, "%zu", n_visited);
    for (int i = 2; i < N; i++)
        cr_expect_gt(info[i].expect_ms, info[i - 1].expect_ms, "%d", i);
    int64_t last_ms = info[N - 1].expect_ms;
    world_drop(&w, fd[5]);
    world_turns(&w, 5);
    cr_assert_eq(api_requests(w.api, info, N + 1), N - 1);
    cr_expect_lt(info[N - 2].expect_ms, last_ms, "one less waits before it");
    for (int i = 0; i < N; i++)
        if (i != 5)
            world_drop(&w, fd[i]);
    world_stop(&w);
}

/* ---- the worker comes and goes ---- */

static uint32_t n_faults;

static uint32_t faults_of(struct api_port *p, uint64_t id) {
    (void)p;
    (void)id;
    return n_faults;
}

Test(resume, a_stream_goes_on_as_if_nothing_had_happened) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT,
               "{" HI R"(,"stream":true,"logprobs":true,"seed":3,"stream_options":)"
               R"({"include_usage":true}})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab\xE2\x82");
    api_worker_down(api_first_model(w.api));
    world_turns(&w, 5);
    fake_tokens(&w.port, 0, "stray"); /* from the dead worker, so it is ignored */
    n_faults = 1;
    api_worker_up(api_first_model(w.api), faults_of);
    cr_assert_eq(w.port.n, 1);
    const struct submit *m = &w.port.r[0].m;
    cr_expect_eq(w.port.r[0].n_submits, 2);
    cr_expect_eq(m->n_tokens, HI_TOKENS + 4);
    cr_expect_eq(m->n_prompt, HI_TOKENS);
    cr_expect_eq(m->n_faults, 1);
    cr_expect_eq(m->seed, 3);
    cr_expect_eq(m->tokens[HI_TOKENS + 3], 0x82);
    fake_accept(&w.port, 0);
    w.port.n_cached = HI_TOKENS;                     /* the new worker finds its own pages */
    fake_tokens_from(&w.port, 0, 2, "\xE2\x82\xAC"); /* overlaps the tokens sent before */
    fake_tokens_from(&w.port, 0, 0, "ab\xE2\x82\xAC");
    fake_tokens_from(&w.port, 0, 5, "d");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    const char *order[] = {R"("content":"ab")",
                           R"("content":")"
                           "\xE2\x82\xAC"
                           R"(")",
                           R"("content":"d")", R"("finish_reason":"stop")", "[DONE]"};
    const char *at = r.body.data;
    for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
        at = strstr(at, order[i]);
        cr_assert(at, "%s is not in order: %s", order[i], r.body.data);
    }
    cr_expect(!strstr(r.body.data, "stray"));
    cr_expect(strstr(r.body.data, R"("cached_tokens":10)"), "%s", r.body.data);
    reply_deinit(&r);
    struct api_stats s;
    api_stats(w.api, &s);
    cr_expect_eq(s.n_resumed, 1);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(resume, requests_wait_for_a_worker_and_poison_is_removed) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w), next = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    api_worker_down(api_first_model(w.api));
    world_post(&w, next, CHAT, "{" HI "}");
    world_turns(&w, 5);
    cr_expect_eq(w.port.n, 1);
    n_faults = 3;
    api_worker_up(api_first_model(w.api), faults_of);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    cr_expect(strstr(r.body.data, R"("code":"engine_fault")"), "%s", r.body.data);
    cr_expect(strcasestr(r.head, "x-should-retry: false"));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_drop(&w, next);
    world_stop(&w);
}

Test(resume, what_was_complete_is_not_run_again) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"max_tokens":3})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    api_worker_down(api_first_model(w.api));
    api_worker_up(api_first_model(w.api), NULL);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("finish_reason":"length")"), "%s", r.body.data);
    cr_expect_eq(w.port.r[0].n_submits, 1);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(resume, a_worker_that_leaves_a_gap_fails_the_request) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens_from(&w.port, 0, 3, "abc");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    cr_expect(w.port.r[0].cancelled);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(resume, no_request_waits_for_a_worker_that_cannot_be_started) {
    struct world w;
    struct reply r;
    char v[64];

    world_init(&w);
    w.opts.max_running = 2;
    world_start(&w);
    int stream = world_connect(&w), whole = world_connect(&w), queued = world_connect(&w);
    int complete = world_connect(&w);
    world_post(&w, stream, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    world_post(&w, complete, CHAT, "{" HI R"(,"max_tokens":2})");
    world_turns(&w, 5);
    world_post(&w, whole, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_post(&w, queued, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "cd");
    api_worker_down(api_first_model(w.api));
    api_worker_failed(api_first_model(w.api), "it is gone", 7000);
    world_receive(&w, complete, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_receive(&w, stream, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, "model_unavailable"), "%s", r.body.data);
    reply_deinit(&r);
    for (int i = 0; i < 2; i++) {
        world_receive(&w, i ? queued : whole, &r);
        cr_expect_eq(r.status, 503);
        cr_expect(strstr(r.body.data, "The model cannot be loaded: it is gone."), "%s",
                  r.body.data);
        cr_expect_str_eq(reply_header(&r, "retry-after", v, sizeof(v)), "7");
        reply_deinit(&r);
    }
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "model_unavailable"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("type":"server_error")"), "%s", r.body.data);
    cr_expect_str_eq(reply_header(&r, "x-should-retry", v, sizeof(v)), "false");
    reply_deinit(&r);
    world_ask(&w, "/v1/messages", R"({"max_tokens":1,)" HI "}", &r);
    cr_expect_eq(r.status, 500, "529 would be retried");
    cr_expect(strstr(r.body.data, R"("type":"api_error")"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, R"("state":"failed","reason":"it is gone")"), "%s", r.body.data);
    reply_deinit(&r);
    api_worker_up(api_first_model(w.api), NULL);
    w.port.script = "x";
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, stream);
    world_drop(&w, whole);
    world_drop(&w, queued);
    world_drop(&w, complete);
    world_stop(&w);
}

/* ---- service life ---- */

Test(life, streams_end_with_an_error_when_the_service_closes) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w), whole = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"stream":true})");
    world_turns(&w, 5);
    world_post(&w, whole, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    cr_expect(api_busy(w.api));
    api_drain(w.api);
    api_set_health(w.api, API_SERVING); /* does not make the service available again */
    fake_tokens(&w.port, 0, "cd");
    api_close(w.api);
    world_receive(&w, fd, &r);
    reply_normalise(&r.body);
    cr_expect(strstr(r.body.data, DELTA("ab") DELTA("cd") R"(data: {"error":)"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, "shutting_down"));
    reply_deinit(&r);
    world_receive(&w, whole, &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    close(fd);
    close(whole);
    world_stop(&w);
}

Test(life, what_cannot_start_leaves_nothing_behind) {
    struct api *a = NULL;
    struct world w;

    world_init(&w);
    w.opts.otlp_endpoint = "no address";
    uv_loop_init(&w.loop);
    cr_expect_lt(api_new(&a, &w.loop, &w.opts, &w.model, &w.port.port, clock_monotonic()), 0);
    cr_expect_null(a);
    cr_expect_eq(uv_loop_close(&w.loop), 0, "handles are left open");
    world_deinit(&w);
}

Test(life, what_drains_is_answered_with_close) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    api_drain(w.api);
    cr_expect(api_busy(w.api));
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    cr_expect(!api_busy(w.api));
    reply_deinit(&r);
    close(fd);
    world_stop(&w);
}

Test(life, an_answer_that_is_not_yet_read_keeps_the_service_busy) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf text = {.max = 1 << 24};

    world_init(&w);
    w.model.max_context = 4000000;
    world_start(&w);
    int fd = world_connect_unix(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    for (int i = 0; i < 4000; i++)
        buf_add_char(&text, 'a');
    for (int i = 0; i < 400; i++)
        fake_tokens(&w.port, 0, text.data);
    fake_finish(&w.port, 0, FINISH_STOP);
    api_drain(w.api);
    world_turns(&w, 20);
    cr_expect(api_busy(w.api));
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect_gt(r.body.len, 1600000);
    cr_expect(!api_busy(w.api));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(life, the_operator_sees_and_cancels) {
    struct world w;
    struct reply r;
    struct api_request_info info[4];

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"n":2})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    cr_assert_eq(api_requests(w.api, info, 4), 2);
    cr_expect_str_eq(info[0].endpoint, CHAT);
    cr_expect_str_eq(info[0].state, "running");
    cr_expect_str_eq(info[1].state, "queued");
    cr_expect_eq(info[0].n_output, 2);
    cr_expect_eq(api_requests(w.api, info, 1), 1);
    cr_expect(!api_cancel(w.api, 12345));
    cr_expect(api_cancel(w.api, info[0].id));
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, R"("code":"cancelled")"));
    reply_deinit(&r);
    cr_expect_eq(api_requests(w.api, info, 4), 0);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Checks that each series follows the head of its family, where a scraper reads its kind. */
static void expect_families(const char *page) {
    char family[128] = "none";

    for (const char *line = page; *line; line += strcspn(line, "\n") + 1) {
        int len = (int)strcspn(line, "\n");

        if (sscanf(line, "# TYPE %127s ", family) == 1 || *line == '#')
            continue;
        cr_expect(strncmp(line, family, strlen(family)) == 0, "%.*s below %s", len, line, family);
    }
}

Test(life, figures_are_published) {
    static const char *const needles[] = {
        R"(vllm:num_requests_running{model_name="tiny",engine="0"} 0)"
        "\n",
        R"(vllm:num_requests_waiting{model_name="tiny",engine="0"} 0)"
        "\n",
        R"(vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.25)"
        "\n",
        R"(vllm:cache_config_info{model_name="tiny",engine="0",block_size="16",)"
        R"(num_gpu_blocks="64"} 1)"
        "\n",
        R"(vllm:prompt_tokens_total{model_name="tiny",engine="0"} 21)"
        "\n",
        R"(vllm:generation_tokens_total{model_name="tiny",engine="0"} 2)"
        "\n",
        R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 1)"
        "\n",
        R"(vllm:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 1)"
        "\n",
        R"(vllm:inter_token_latency_seconds_count{model_name="tiny",engine="0"} 1)"
        "\n",
        R"(vllm:e2e_request_latency_seconds_bucket{model_name="tiny",engine="0",le="+Inf"} 1)"
        "\n",
        R"(vllm:prefix_cache_hits_total{model_name="tiny",engine="0"} 7)"
        "\n",
        R"(weft_draft_tokens_total{model_name="tiny",engine="0",source="suffix"} 9)"
        "\n",
        R"(weft_draft_accepted_tokens_total{model_name="tiny",engine="0",source="model"} 0)"
        "\n",
        R"(weft_http_requests_total{model_name="tiny",engine="0"} 1)"
        "\n",
        R"(weft_serving{model_name="tiny",engine="0"} 1)"
        "\n",
        R"(vllm:prompt_tokens_cached_total{model_name="tiny",engine="0"} 10)"
        "\n",
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 11\n",
        "\nllamacpp:prompt_tokens_cached_total 10\n",
        "\nllamacpp:tokens_predicted_total 2\n",
        "# TYPE llamacpp:predicted_tokens_seconds gauge\nllamacpp:predicted_tokens_seconds ",
        "\nllamacpp:kv_cache_usage_ratio 0.25\n",
        R"(vllm:cpu_cache_usage_perc{model_name="tiny",engine="0"} 0.125)"
        "\n",
        R"(vllm:iteration_tokens_total_bucket{model_name="tiny",engine="0",le="8"} 5)"
        "\n",
        R"(vllm:iteration_tokens_total_bucket{model_name="tiny",engine="0",le="16384"} 5)"
        "\n",
        R"(vllm:iteration_tokens_total_sum{model_name="tiny",engine="0"} 20012)"
        "\n",
        R"(vllm:iteration_tokens_total_count{model_name="tiny",engine="0"} 6)"
        "\n",
        R"(vllm:request_max_num_generation_tokens_sum{model_name="tiny",engine="0"} 2)"
        "\n",
    };
    struct world w;
    struct reply r;
    struct msg_stats s = {.n_pages = 64, .n_used = 16, .n_hit_tokens = 7, .drafted_by = {[2] = 9}};

    s.n_host_pages = 32;
    s.n_host_held = 4;
    s.n_rows = 20012;
    s.step_rows[0] = 3;
    s.step_rows[1] = 2;
    s.step_rows[STEP_ROWS_BUCKETS - 1] = 1;
    started(&w);
    w.port.script = "ab";
    world_ask(&w, CHAT, "{" HI "}", &r);
    reply_deinit(&r);
    api_on_stats(api_first_model(w.api), &s);
    world_get(&w, "/metrics", &r);
    cr_expect_eq(r.status, 200);
    for (size_t i = 0; i < ARRAY_SIZE(needles); i++)
        cr_expect(strstr(r.body.data, needles[i]), "%s is missing in %s", needles[i], r.body.data);
    /* A family that occurs twice makes a scraper refuse the whole page. */
    for (const char *p = strstr(r.body.data, "# TYPE "); p; p = strstr(p + 1, "# TYPE ")) {
        char line[200];

        snprintf(line, sizeof(line), "%.*s ", (int)strcspn(p + 7, " ") + 7, p);
        cr_expect_null(strstr(p + 1, line), "%s twice", line);
    }
    expect_families(r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- times and sizes ---- */

Test(admit, a_request_larger_than_the_limit_runs_alone) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 2;
    w.opts.max_queued = 8;
    world_start(&w);
    int fd = world_connect(&w), next = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"n":5})");
    world_turns(&w, 5);
    cr_expect_eq(w.port.n, 5);
    world_post(&w, next, CHAT, "{" HI "}");
    world_turns(&w, 5);
    cr_expect_eq(w.port.n, 5);
    w.port.script = "x";
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_receive(&w, next, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_drop(&w, next);
    world_stop(&w);
}

Test(life, a_request_ends_at_its_deadline_even_without_a_worker) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.request_timeout_ms = 60;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    cr_expect_eq(w.port.r[0].m.deadline_ns - w.port.r[0].m.arrived_ns, 60000000);
    api_worker_down(api_first_model(w.api));
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 504);
    cr_expect(strstr(r.body.data, R"("type":"timeout_error")"));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* A clock whose every reading takes half a millisecond once it is slow. */
static struct slow_clock {
    struct clock clock;
    int64_t ns;
    bool slow;
} slow_clock;

static int64_t slow_clock_now(struct clock *c) {
    if (slow_clock.slow)
        slow_clock.ns += 500000;
    return slow_clock.ns;
}

Test(life, requests_that_fail_together_are_ended_for_a_while) {
    enum { N = 40 };
    static struct api_request_info info[N];
    uint32_t n_left = N, n_most = 0;
    struct world w;
    struct reply r;
    int fd[N];

    slow_clock = (struct slow_clock){.clock.now_ns = slow_clock_now, .ns = 1000000000};
    world_init(&w);
    w.clock = w.port.clock = &slow_clock.clock;
    w.opts.max_running = N;
    w.opts.request_timeout_ms = 60000;
    world_start(&w);
    for (int i = 0; i < N; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, "{" HI "}");
        world_turns(&w, 5);
    }
    cr_assert_eq(w.port.n, N);
    api_worker_down(api_first_model(w.api));
    slow_clock.ns += 61000000000;
    slow_clock.slow = true;
    for (uint64_t limit = world_limit(); n_left > 0 && uv_hrtime() < limit;) {
        world_turn(&w);
        uint32_t n = api_requests(w.api, info, N);
        n_most = MAX(n_most, n_left - n);
        n_left = n;
    }
    slow_clock.slow = false;
    cr_expect_eq(n_left, 0);
    cr_expect(n_most > 0 && n_most <= 4, "%u in an iteration", n_most);
    for (int i = 0; i < N; i++) {
        world_receive(&w, fd[i], &r);
        cr_expect_eq(r.status, 504, "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd[i]);
    }
    world_stop(&w);
}

Test(life, a_request_that_the_channel_cannot_take_fails_alone) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.refuse_with = -EMSGSIZE;
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 500);
    cr_expect(strstr(r.body.data, "internal_error"));
    reply_deinit(&r);
    w.port.refuse_with = 0;
    w.port.script = "x";
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_stop(&w);
}

Test(life, a_model_without_a_template_only_completes) {
    struct world w;
    struct reply r;

    world_init(&w);
    template_free((struct template *)(uintptr_t)w.model.template);
    w.model.template = NULL;
    world_start(&w);
    w.port.script = "x";
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "no_chat_template"));
    reply_deinit(&r);
    world_ask(&w, TEXT, R"({"prompt":"a"})", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_stop(&w);
}
