#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "api/http/http.h"
#include "world.h"

#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"

/* Feeds @head and a body of @n bytes in pieces of 60,000, and looks at the room that it has. */
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

/* So that no step of its growth copies all of it on the loop. */
Test(http, a_large_body_gets_its_room_at_once) {
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

/* Sends @text on a connection of its own and receives one answer. */
static void raw(struct world *w, const char *text, struct reply *r) {
    int fd = world_connect(w);

    world_send(w, fd, text, strlen(text));
    world_receive(w, fd, r);
    world_drop(w, fd);
}

static void expect_answer(struct world *w, const char *request, int status, const char *needle) {
    struct reply r;

    raw(w, request, &r);
    cr_expect_eq(r.status, status, "%.200s: %d, not %d: %s", request, r.status, status,
                 r.body.data ? r.body.data : "");
    cr_expect(r.body.len == 0 || strstr(r.body.data, needle), "%.200s: %s has no %s", request,
              r.body.data, needle);
    reply_deinit(&r);
}

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* Also at the end of the text, behind which nothing is read. */
Test(http, escapes_are_decoded_whole_or_refused) {
    static const struct {
        const char *text, *is; /* NULL: it is refused */
    } cases[] = {
        {"", ""},        {"/a%2Fb%41", "/a/bA"}, {"%e4%C3", "\xe4\xc3"}, {"a%2541", "a%41"},
        {"%", NULL},     {"/%4", NULL},          {"%4g", NULL},          {"% 4", NULL},
        {"a%00b", NULL}, {"%1F", NULL},          {"a\nb", NULL},         {"%%41", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *s = strdup(cases[i].text);
        bool ok = http_decode(s);

        cr_expect_eq(ok, cases[i].is != NULL, "%s", cases[i].text);
        cr_expect(!ok || strcmp(s, cases[i].is) == 0, "%s: %s", cases[i].text, s);
        free(s);
    }
}

Test(http, health_follows_the_service) {
    struct world w;
    struct reply r;
    char v[64];

    world_init(&w);
    w.starting = true;
    world_start(&w);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 503);
    cr_expect_str_eq(r.body.data, "{\"status\":\"unavailable\",\"state\":\"starting\"}");
    cr_expect_str_eq(reply_header(&r, "retry-after", v, sizeof(v)), "2");
    reply_deinit(&r);
    api_set_health(w.api, API_SERVING);
    api_worker_up(api_first_model(w.api), NULL);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data, "{\"status\":\"ok\",\"state\":\"serving\"}");
    reply_deinit(&r);
    api_worker_down(api_first_model(w.api));
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: a.localhost\r\n\r\n", 503, "replacing");
    api_worker_up(api_first_model(w.api), NULL);
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 200, "serving");
    world_stop(&w);
}

Test(http, every_answer_has_its_headers) {
    struct world w;
    struct reply r;
    char v[128];

    started(&w);
    raw(&w, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n\r\n", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(reply_header(&r, "x-request-id", v, sizeof(v)), "mine-1");
    cr_expect_str_eq(reply_header(&r, "content-type", v, sizeof(v)), "application/json");
    cr_expect(*reply_header(&r, "openai-processing-ms", v, sizeof(v)));
    cr_expect(*reply_header(&r, "date", v, sizeof(v)));
    cr_expect_str_eq(reply_header(&r, "access-control-allow-origin", v, sizeof(v)), "");
    cr_expect_str_eq(r.body.data,
                     "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\","
                     "\"created\":1700000000,\"owned_by\":\"weft\",\"root\":\"tiny\","
                     "\"parent\":null,\"aliases\":[\"alias\"],\"max_model_len\":512,"
                     "\"capabilities\":[\"completion\",\"embedding\"]}]}");
    reply_deinit(&r);
    w.model.n_ctx_train = 4096;
    w.model.n_vocab = 300;
    w.model.vocab_type = 2;
    w.model.n_embd = 64;
    w.model.n_params = 1u << 20;
    w.model.tensor_bytes = 5000000000;
    raw(&w, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
    cr_expect(strstr(r.body.data,
                     ",\"meta\":{\"vocab_type\":2,\"n_vocab\":300,\"n_ctx_train\":4096,"
                     "\"n_embd\":64,\"n_params\":1048576,\"size\":5000000000}"),
              "%s", r.body.data);
    reply_deinit(&r);
    raw(&w, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a b\xff\r\n\r\n", &r);
    cr_expect_eq(strncmp(reply_header(&r, "x-request-id", v, sizeof(v)), "req_", 4), 0);
    reply_deinit(&r);
    world_stop(&w);
}

/* What a page of @origin is told: the status, and whether it may read the answer. */
static void page(struct world *w, const char *method, const char *origin, int status, bool reads) {
    char text[300], v[128];
    struct reply r;

    snprintf(text, sizeof(text), "%s /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\n\r\n",
             method, origin);
    raw(w, text, &r);
    cr_expect_eq(r.status, status, "%s %s: %d", method, origin, r.status);
    cr_expect_str_eq(reply_header(&r, "access-control-allow-origin", v, sizeof(v)),
                     reads ? origin : "");
    cr_expect_str_eq(reply_header(&r, "access-control-allow-methods", v, sizeof(v)),
                     reads && *method == 'O' ? "GET, POST, DELETE, OPTIONS" : "");
    reply_deinit(&r);
}

Test(http, pages_of_known_origins_may_read_answers) {
    static const char *const mine[] = {"https://chat.example", NULL}, *const all[] = {"*", NULL};
    static const char *const *const lists[] = {NULL, mine, all};

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        struct world w;
        struct reply r;
        char v[128];

        world_init(&w);
        w.opts.cors_origins = lists[i];
        world_start(&w);
        page(&w, "GET", "http://localhost:3000", 200, true);
        page(&w, "OPTIONS", "http://127.0.0.1:3000", 200, true);
        page(&w, "DELETE", "http://localhost:3000", 405, true);
        page(&w, "OPTIONS", "https://chat.example", i >= 1 ? 200 : 403, i >= 1);
        page(&w, "GET", "https://chat.example", i >= 1 ? 200 : 403, i >= 1);
        page(&w, "GET", "http://chat.example", i >= 2 ? 200 : 403, i >= 2);
        page(&w, "OPTIONS", "https://chat.example.evil", i >= 2 ? 200 : 403, i >= 2);
        page(&w, "OPTIONS", "null", i >= 2 ? 200 : 403, i >= 2);
        raw(&w,
            "OPTIONS /completion HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
            "Access-Control-Request-Method: POST\r\n\r\n",
            &r);
        cr_expect_eq(r.status, 200);
        cr_expect_eq(!*reply_header(&r, "access-control-allow-origin", v, sizeof(v)), i == 0);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(http, models_are_found_by_name_and_alias) {
    struct world w;

    started(&w);
#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"
    expect_answer(&w, GET("/v1/models/tiny"), 200, "\"id\":\"tiny\"");
    expect_answer(&w, GET("/v1/models/alias"), 200, "\"id\":\"tiny\"");
    expect_answer(&w, GET("/v1/models/%74iny?x=1"), 200, "\"id\":\"tiny\"");
    expect_answer(&w, GET("/v1/models/other"), 404,
                  "{\"error\":{\"message\":\"The model `other` does not exist.\",\"type\":"
                  "\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}");
    expect_answer(&w, GET("/"), 200, "is running");
    expect_answer(&w, GET("/version"), 200, "\"version\":\"0.1.0\"");
    world_stop(&w);
}

Test(http, what_is_not_served_is_refused_by_name) {
    static const struct {
        const char *request;
        int status;
        const char *needle;
    } table[] = {
        {GET("/nothing"), 404, "This path does not exist.\""},
        {GET("/v1/models/"), 404, "\"code\":\"not_found\""},
        {GET("/v1/chat/completion"), 404, "exist. Did you mean /v1/chat/completions?"},
        {GET("//v1/models"), 404, "two slashes follow each other in it."},
        {GET("/v1/v1/models"), 400, "/v1 is in it twice. Leave it out of the client's base URL."},
        {GET("/v1/v1/nothing"), 404, "This path does not exist.\""},
        {GET("/messages"), 404, "there is one with /v1 before it. Add that to the client's base"},
        {GET("/v1/../health"), 404, "not_found"},
        {GET("/HEALTH"), 404, "not_found"},
        {GET("/v1/models/%zz"), 400, "malformed: '%' needs two hexadecimal digits"},
        {GET("/v1/models/%00"), 400, "bad_target"},
        {GET("http://localhost"), 200, "is running"},
        {GET("HTTP://localhost:8080/health"), 200, "serving"},
        {GET("http://localhost?q"), 200, "is running"},
        {GET("http://localhost/nothing"), 404, "not_found"},
        {GET("http://evil.example/health"), 421, "misdirected"},
        {GET("http://localhost:1@evil.example/health"), 421, "misdirected"},
        {"GET http://localhost/health HTTP/1.1\r\n\r\n", 400, "bad_host"},
        {"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200, "serving"},
        {GET("ftp://localhost/health"), 400, "The request target must be a path."},
        {"GET /health HTTP/1.1\r\n\r\n", 400, "exactly one Host header, not 0."},
        {"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n", 400, "Host header, not 2."},
        {"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "misdirected"},
        {"GET /health HTTP/1.1\r\nHost: localhost:80x\r\n\r\n", 421, "misdirected"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403,
         "forbidden_origin"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://10.0.0.1\r\n\r\n", 403,
         "forbidden_origin"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n", 403, "forbidden"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[::1]:3000\r\n\r\n", 200, "ok"},
        {"DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "This path only accepts GET"},
        {"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "GET, HEAD"},
        {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, ""},
        {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403,
         "forbidden_origin"},
        {"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "not_found"},
        {"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"},
        {"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: "
         "Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
         "dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         426, "upgrade_required"},
        {"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"},
        {"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad_target"},
        {"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed_http"},
        {"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "Only HTTP/1.1 and HTTP/1.0 are"},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version"},
        {"\x16\x03\x01\x02", 400, "malformed_http"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n x: folded\r\n\r\n", 400, "malformed_http"},
        {"GET /health HTTP/1.1\r\nHo st: localhost\r\n\r\n", 400, "Malformed HTTP request: "},
        {"GET /health HTTP/1.1\nHost: localhost\n\n", 400, "malformed_http"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
         "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         400, "malformed_http"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
         "Content-Length: 3\r\n\r\nabc",
         400, "malformed_http"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\nab", 400, "malform"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n", 400,
         "malformed_http"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
         400, "malformed_http"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
         501, "The only supported Transfer-Encoding is chunked."},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n"
         "Transfer-Encoding: chunked\r\n\r\n",
         501, "not_implemented"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked \r\n\r\n"
         "2\r\n{}\r\n0\r\n\r\n",
         400, "missing_required_parameter"},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
         "Connection: Upgrade\r\n\r\n",
         200, "ok"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
         "Content-Length: 2\r\n\r\n{}",
         415, "must be JSON, with Content-Type: application/json."},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: br\r\n"
         "Content-Length: 2\r\n\r\n{}",
         415, "unsupported_media_type"},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n{}",
         417, "The only supported expectation is 100-continue."},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_answer(&w, table[i].request, table[i].status, table[i].needle);
    world_stop(&w);
}

Test(http, a_wrong_method_is_told_the_right_ones) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    raw(&w, "GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
    cr_expect_eq(r.status, 405);
    cr_expect_str_eq(reply_header(&r, "allow", v, sizeof(v)), "POST");
    reply_deinit(&r);
    world_stop(&w);
}

Test(http, head_is_get_without_the_body) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};

    started(&w);
    int fd = world_connect(&w);
    world_say(&w, fd, "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    while (world_read_until(&w, fd, &b, "never"))
        ;
    cr_expect(strstr(b.data, "Content-Length: 33\r\n"), "%s", b.data);
    cr_expect_eq(strcmp(b.data + b.len - 4, "\r\n\r\n"), 0);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http, limits_hold) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 24};

    world_init(&w);
    w.opts.max_body_bytes = 4096;
    world_start(&w);
    buf_add_str(&b, "GET /");
    for (int i = 0; i < 9000; i++)
        buf_add_char(&b, 'a');
    buf_add_str(&b, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect_answer(&w, b.data, 414, "The request target is longer than ");
    buf_clear(&b);
    buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 17000; i++)
        buf_add_char(&b, 'a');
    expect_answer(&w, b.data, 431, "The request header is larger than ");
    buf_clear(&b);
    buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 100; i++)
        buf_printf(&b, "X%d: y\r\n", i);
    buf_add_str(&b, "\r\n");
    expect_answer(&w, b.data, 431, "The request has more than ");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4097\r\n\r\n");
    expect_answer(&w, b.data, 413, "larger than 4096 bytes (max-body).");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                    "Content-Length: 4097\r\n\r\n");
    expect_answer(&w, b.data, 413, "body_too_large");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                    "\r\n1001\r\n");
    for (int i = 0; i < 4097; i++)
        buf_add_char(&b, ' ');
    expect_answer(&w, b.data, 413, "body_too_large");
    world_stop(&w);
}

Test(http, slow_requests_end_in_time) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.header_timeout_ms = 30;
    w.opts.body_timeout_ms = 30;
    w.opts.idle_timeout_ms = 30;
    world_start(&w);
    int fd = world_connect(&w); /* says nothing: closed without a word */
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 0);
    cr_expect(r.closed);
    world_drop(&w, fd);
    fd = world_connect(&w); /* bytes do not extend the time */
    for (int i = 0; i < 10; i++) {
        world_send(&w, fd, "G", i == 0);
        world_send(&w, fd, "E", i == 1);
        world_send(&w, fd, "T", i == 2);
        world_send(&w, fd, " ", i == 3);
        usleep(4000);
        world_turn(&w);
    }
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 408);
    reply_deinit(&r);
    world_drop(&w, fd);
    fd = world_connect(&w);
    world_say(&w, fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 408);
    cr_expect(strstr(r.body.data, "request_timeout"));
    reply_deinit(&r);
    world_drop(&w, fd);
    fd = world_connect(&w); /* idle after an answer */
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_receive(&w, fd, &r);
    cr_expect(r.closed);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http, pipelined_requests_are_answered_in_order) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    char *at;

    started(&w);
    int fd = world_connect(&w);
    for (int i = 0; i < 20; i++)
        buf_printf(&b, "GET /v1/models/m%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i);
    buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    world_send(&w, fd, b.data, b.len);
    buf_clear(&b);
    while (world_read_until(&w, fd, &b, "never"))
        ;
    at = b.data;
    for (int i = 0; i < 20; i++) {
        char needle[32];

        snprintf(needle, sizeof(needle), "`m%d`", i);
        at = strstr(at, needle);
        cr_assert(at, "%s is missing", needle);
    }
    cr_expect(strstr(at, "serving"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http, every_split_of_a_request_is_the_same_request) {
    static const char request[] =
        "POST /v1/models/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2;ext=1\r\n{}\r\n0\r\nTrailer: x\r\n\r\n"
        "GET /v1/models/tiny HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct world w;

    started(&w);
    for (size_t cut = 1; cut < sizeof(request) - 1; cut++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
        int fd = world_connect(&w);

        world_send(&w, fd, request, cut);
        world_turn(&w);
        world_send(&w, fd, request + cut, sizeof(request) - 1 - cut);
        world_read_until(&w, fd, &b, "1700000000");
        cr_expect(strstr(b.data, "HTTP/1.1 405") == b.data, "cut at %zu: %s", cut, b.data);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

Test(http, http_1_0_is_closed_unless_asked) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    raw(&w, "GET /health HTTP/1.0\r\n\r\n", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    reply_deinit(&r);
    raw(&w, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &r);
    cr_expect_str_eq(reply_header(&r, "connection", v, sizeof(v)), "keep-alive");
    reply_deinit(&r);
    world_stop(&w);
}

Test(http, one_connection_too_many_is_told_so) {
    struct world w;
    struct reply r;
    int fd[3];

    world_init(&w);
    w.opts.max_connections = 2;
    world_start(&w);
    for (int i = 0; i < 3; i++) { /* two are busy: nothing can be closed to make room */
        fd[i] = world_connect(&w);
        if (i < 2)
            world_post(&w, fd[i], "/v1/chat/completions", HELLO);
        world_turns(&w, 5);
    }
    world_receive(&w, fd[2], &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "too_many_connections"));
    reply_deinit(&r);
    fake_accept(&w.port, 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd[0], &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    for (int i = 0; i < 3; i++)
        world_drop(&w, fd[i]);
    world_stop(&w);
}

Test(http, unix_socket_serves_and_needs_no_known_host) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect_unix(&w);
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: anything\r\n\r\n");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http, unknown_origins_on_a_unix_socket_are_told_nothing) {
    static const char *const origins[][2] = {{"http://localhost:3000", "http://localhost:3000"},
                                             {"https://evil.example", ""}};
    struct world w;
    struct reply r;
    char v[128];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(origins); i++) {
        int fd = world_connect_unix(&w);

        world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: a\r\nOrigin: %s\r\n\r\n", origins[i][0]);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(reply_header(&r, "access-control-allow-origin", v, sizeof(v)),
                         origins[i][1]);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

Test(http, configured_hosts_are_known) {
    static const char *const hosts[] = {"weft.example", NULL}, *const all[] = {"*", NULL};
    struct world w;

    world_init(&w);
    w.opts.hosts = hosts;
    world_start(&w);
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: WEFT.example:8080\r\n\r\n", 200, "ok");
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: x.weft.example\r\n\r\n", 421, "misdirected");
    world_stop(&w);
    world_init(&w);
    w.opts.hosts = all;
    world_start(&w);
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: x.y\r\n\r\n", 200, "ok");
    world_stop(&w);
}

Test(http, draining_answers_idle_connections_once) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    int fd = world_connect(&w);
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    api_set_health(w.api, API_DRAINING);
    api_drain(w.api);
    world_turns(&w, 3);
    world_post(&w, fd, "/v1/chat/completions", "{}");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "\"code\":\"draining\""));
    cr_expect_str_eq(reply_header(&r, "retry-after", v, sizeof(v)), "2");
    cr_expect(r.closed);
    reply_deinit(&r);
    close(fd);
    world_stop(&w);
}

/* A proxy sends a request on a connection that it made just before. */
Test(http, draining_serves_the_first_request_of_a_connection) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    int fd = world_connect(&w);
    world_turns(&w, 3);
    api_drain(w.api);
    world_post(&w, fd, "/v1/completions", "{\"prompt\":[1],\"max_tokens\":1}");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(r.closed);
    reply_deinit(&r);
    close(fd);
    world_stop(&w);
}

Test(http, leaving_serves_what_is_on_its_way_and_closes) {
    struct world w;
    struct reply r;
    int fd[2];

    started(&w);
    for (int i = 0; i < 2; i++)
        fd[i] = world_connect(&w);
    world_say(&w, fd[1], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd[1], &r);
    reply_deinit(&r);
    api_leave(w.api);
    world_turns(&w, 3);
    world_say(&w, fd[0], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd[0], &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    reply_deinit(&r);
    api_drain(w.api);
    world_post(&w, fd[1], "/v1/chat/completions", "{}");
    world_receive(&w, fd[1], &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    close(fd[0]);
    close(fd[1]);
    world_stop(&w);
}

/* ---- keys ---- */

static void write_keys(const char *path, const char *text) {
    FILE *f = fopen(path, "w");

    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

Test(auth, keys_are_asked_for_and_reloaded) {
    struct world w;
    struct err err = {0};
    char path[64];

    snprintf(path, sizeof(path), "/tmp/weft-test-keys-%d", getpid());
    write_keys(path, "# keys\nalice:sk-alice\n\nsk-plain\n");
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
#define WITH(header) "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" header "\r\n\r\n"
    expect_answer(&w, WITH("X: y"), 401,
                  "\"type\":\"authentication_error\",\"param\":null,\"code\":\"invalid_api_key\"");
    expect_answer(&w, WITH("Authorization: Bearer sk-alice"), 200, "tiny");
    expect_answer(&w, WITH("authorization: bearer  sk-plain"), 200, "tiny");
    expect_answer(&w, WITH("x-api-key: sk-alice"), 200, "tiny");
    expect_answer(&w, WITH("Authorization: Bearer sk-alic"), 401, "Incorrect");
    expect_answer(&w, WITH("Authorization: Bearer sk-alicex"), 401, "Incorrect");
    expect_answer(&w, WITH("Authorization: Bearer alice:sk-alice"), 401, "Incorrect");
    expect_answer(&w, WITH("Authorization: Bearer"), 401, "No API key was given. Send ");
    expect_answer(&w, WITH("Authorization: Basic sk-alice"), 401, "No API key was given. Send ");
    expect_answer(&w, WITH("Authorization: Basic YQ\r\nx-api-key: sk-alice"), 200, "tiny");
    expect_answer(&w, WITH("x-api-key:"), 401, "Incorrect API key provided.");
    expect_answer(&w, WITH("Authorization: Bearer sk-alice\r\nAuthorization: Bearer sk-plain"), 401,
                  "More than one");
    expect_answer(&w, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    write_keys(path, "bob:sk-bob\n");
    cr_expect_eq(api_reload_keys(w.api, &err), 0);
    expect_answer(&w, WITH("Authorization: Bearer sk-alice"), 401, "Incorrect");
    expect_answer(&w, WITH("Authorization: Bearer sk-bob"), 200, "tiny");
    char wide[1100] = "alice:";
    memset(wide + 6, 'a', sizeof(wide) - 7);
    const char *const wrong[][2] = {
        {"has space\n", "line 1: must be NAME:KEY or KEY"},
        {"# none\n", "the file contains no key; write NAME:KEY or KEY on a line"},
        {wide, "line 1: is longer than 1022 bytes or contains a NUL"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        write_keys(path, wrong[i][0]);
        cr_expect_lt(api_reload_keys(w.api, &err), 0);
        cr_expect(strstr(err.message, wrong[i][1]), "%s", err.message);
    }
    expect_answer(&w, WITH("Authorization: Bearer sk-bob"), 200, "tiny");
    unlink(path);
    cr_expect_lt(api_reload_keys(w.api, &err), 0);
    world_stop(&w);
}

/* ---- bodies ---- */

Test(body, chunks_and_expectations_are_understood) {
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

Test(body, what_all_clients_send_is_bounded_together) {
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
    for (int i = 0; i < 10; i++) { /* what the others had is free again */
        fd[0] = world_connect(&w);
        world_say(&w, fd[0],
                  "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60015\r\n\r\n"
                  "{\"prompt\":\"abc\"%s}",
                  half + 1);
        world_receive(&w, fd[0], &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd[0]);
    }
    world_stop(&w);
}

Test(body, a_pipelined_request_waits_for_the_answer_before_it) {
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

Test(body, too_many_pipelined_bytes_close_after_the_answer) {
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

Test(body, http_1_0_gets_a_stream_that_ends_with_the_connection) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true}";

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

/* ---- listeners ---- */

Test(listen, what_cannot_be_listened_on_is_said) {
    struct world w;
    struct err err = {0};
    int port;

    started(&w);
    cr_expect_lt(api_listen_tcp(w.api, "127.0.0.1", w.tcp_port, false, &port, &err), 0);
    cr_expect(strstr(err.message, "in use"), "%s", err.message);
    cr_expect_lt(api_listen_tcp(w.api, "not-an-address", 1, false, &port, &err), 0);
    cr_expect(strstr(err.message, "must be an address"), "%s", err.message);
    cr_expect_lt(api_listen_unix(w.api, w.path, &err), 0);
    cr_expect_eq(access(w.path, F_OK), 0, "a socket in use is not touched");
    cr_expect_lt(api_listen_unix(w.api, "/no/such/folder/x", &err), 0);
    char path[300];
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = 0;
    cr_expect_lt(api_listen_unix(w.api, path, &err), 0);
    cr_expect_lt(api_listen_fd(w.api, 12345, false, &err), 0);
    world_stop(&w);
}

Test(listen, a_stale_socket_file_is_replaced_and_a_file_is_not) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct world w;
    struct err err = {0};

    started(&w);
    snprintf(sa.sun_path, sizeof(sa.sun_path), "/tmp/weft-test-stale-%d", getpid());
    unlink(sa.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    close(fd); /* as after a crash: the file stays */
    cr_expect_eq(api_listen_unix(w.api, sa.sun_path, &err), 0, "%s", err.message);
    world_stop(&w);
    write_keys(sa.sun_path, "a file\n");
    started(&w);
    cr_expect_lt(api_listen_unix(w.api, sa.sun_path, &err), 0);
    cr_expect_eq(access(sa.sun_path, F_OK), 0);
    unlink(sa.sun_path);
    world_stop(&w);
}

Test(listen, an_inherited_socket_and_ipv6_serve) {
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof(sa);
    struct world w;
    struct reply r;
    struct err err = {0};
    int port = 0;

    started(&w);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    cr_assert_eq(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *)&sa, &len);
    cr_expect_eq(api_listen_fd(w.api, fd, false, &err), 0, "%s", err.message);
    w.tcp_port = ntohs(sa.sin_port);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    if (api_listen_tcp(w.api, "::1", 0, false, &port, &err) == 0) /* where there is IPv6 */
        cr_expect_gt(port, 0);
    world_stop(&w);
}
