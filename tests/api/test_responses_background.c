/* Responses in the background continue without a client, which polls for them or reads their events
 * from any event on. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/http/json.h"
#include "api/parts.h"
#include "api/responses/event_log.h"
#include "responses_support.h"

#define BACKGROUND R"({"input":"hi","background":true)"

/* Creates a response in the background and copies its id. */
static void begin(struct world *w, const char *more, char id[64]) {
    char body[200];
    struct reply r;

    snprintf(body, sizeof(body), BACKGROUND "%s}", more);
    world_ask(w, RESPONSES, body, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_assert(strstr(r.body.data, R"("status":"queued")"), "%s", r.body.data);
    cr_assert(strstr(r.body.data, R"("background":true)"), "%s", r.body.data);
    snprintf(id, 64, "%.29s", strstr(r.body.data, "resp_"));
    reply_deinit(&r);
}

static void get(struct world *w, const char *id, const char *query, struct reply *r) {
    char path[200];

    snprintf(path, sizeof(path), RESPONSES "/%s%s", id, query);
    world_get(w, path, r);
}

/* Asserts that GET returns @want. */
static void expect_told(struct world *w, const char *id, const char *query, const char *want) {
    struct reply r;

    get(w, id, query, &r);
    cr_expect_str_eq(responses_told(&r), want);
}

static void expect_status(struct world *w, const char *id, const char *query, int status) {
    struct reply r;

    get(w, id, query, &r);
    cr_expect_eq(r.status, status, "%s%s: %d %s", id, query, r.status, r.body.data);
    reply_deinit(&r);
}

static int cancel(struct world *w, const char *id, struct reply *r) {
    char path[128];

    snprintf(path, sizeof(path), RESPONSES "/%s/cancel", id);
    world_ask(w, path, "{}", r);
    return r->status;
}

/* The client's exchange has the header then, which the generation's must not have, too. */
Test(background, what_is_not_enforced_is_told_in_the_head) {
    struct world w;
    struct reply r;
    char value[100];

    responses_init(&w);
    w.port.script = "ok";
    world_start(&w);
    world_ask(&w, RESPONSES,
              R"({"input":"hi","background":true,"tools":[{"type":"function","name":"get",)"
              R"("strict":false,"parameters":{"properties":{"a":{"pattern":"\\bx"}}}}]})",
              &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(reply_header(&r, "X-Weft-Loosened", value, sizeof(value)),
                     "get#/properties/a/pattern");
    reply_deinit(&r);
    world_turns(&w, 50);
    world_stop(&w);
}

Test(background, it_is_answered_at_once_and_goes_on) {
    struct world w;
    char id[64];

    responses_start(&w);
    begin(&w, "", id);
    expect_told(&w, id, "", "queued");
    world_turns(&w, 4);
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hello");
    world_turns(&w, 2);
    expect_told(&w, id, "", "in_progress");
    cr_expect(!w.port.r[0].cancelled);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 2);
    expect_told(&w, id, "", "M<Hello> completed");
    cr_expect_eq(w.api->store.n_logged, 0);
    cr_expect_eq(w.api->env.stats.n_requests, 4, "one, and three that ask for it");
    world_stop(&w);
}

/* Streams from the beginning and from each event on are the same, during the response and
 * afterwards. */
Test(background, its_events_are_read_from_any_one_on) {
    CLEANUP(buf_deinit) struct buf all = {.max = 1 << 20};
    char id[64], query[64];
    struct reply r;
    struct world w;

    responses_start(&w);
    begin(&w, R"(,"stream":false)", id);
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hel");
    int fd = world_connect(&w);
    world_say(&w, fd, "GET " RESPONSES "/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n", id);
    world_turns(&w, 4);
    fake_tokens_from(&w.port, 0, 3, "lo");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    world_drop(&w, fd);
    cr_assert_eq(buf_add(&all, r.body.data, r.body.len), 0);
    cr_expect_str_eq(responses_told(&r), "M<Hello> completed");
    int n = 0;
    for (const char *at = all.data; at; at = strstr(at + 1, "event: "), n++) {
        snprintf(query, sizeof(query), "?stream=true&starting_after=%d", n - 1);
        get(&w, id, n ? query : "?stream=true", &r);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(r.body.data, at, "after %d", n - 1);
        reply_deinit(&r);
    }
    cr_expect_geq(n, 10);
    snprintf(query, sizeof(query), "?stream=true&starting_after=%d", n - 1);
    get(&w, id, query, &r);
    cr_expect(r.status == 200 && r.body.len == 0);
    reply_deinit(&r);
    world_stop(&w);
}

/* The client that reads the stream leaves, and the response continues. */
Test(background, a_stream_may_be_left_and_taken_up_again) {
    CLEANUP(buf_deinit) struct buf got = {.max = 1 << 20};
    struct world w;
    char id[64];

    responses_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, BACKGROUND R"(,"stream":true})");
    cr_assert(world_read_until(&w, fd, &got, "event: response.queued"));
    snprintf(id, sizeof(id), "%.29s", strstr(got.data, "resp_"));
    world_turns(&w, 2);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hel");
    cr_assert(world_read_until(&w, fd, &got, R"("delta":"Hel")"));
    world_drop(&w, fd);
    world_turns(&w, 4);
    cr_expect(!w.port.r[0].cancelled);
    fake_tokens_from(&w.port, 0, 3, "lo");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 4);
    expect_told(&w, id, "?stream=true", "M<Hello> completed");
    expect_told(&w, id, "", "M<Hello> completed");
    world_stop(&w);
}

/* The worker has room only when the request's client has left, but the response needs none. */
Test(background, a_stream_may_be_left_before_it_is_submitted) {
    CLEANUP(buf_deinit) struct buf got = {.max = 1 << 20};
    struct world w;
    char id[64];

    responses_start(&w);
    w.port.n_again = 1;
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, BACKGROUND R"(,"stream":true})");
    cr_assert(world_read_until(&w, fd, &got, "event: response.queued"));
    snprintf(id, sizeof(id), "%.29s", strstr(got.data, "resp_"));
    cr_assert_eq(w.port.n, 0);
    close(fd);
    api_worker_room(api_first_model(w.api)); /* before the loop reads that the client has left */
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hello");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 4);
    expect_told(&w, id, "", "M<Hello> completed");
    world_stop(&w);
}

Test(background, it_is_cancelled_by_its_id) {
    struct world w;
    struct reply r;
    char id[64];

    responses_start(&w);
    begin(&w, "", id);
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "x");
    world_turns(&w, 2);
    cr_expect_eq(cancel(&w, id, &r), 200);
    cr_expect_str_eq(responses_told(&r), "M<x>! cancelled");
    cr_expect(w.port.r[0].cancelled);
    expect_told(&w, id, "?stream=true", "M<x>! cancelled");
    cr_expect_eq(cancel(&w, id, &r), 200, "once more");
    cr_expect_str_eq(responses_told(&r), "M<x>! cancelled");
    world_stop(&w);
}

Test(background, it_is_deleted_while_it_runs) {
    struct world w;
    char id[64], request[200];

    responses_start(&w);
    begin(&w, "", id);
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "x");
    world_turns(&w, 2);
    snprintf(request, sizeof(request),
             "DELETE " RESPONSES "/%s HTTP/1.1\r\nHost: localhost\r\n\r\n", id);
    world_expect(&w, request, 200, R"("deleted":true)");
    cr_expect(w.port.r[0].cancelled);
    expect_status(&w, id, "", 404);
    world_expect(&w, request, 404, "not_found");
    world_stop(&w);
}

Test(background, its_failure_is_told_to_who_asks) {
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 16};
    struct world w;
    struct reply r;
    char id[64];

    responses_start(&w);
    begin(&w, "", id);
    world_turns(&w, 4);
    fake_reject(&w.port, 0, 503, "no room");
    world_turns(&w, 2);
    get(&w, id, "", &r);
    yyjson_doc *doc = responses_read(&r, &line);
    cr_expect_str_eq(line.data, "failed");
    yyjson_val *message = yyjson_ptr_get(yyjson_doc_get_root(doc), "/error/message");
    cr_expect(strstr(yyjson_get_str(message), "no room"));
    yyjson_doc_free(doc);
    expect_told(&w, id, "?stream=true", "failed");
    world_stop(&w);
}

Test(background, what_cannot_be_is_refused) {
    struct world w;
    struct reply r;
    char id[64];

    responses_start(&w);
    responses_refused(&w, R"("input":"a","background":true,"store":false)", 400, "invalid_value",
                      "background");
    responses_refused(&w, R"("background":true)", 400, "missing_required_parameter", "input");
    begin(&w, "", id);
    expect_status(&w, id, "?stream=true&starting_after=x", 400);
    expect_status(&w, id, "?stream=true&starting_after=-1", 400);
    w.port.script = "x";
    world_ask(&w, RESPONSES, R"({"input":"hi"})", &r);
    snprintf(id, sizeof(id), "%.29s", strstr(r.body.data, "resp_"));
    reply_deinit(&r);
    expect_status(&w, id, "?stream=true", 400);
    world_stop(&w);
    responses_init(&w);
    w.opts.max_stored = 0;
    world_start(&w);
    responses_refused(&w, R"("input":"a","background":true)", 400, "invalid_value", "background");
    world_stop(&w);
}

/* Events beyond the bytes of the store are dropped, the response is not. */
Test(background, events_are_bounded) {
    struct world w;
    struct reply r;
    char id[64], text[400];

    responses_init(&w);
    w.opts.stored_bytes = 12000;
    world_start(&w);
    begin(&w, "", id);
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    int fd = world_connect(&w);
    world_say(&w, fd, "GET " RESPONSES "/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n", id);
    world_turns(&w, 4);
    for (uint32_t i = 0; i < 100; i++) {
        char one[2] = {text[i], 0};

        fake_tokens_from(&w.port, 0, i, one);
        world_turns(&w, 1);
    }
    world_receive(&w, fd, &r);
    world_drop(&w, fd);
    cr_expect(strstr(r.body.data, "events_lost"), "%s", r.body.data);
    reply_deinit(&r);
    cr_expect_leq(w.api->store.n_logged, 12000);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 4);
    get(&w, id, "", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    expect_status(&w, id, "?stream=true", 400);
    world_stop(&w);
}

#define ECHO_BYTES 900000 /* bytes of the request that each of three events repeats */

/* Begins a response whose events are long, with @n readers of which none reads. */
static void begin_read(struct world *w, char id[64], int fd[], size_t n) {
    CLEANUP(buf_deinit) struct buf body = {.max = ECHO_BYTES + 1000};
    struct reply r;

    buf_printf(&body, BACKGROUND R"(,"tools":[{"type":"web_search_preview","junk":"%0*d"}]})",
               ECHO_BYTES, 7);
    world_ask(w, RESPONSES, body.data, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    snprintf(id, 64, "%.29s", strstr(r.body.data, "resp_"));
    reply_deinit(&r);
    world_turns(w, 4);
    fake_accept(&w->port, 0);
    for (size_t i = 0; i < n; i++) {
        fd[i] = world_connect(w);
        world_say(w, fd[i], "GET " RESPONSES "/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n",
                  id);
    }
    world_turns(w, 10);
}

/* Long events with many readers are sent in turns: what the readers get is whole, and no iteration
 * of the loop gives a reader more than the part that a turn allows. */
Test(background, readers_of_long_events_take_turns) {
    int fd[EVENT_LOG_READERS];
    struct reply r;
    struct world w;
    char id[64];

    responses_start(&w);
    begin_read(&w, id, fd, ARRAY_SIZE(fd));
    size_t before = w.api->http.payers.quota[PAYER_OUTPUT].root.used;
    fake_tokens(&w.port, 0, "Hello");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turn(&w);
    size_t after = w.api->http.payers.quota[PAYER_OUTPUT].root.used;
    cr_expect_leq(after, before + ARRAY_SIZE(fd) * (64u << 10), "%zu -> %zu", before, after);
    for (size_t i = 0; i < ARRAY_SIZE(fd); i++) {
        world_receive(&w, fd[i], &r);
        cr_expect_geq(r.body.len, 4u * ECHO_BYTES, "%zu", r.body.len);
        cr_expect_str_eq(responses_told(&r), "M<Hello> completed");
        world_drop(&w, fd[i]);
    }
    world_stop(&w);
}

/* More readers than a response may have are refused; there is room again when one leaves. */
Test(background, its_readers_are_bounded) {
    int fd[EVENT_LOG_READERS];
    struct world w;
    char id[64];

    responses_start(&w);
    begin_read(&w, id, fd, ARRAY_SIZE(fd));
    expect_status(&w, id, "?stream=true", 429);
    expect_status(&w, id, "", 200);
    world_drop(&w, fd[0]);
    world_turns(&w, 4);
    fd[0] = world_connect(&w);
    world_say(&w, fd[0], "GET " RESPONSES "/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n",
              id);
    world_turns(&w, 4);
    expect_status(&w, id, "?stream=true", 429);
    for (size_t i = 0; i < ARRAY_SIZE(fd); i++)
        world_drop(&w, fd[i]);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 4);
    world_stop(&w);
}

/* When the service stops, the response is removed and its readers get the end. */
Test(background, a_stop_ends_it) {
    struct world w;
    char id[64];

    responses_start(&w);
    begin(&w, "", id);
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "x");
    int fd = world_connect(&w);
    world_say(&w, fd, "GET " RESPONSES "/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n", id);
    world_turns(&w, 4);
    cr_expect(api_busy(w.api));
    world_stop(&w); /* asserts that nothing is left */
    close(fd);
}

/* ---- log probabilities of long answers ---- */

#define LONG 12000u /* tokens, each with its two best alternatives */
#define WANTS_TOP R"({"input":"hi","top_logprobs":2)"

/* The callback fake_port.turn, in which bytes are watched: the model writes LONG tokens, some
 * hundred at a time. */
static void write_long(struct fake_port *f, uint32_t i) {
    char part[401];

    memset(part, 'x', sizeof(part) - 1);
    part[sizeof(part) - 1] = '\0';
    if (!f->r[i].accepted)
        fake_accept(f, i);
    else if (f->r[i].n_sent < LONG)
        fake_tokens(f, i, part);
    else
        fake_finish(f, i, FINISH_STOP);
}

/* Asserts that the last message of @response has an entry for each token. */
static void expect_long(yyjson_val *response) {
    yyjson_val *list = yyjson_ptr_get(response, "/output/0/content/0/logprobs");

    cr_assert_eq(yyjson_arr_size(list), LONG);
    for (size_t i = 0; i < LONG; i += 999) {
        yyjson_val *entry = yyjson_arr_get(list, i);

        cr_expect_str_eq(yyjson_get_str(yyjson_obj_get(entry, "token")), "x");
        cr_expect_eq(yyjson_arr_size(yyjson_obj_get(entry, "top_logprobs")), 2);
    }
}

/* Reads @r like responses_read(), and asserts the same of its final response. */
static void read_long(struct reply *r) {
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 20};
    yyjson_doc *doc = responses_read(r, &line);

    expect_long(yyjson_doc_get_root(doc));
    yyjson_doc_free(doc);
}

static void start_long(struct world *w) {
    responses_init(w);
    w->opts.stored_bytes = 64 << 20;
    w->port.turn = write_long;
    world_start(w);
}

Test(background, long_log_probabilities_are_not_copied_on_the_loop) {
    struct world w;
    struct reply r;
    char id[64];

    start_long(&w);
    begin(&w, R"(,"top_logprobs":2)", id);
    world_turns(&w, 4);
    world_turns(&w, LONG / 400 + 8);
    get(&w, id, "?stream=true", &r);
    read_long(&r);
    get(&w, id, "", &r);
    read_long(&r);
    get(&w, id, "?stream=true&starting_after=5", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_stop(&w);
}

Test(background, long_log_probabilities_of_a_stream_are_not_copied_on_the_loop) {
    struct world w;
    struct reply r;

    start_long(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, WANTS_TOP R"(,"stream":true})");
    world_receive(&w, fd, &r);
    read_long(&r);
    world_drop(&w, fd);
    fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, WANTS_TOP "}");
    world_receive(&w, fd, &r);
    read_long(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* The client does not read until everything is written, so that one delta could have all. */
Test(background, a_slow_reader_gets_long_log_probabilities_in_parts) {
    static const char *const bodies[] = {
        WANTS_TOP R"(,"stream":true})",
        R"({"messages":[{"role":"user","content":"a"}],"stream":true,"logprobs":true,)"
        R"("top_logprobs":2,"tools":[{"type":"function","function":{"name":"f"}}]})"};
    struct world w;
    struct reply r;

    start_long(&w);
    w.opts.stream_buffer_bytes = 1 << 16;
    for (uint32_t i = 0; i < 2; i++) {
        int fd = world_connect(&w);
        world_post(&w, fd, i ? "/v1/chat/completions" : RESPONSES, bodies[i]);
        world_turns(&w, LONG / 400 + 100);
        world_receive(&w, fd, &r);
        if (i == 0)
            read_long(&r);
        else {
            size_t n = 0;

            for (const char *at = r.body.data; (at = strstr(at, R"("top_logprobs")")); at++)
                n++;
            cr_expect_eq(n, LONG);
            reply_deinit(&r);
        }
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* ---- logs that are stored ---- */

static struct blob *blob_of(const char *text) {
    struct buf b = {.max = 1 << 20};

    buf_add_str(&b, text);
    struct blob *out = blob_new(&b);
    cr_assert_not_null(out);
    return out;
}

/* Reads all events of @l, at most @most bytes at a time; static. */
static const char *text_of(const struct event_log *l, size_t most) {
    static char text[1000];
    struct event_place at = {0};
    struct splice part;
    size_t n = 0;

    while (event_log_read(l, &at, most, &part)) {
        cr_assert(part.len > 0 && part.len <= most && n + part.len < sizeof(text));
        memcpy(text + n, part.blob->text.data + part.from, part.len);
        n += part.len;
    }
    text[n] = 0;
    return text;
}

static struct event_log *loaded(const char *json, struct blob *echo) {
    yyjson_doc *doc = yyjson_read(json, strlen(json), 0);
    struct event_log *l = event_log_load(yyjson_doc_get_root(doc), echo);

    yyjson_doc_free(doc);
    return l;
}

/* Members of the request that events repeat are stored once, and all others with the log. */
Test(event_log, is_the_same_when_it_is_read_again) {
    static const char want[] = "event: a\ndata: "
                               R"({"x":1})"
                               "\n\nevent: b\ndata: "
                               R"({"y":other,"echo":asked!})"
                               "\n\n";
    CLEANUP(buf_deinit) struct buf json = {.max = 1 << 20};
    CLEANUP(buf_deinit) struct buf saved = {.max = 1 << 20};
    struct blob *echo = blob_of("It was asked."), *other = blob_of("another");
    struct event_log *l = event_log_new();
    struct json j = {.out = &saved};
    struct splices in = {0};

    buf_add_str(&json, R"({"x":1})");
    event_log_add(l, "a", &json, NULL);
    buf_clear(&json);
    buf_add_str(&json, R"({"y":,"echo":!})");
    cr_assert_eq(splices_add(&in, other, 2, 5, 5), 0);
    cr_assert_eq(splices_add(&in, echo, 7, 5, 13), 0);
    event_log_add(l, "b", &json, &in);
    event_log_close(l);
    cr_expect_str_eq(text_of(l, 1000), want);
    cr_assert(event_log_save(l, echo, &j));
    cr_assert_eq(j.error, 0);
    cr_expect_null(strstr(saved.data, "asked"), "%s", saved.data);
    struct event_log *again = loaded(saved.data, echo);
    cr_assert_not_null(again);
    cr_expect(again->closed);
    cr_expect_eq(again->n, 2);
    for (size_t most = 1; most < 60; most += 7)
        cr_expect_str_eq(text_of(again, most), want);
    cr_expect_eq(again->n_bytes, l->n_bytes + strlen("other"), "which is its own now");
    event_log_lose(l);
    buf_clear(&saved);
    cr_expect_not(event_log_save(l, echo, &j), "there is nothing to save");
    cr_expect_not(event_log_save(NULL, echo, &j));
    splices_deinit(&in);
    event_log_unref(l);
    event_log_unref(again);
    blob_unref(echo);
    blob_unref(other);
}

/* The database may have been changed. */
Test(event_log, what_is_no_log_is_refused) {
    static const char *const bad[] = {
        "{}",
        R"([["",0,0,0]])",
        "[[1,0,0,0]]",
        R"([["ab",3,0,1]])",   /* behind its text */
        R"([["ab",0,14,0]])",  /* behind the echo */
        R"([["ab",0,10,4]])",  /* to behind the echo */
        R"([["ab",0,0,0],[]])" /* a good one first */
    };
    struct blob *echo = blob_of("It was asked.");
    struct event_log *l;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_expect_null(loaded(bad[i], echo), "%s", bad[i]);
    cr_expect_null(loaded(R"([["ab",0,0,1]])", NULL));
    l = loaded(R"([["ab",2,10,3],["cd",0,0,0]])", echo);
    cr_assert_not_null(l);
    cr_expect_str_eq(text_of(l, 3), "abed.cd");
    event_log_unref(l);
    l = loaded("[]", NULL);
    cr_assert(l && l->n == 0);
    event_log_unref(l);
    blob_unref(echo);
}
