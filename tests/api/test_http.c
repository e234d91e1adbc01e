#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http/http.h"
#include "world.h"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* Escapes at the end of the text are decoded without reading behind it. */
Test(http, escapes_are_decoded_whole_or_refused) {
    static const struct {
        /* NULL: the text is refused */
        const char *text, *is;
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
    struct api_stats s;
    struct reply r;
    char v[64];

    world_init(&w);
    w.starting = true;
    world_start(&w);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 503);
    cr_expect_str_eq(r.body.data, R"({"status":"unavailable","state":"starting"})");
    cr_expect_str_eq(reply_header(&r, "retry-after", v, sizeof(v)), "2");
    reply_deinit(&r);
    api_set_health(w.api, API_SERVING);
    api_worker_up(api_first_model(w.api), NULL);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data, R"({"status":"ok","state":"serving"})");
    reply_deinit(&r);
    api_worker_down(api_first_model(w.api));
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: a.localhost\r\n\r\n", 503, "replacing");
    world_expect(&w, "GET /ping HTTP/1.1\r\nHost: a.localhost\r\n\r\n", 503, "replacing");
    api_stats(w.api, &s);
    cr_expect_eq(s.n_server_errors + s.n_rejected, 0, "a state is no failure");
    cr_expect_eq(s.n_ok, s.n_requests);
    api_worker_up(api_first_model(w.api), NULL);
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 200, "serving");
    world_stop(&w);
}

Test(http, every_answer_has_its_headers) {
    static const char *const tags[] = {"chat", "small", NULL};
    struct world w;
    struct reply r;
    char v[128];

    started(&w);
    world_raw(&w, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n\r\n", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(reply_header(&r, "x-request-id", v, sizeof(v)), "mine-1");
    cr_expect_str_eq(reply_header(&r, "content-type", v, sizeof(v)), "application/json");
    cr_expect(*reply_header(&r, "openai-processing-ms", v, sizeof(v)));
    cr_expect(*reply_header(&r, "date", v, sizeof(v)));
    cr_expect_str_eq(reply_header(&r, "access-control-allow-origin", v, sizeof(v)), "");
    cr_expect_str_eq(r.body.data, R"({"object":"list","data":[{"id":"tiny","object":"model",)"
                                  R"("created":1700000000,"owned_by":"weft","root":"tiny",)"
                                  R"("parent":null,"aliases":["tiny","alias"],"max_model_len":512,)"
                                  R"("capabilities":["completion","embedding"]}]})");
    reply_deinit(&r);
    w.model.tags = tags;
    w.model.n_ctx_train = 4096;
    w.model.n_vocab = 300;
    w.model.vocab_type = 2;
    w.model.n_embd = 64;
    w.model.n_params = 1u << 20;
    w.model.tensor_bytes = 5000000000;
    world_raw(&w, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
    cr_expect(strstr(r.body.data, R"("alias"],"tags":["chat","small"],"max_model_len)"), "%s",
              r.body.data);
    cr_expect(strstr(r.body.data, R"(,"meta":{"vocab_type":2,"n_vocab":300,"n_ctx":512,)"
                                  R"("n_ctx_train":4096,)"
                                  R"("n_embd":64,"n_params":1048576,"size":5000000000})"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_raw(&w, "GET /health HTTP/1.1\r\nHost: localhost \t\r\nX-Request-Id: mine-2 \t \r\n\r\n",
              &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(reply_header(&r, "x-request-id", v, sizeof(v)), "mine-2");
    reply_deinit(&r);
    world_raw(&w, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a b\xff\r\n\r\n", &r);
    cr_expect_eq(strncmp(reply_header(&r, "x-request-id", v, sizeof(v)), "req_", 4), 0);
    reply_deinit(&r);
    for (int n = 63; n <= 64; n++) { /* the longest, and one that is too long */
        char request[200], longest[80];

        snprintf(longest, sizeof(longest), "%0*d", n, 7);
        snprintf(request, sizeof(request),
                 "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\n\r\n", longest);
        world_raw(&w, request, &r);
        reply_header(&r, "x-request-id", v, sizeof(v));
        cr_expect_eq(strcmp(v, longest) == 0, n == 63, "%s", v);
        cr_expect_eq(strncmp(v, "req_", 4) == 0, n == 64, "%s", v);
        if (n == 63)
            reply_deinit(&r);
    }
    reply_deinit(&r);
    world_stop(&w);
}

/* Asserts the answer to a page of @origin: the status, and whether the page may read it. */
static void page(struct world *w, const char *method, const char *origin, int status, bool reads) {
    char text[300], v[128];
    struct reply r;

    snprintf(text, sizeof(text), "%s /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\n\r\n",
             method, origin);
    world_raw(w, text, &r);
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
        world_raw(
            &w,
            "OPTIONS /completion HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
            "Access-Control-Request-Method: POST\r\n\r\n",
            &r);
        cr_expect_eq(r.status, 200);
        cr_expect_eq(!*reply_header(&r, "access-control-allow-origin", v, sizeof(v)), i == 0);
        reply_deinit(&r);
        world_stop(&w);
    }
}

/* Returns the answer to a question of a browser that asks for @origin and for a private network if
 * @value is not NULL; static. */
static const char *private_network(struct world *w, const char *origin, const char *value) {
    static char v[128];
    char text[400];
    struct reply r;

    snprintf(text, sizeof(text),
             "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\n"
             "Access-Control-Request-Method: GET\r\n%s%s%s\r\n",
             origin, value ? "Access-Control-Request-Private-Network: " : "", value ? value : "",
             value ? "\r\n" : "");
    world_raw(w, text, &r);
    reply_header(&r, "access-control-allow-private-network", v, sizeof(v));
    reply_deinit(&r);
    return v;
}

/* A page on the internet that calls a server in a private network. */
Test(http, known_origins_may_call_a_private_network) {
    static const char *const mine[] = {"https://chat.example", NULL};
    char v[128];
    struct reply r;
    struct world w;

    world_init(&w);
    w.opts.cors_origins = mine;
    world_start(&w);
    cr_expect_str_eq(private_network(&w, mine[0], "true"), "true");
    cr_expect_str_eq(private_network(&w, mine[0], "false"), "");
    cr_expect_str_eq(private_network(&w, mine[0], NULL), "");
    cr_expect_str_eq(private_network(&w, "https://other.example", "true"), "");
    world_raw(&w,
              "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
              "Access-Control-Request-Private-Network: true\r\n\r\n",
              &r);
    cr_expect_str_eq(reply_header(&r, "access-control-allow-private-network", v, sizeof(v)), "");
    reply_deinit(&r);
    world_stop(&w);
}

Test(http, models_are_found_by_name_and_alias) {
    struct world w;

    started(&w);
#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"
    world_expect(&w, GET("/v1/models/tiny"), 200, R"("id":"tiny")");
    world_expect(&w, GET("/v1/models/alias"), 200, R"("id":"tiny")");
    world_expect(&w, GET("/v1/models/%74iny?x=1"), 200, R"("id":"tiny")");
    world_expect(&w, GET("/v1/models/other"), 404,
                 R"({"error":{"message":"The model `other` does not exist.","type":)"
                 R"("invalid_request_error","param":"model","code":"model_not_found"}})");
    world_expect(&w, GET("/"), 200, "is running");
    world_expect(&w, GET("/version"), 200, R"("version":"0.2.0")");
    world_stop(&w);
}

Test(http, what_is_not_served_is_refused_by_name) {
    static const struct {
        const char *request;
        int status;
        const char *needle;
    } table[] = {
        {GET("/nothing"), 404, R"(This path does not exist.")"},
        {GET("/v1/models/"), 200, R"("object":"list")"},
        {GET("/v1/chat/completion"), 404, "exist. Did you mean /v1/chat/completions?"},
        {GET("/v1"), 404, "exist. Did you mean /v1/chat/completions?"},
        {GET("/v1/chat"), 404, "exist. Did you mean /v1/chat/completions?"},
        {GET("/chat"), 404, "exist. Did you mean /v1/chat/completions?"},
        {GET("//v1/models"), 404, "two slashes follow each other in it."},
        {GET("/v1/v1/models"), 400, "/v1 is in it twice. Leave it out of the client's base URL."},
        {GET("/v1/v1/nothing"), 404, R"(This path does not exist.")"},
        {GET("/messages"), 404, "there is one with /v1 before it. Add that to the client's base"},
        {GET("/v1/api/tags"), 404, "there is one without /v1. Leave that out of the client's base"},
        {GET("/v1/nothing"), 404, R"(This path does not exist.")"},
        {GET("/v1/../health"), 404, "not_found"},
        {GET("/HEALTH"), 404, "not_found"},
        {GET("/v1/models/%zz"), 400, "malformed: '%' needs two hexadecimal digits"},
        {GET("/v1/models/%00"), 400, "bad_target"},
        {GET("/v1/models/%0A"), 400, "and control characters are not allowed."},
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
        world_expect(&w, table[i].request, table[i].status, table[i].needle);
    world_stop(&w);
}

Test(http, a_wrong_method_is_told_the_right_ones) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    world_raw(&w, "GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
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
    world_expect(&w, b.data, 414, "The request target is longer than ");
    buf_clear(&b);
    buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 17000; i++)
        buf_add_char(&b, 'a');
    world_expect(&w, b.data, 431, "The request header is larger than ");
    buf_add_str(&b, "\r\n\r\n"); /* is complete in the same read */
    world_expect(&w, b.data, 431, "The request header is larger than ");
    buf_clear(&b);
    buf_add_str(&b, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 100; i++)
        buf_printf(&b, "X%d: y\r\n", i);
    buf_add_str(&b, "\r\n");
    world_expect(&w, b.data, 431, "The request has more than ");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4097\r\n\r\n");
    world_expect(&w, b.data, 413, "larger than 4096 bytes (max-body).");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                    "Content-Length: 4097\r\n\r\n");
    world_expect(&w, b.data, 413, "body_too_large");
    buf_clear(&b);
    buf_add_str(&b, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                    "\r\n1001\r\n");
    for (int i = 0; i < 4097; i++)
        buf_add_char(&b, ' ');
    world_expect(&w, b.data, 413, "body_too_large");
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
    int fd = world_connect(&w); /* a client that sends nothing is closed without an answer */
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

/* The front is stopped for longer than its deadlines, as with its machine, while a client sends the
 * rest of what it has begun: that was in time, however much it is. */
Test(http, what_came_while_the_front_was_away_is_in_time) {
    enum { LEN = 150000 };
    static const char head[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 150000\r\n\r\n";
    static const size_t sent_before[] = {0, 20, sizeof(head) - 1, sizeof(head) + 1000};
    CLEANUP(buf_deinit) struct buf all = {.max = 1 << 20};
    struct world w;
    struct reply r;

    world_init(&w);
    w.model.max_context = 1 << 20;
    w.opts.header_timeout_ms = w.opts.body_timeout_ms = w.opts.idle_timeout_ms = 100;
    world_start(&w);
    buf_printf(&all, R"(%s{"content":"a"%*s})", head, LEN - 15, "");
    cr_assert_eq(all.len, sizeof(head) - 1 + LEN);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(sent_before); i++) {
        size_t n = sent_before[i / 2];
        int fd = world_connect(&w);

        if (i % 2) { /* the connection is kept alive */
            world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            world_receive(&w, fd, &r);
            reply_deinit(&r);
        }
        world_send(&w, fd, all.data, n);
        world_turns(&w, 3);
        cr_assert_eq(send(fd, all.data + n, all.len - n, 0), (ssize_t)(all.len - n));
        usleep(150000);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200, "%zu: %d %.200s", i, r.status, r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
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
    world_raw(&w, "GET /health HTTP/1.0\r\n\r\n", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    reply_deinit(&r);
    world_raw(&w, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &r);
    cr_expect_str_eq(reply_header(&r, "connection", v, sizeof(v)), "keep-alive");
    reply_deinit(&r);
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
    struct reply r;
    char path[64], v[16];

    snprintf(path, sizeof(path), "/tmp/weft-test-keys-%d", getpid());
    write_keys(path, "# keys\nalice:sk-alice\n\nsk-plain\n");
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
#define WITH(header) "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" header "\r\n\r\n"
    world_expect(&w, WITH("X: y"), 401,
                 R"("type":"authentication_error","param":null,"code":"invalid_api_key")");
    world_raw(&w, WITH("X: y"), &r);
    cr_expect_str_eq(reply_header(&r, "x-should-retry", v, sizeof(v)), "false");
    reply_deinit(&r);
    world_expect(&w, WITH("Authorization: Bearer sk-alice"), 200, "tiny");
    world_expect(&w, WITH("authorization: bearer  sk-plain"), 200, "tiny");
    world_expect(&w, WITH("x-api-key: sk-alice"), 200, "tiny");
    world_expect(&w, WITH("Authorization: Bearer sk-alic"), 401, "Incorrect");
    world_expect(&w, WITH("Authorization: Bearer sk-alicex"), 401, "Incorrect");
    world_expect(&w, WITH("Authorization: Bearer alice:sk-alice"), 401, "Incorrect");
    world_expect(&w, WITH("Authorization: Bearer"), 401, "No API key was given. Send ");
    world_expect(&w, WITH("Authorization: Basic sk-alice"), 401, "No API key was given. Send ");
    world_expect(&w, WITH("Authorization: Basic YQ\r\nx-api-key: sk-alice"), 200, "tiny");
    world_expect(&w, WITH("x-api-key:"), 401, "Incorrect API key provided.");
    world_expect(&w, WITH("Authorization: Bearer sk-alice\r\nAuthorization: Bearer sk-plain"), 401,
                 "More than one");
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    write_keys(path, "bob:sk-bob\n");
    cr_expect_eq(world_reload_keys(&w, &err), 0);
    world_expect(&w, WITH("Authorization: Bearer sk-alice"), 401, "Incorrect");
    world_expect(&w, WITH("Authorization: Bearer sk-bob"), 200, "tiny");
    char wide[1100] = "alice:";
    memset(wide + 6, 'a', sizeof(wide) - 7);
    const char *const wrong[][2] = {
        {"has space\n", ":1: must be NAME:KEY or KEY"},
        {"# none\n", ": contains no key: weftctl key new NAME FILE adds one"},
        {wide, ":1: is longer than 1022 bytes or contains a NUL"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        write_keys(path, wrong[i][0]);
        cr_expect_lt(world_reload_keys(&w, &err), 0);
        cr_expect(strstr(err.message, wrong[i][1]), "%s", err.message);
    }
    world_expect(&w, WITH("Authorization: Bearer sk-bob"), 200, "tiny");
    unlink(path);
    cr_expect_lt(world_reload_keys(&w, &err), 0);
    world_stop(&w);
}

/* ---- listeners ---- */
