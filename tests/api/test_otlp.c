/* Spans for a collector of OpenTelemetry: their text, and their fate if it does not accept them.
 * The collector is a thread behind a UNIX socket. */

#include <criterion/criterion.h>
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/service/otlp.h"
#include "api/service/trace.h"
#include "world.h"

static char path[64], endpoint[80];
static struct {
    int fd;
    pthread_t thread;
    pthread_mutex_t lock;
    /* status lines and heads; the last one is repeated; "": none */
    const char *answers[8];
    size_t n_requests;
    /* the last request */
    struct buf last;
} collector = {.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Reads a request to the end of its body. */
static void read_request(int fd, struct buf *out) {
    char part[4096], *body;
    ssize_t n;

    while ((n = recv(fd, part, sizeof(part), 0)) > 0) {
        cr_assert_eq(buf_add(out, part, (size_t)n), 0);
        const char *length = strstr(out->data, "Content-Length: ");
        body = strstr(out->data, "\r\n\r\n");
        if (body && length && strlen(body + 4) >= strtoul(length + 16, NULL, 10))
            return;
    }
}

static void *serve(void *ctx) {
    int fd;

    while ((fd = accept(collector.fd, NULL, NULL)) >= 0) {
        CLEANUP(buf_deinit) struct buf b = {.max = 8 << 20};
        char answer[200];

        read_request(fd, &b);
        pthread_mutex_lock(&collector.lock);
        size_t i = MIN(collector.n_requests, ARRAY_SIZE(collector.answers) - 1);
        collector.n_requests++;
        while (i > 0 && !collector.answers[i])
            i--;
        int n = snprintf(answer, sizeof(answer), "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n",
                         collector.answers[i]);
        if (*collector.answers[i])
            (void)!send(fd, answer, (size_t)n, MSG_NOSIGNAL);
        buf_deinit(&collector.last);
        collector.last = b;
        b = (struct buf){0};
        pthread_mutex_unlock(&collector.lock);
        close(fd);
    }
    return ctx;
}

static void begin(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    snprintf(path, sizeof(path), "/tmp/weft-test-otlp-%d", getpid());
    snprintf(endpoint, sizeof(endpoint), "unix:%s", path);
    strcpy(a.sun_path, path);
    collector.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(collector.fd, (struct sockaddr *)&a, sizeof(a)), 0);
    cr_assert_eq(listen(collector.fd, 8), 0);
    collector.answers[0] = "200 OK";
    cr_assert_eq(pthread_create(&collector.thread, NULL, serve, NULL), 0);
}

static void end(void) {
    shutdown(collector.fd, SHUT_RDWR);
    pthread_join(collector.thread, NULL);
    close(collector.fd);
    unlink(path);
    buf_deinit(&collector.last);
}

TestSuite(otlp, .init = begin, .fini = end, .timeout = 60);

static size_t n_requests(void) {
    pthread_mutex_lock(&collector.lock);
    size_t n = collector.n_requests;
    pthread_mutex_unlock(&collector.lock);
    return n;
}

static struct trace_span span(void) {
    return (struct trace_span){.path = "/v1/chat/completions",
                               .finish = "stop",
                               .method = "POST",
                               .request_id = "r1",
                               .model = "tiny",
                               .tenant = "team",
                               .status = 200,
                               .n_prompt = 7,
                               .n_cached = 5,
                               .n_output = 3,
                               .start_unix_ns = 1000,
                               .queue_ns = 10,
                               .ttft_ns = 30,
                               .total_ns = 60};
}

/* Replaces random ids: hexadecimal strings of 16 or 32 digits except @but. */
static void blank(struct buf *b, const char *but) {
    for (char *s = b->data; (s = strstr(s, R"(Id":")")); s++) {
        char *id = s + 5;
        size_t n = strspn(id, "0123456789abcdef");

        if ((n == 16 || n == 32) && id[n] == '"' && strncmp(id, but, n) != 0)
            memset(id, 'X', n);
    }
}

#define X16 "XXXXXXXXXXXXXXXX"
#define TRACE "0102030405060708090a0b0c0d0e0f10"
#define ATTR(key, kind, value) R"({"key":")" key R"(","value":{")" kind R"(":")" value R"("}})"
#define TEXT(key, value) ATTR(key, "stringValue", value)
#define NUMBER(key, value) ATTR(key, "intValue", value)
#define TIMES(from, until) R"("startTimeUnixNano":")" from R"(","endTimeUnixNano":")" until R"(")"
#define PHASE(name, from, until)                                                                   \
    R"(,{"traceId":")" X16 X16 R"(","spanId":")" X16 R"(","parentSpanId":")" X16                   \
    R"(","name":")" name R"(","kind":1,)" TIMES(from, until) "}"

static void expect_spans(const struct trace_span *s, const char *want) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    const struct trace_origin from = {.host = "h", .port = 80, .pid = 42};

    cr_assert_eq(trace_write(&b, &from, s, 1), 0);
    blank(&b, TRACE);
    const char *spans = strstr(b.data, R"("spans":[)");
    cr_assert(spans);
    *strstr(b.data, "]}]}]}") = 0;
    cr_expect_str_eq(spans + 9, want, "%s\nwanted\n%s", spans + 9, want);
}

Test(otlp, a_request_is_a_span_with_phases) {
    static const char want[] =
        R"({"traceId":")" X16 X16 R"(","spanId":")" X16 R"(","name":"chat tiny","kind":2,")"
        R"(startTimeUnixNano":"1000","endTimeUnixNano":"1060","attributes":[)"
        R"({"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},)"
        R"({"key":"gen_ai.provider.name","value":{"stringValue":"weft"}},)"
        R"({"key":"gen_ai.request.model","value":{"stringValue":"tiny"}},)"
        R"({"key":"gen_ai.response.model","value":{"stringValue":"tiny"}},)"
        R"({"key":"gen_ai.response.finish_reasons","value":{)"
        R"("arrayValue":{"values":[{"stringValue":"stop"}]}}},)"
        R"({"key":"gen_ai.usage.input_tokens","value":{"intValue":"7"}},)"
        R"({"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"5"}},)"
        R"({"key":"gen_ai.usage.output_tokens","value":{"intValue":"3"}},)"
        R"({"key":"server.address","value":{"stringValue":"h"}},)"
        R"({"key":"server.port","value":{"intValue":"80"}},)"
        R"({"key":"http.request.method","value":{"stringValue":"POST"}},)"
        R"({"key":"http.route","value":{"stringValue":"/v1/chat/completions"}},)"
        R"({"key":"http.response.status_code","value":{"intValue":"200"}},)"
        R"({"key":"weft.request_id","value":{"stringValue":"r1"}},)"
        R"({"key":"weft.tenant","value":{"stringValue":"team"}})"
        "]}" PHASE("queue", "1000", "1010") PHASE("prefill", "1010", "1030")
            PHASE("decode", "1030", "1060");
    struct trace_span s = span();

    expect_spans(&s, want);
}

/* Members of stages that the request has not reached are left out. */
Test(otlp, a_request_that_failed_is_an_error) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    static const struct trace_origin none = {.host = ""};
    struct trace_span s = span();

    s.finish = "-";
    s.status = 503;
    s.n_prompt = 0;
    s.n_resumed = 2;
    s.ttft_ns = 0;
    s.model[0] = s.tenant[0] = 0;
    for (uint8_t i = 0; i < 16; i++)
        s.parent.trace[i] = (uint8_t)(i + 1);
    s.parent.span[7] = 9;
    cr_assert_eq(trace_write(&b, &none, &s, 1), 0);
    blank(&b, TRACE);
    cr_expect(strstr(b.data, R"({"traceId":")" TRACE R"(","spanId":")" X16
                             R"(","parentSpanId":")" X16 R"(","name":"chat","kind":2,)"),
              "%s", b.data);
    cr_expect(strstr(b.data, R"(},{"key":"error.type","value":{"stringValue":"503"}},)"));
    cr_expect(strstr(b.data, NUMBER("weft.resumed", "2") R"(],"status":{"code":2}})"), "%s",
              b.data);
    cr_expect(strstr(b.data, R"("queue","kind":1,)" TIMES("1000", "1010")));
    cr_expect(strstr(b.data, R"("prefill","kind":1,)" TIMES("1010", "1060")));
    cr_expect_not(strstr(b.data, "decode") || strstr(b.data, "finish_reasons") ||
                  strstr(b.data, "usage") || strstr(b.data, "server.") ||
                  strstr(b.data, "request.model") || strstr(b.data, "weft.tenant"));
    s.queue_ns = 0;
    s.status = 400;
    strcpy(s.error, "no_model");
    buf_clear(&b);
    cr_assert_eq(trace_write(&b, &none, &s, 1), 0);
    cr_expect(strstr(b.data, TEXT("error.type", "no_model")));
    cr_expect_not(strstr(b.data, "queue") || strstr(b.data, R"("status":{)"));
}

Test(otlp, the_operation_is_that_of_the_route) {
    static const char *const rows[][2] = {
        {"/v1/embeddings", "embeddings"},
        {"/v1/rerank", "rerank"},
        {"/v1/score", "rerank"},
        {"/api/chat", "chat"},
        {"/v1/responses", "chat"},
        {"/v1/messages", "chat"},
        {"/v1/completions", "text_completion"},
    };
    struct trace_span s = span();

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
        char want[60];

        s.path = rows[i][0];
        cr_assert_eq(trace_write(&b, &(struct trace_origin){0}, &s, 1), 0);
        snprintf(want, sizeof(want), R"("name":"%s tiny","kind":2)", rows[i][1]);
        cr_expect(strstr(b.data, want), "%s: %s", rows[i][0], b.data);
    }
}

Test(otlp, endpoints_have_two_forms) {
    static const char *const good[] = {"http://a", "https://a:1/b", "http://[::1]:99999/",
                                       "unix:/a"};
    static const char *const bad[] = {"",          "a:1",        "http://",    "http://:1",
                                      "http://a:", "http://a:x", "http://a b", "http://a:123456",
                                      "unix:a",    "ftp://a"};
    char text[900];

    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        struct err err = {0};

        cr_expect_eq(otlp_check(good[i], &err), 0, "%s: %s", good[i], err.message);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct err err = {0};

        cr_expect_lt(otlp_check(bad[i], &err), 0, "%s", bad[i]);
        cr_expect(strstr(err.message, "otlp-endpoint: must be http[s]://"), "%s", err.message);
    }
    for (int extra = 0; extra < 2; extra++) { /* the longest path, host and socket */
        struct err err;

        memset(text, 'x', sizeof(text));
        memcpy(text, "http://a/", 9);
        text[8 + 511 + extra] = 0;
        cr_expect_eq(otlp_check(text, &err) == 0, !extra);
        memset(text, 'x', sizeof(text));
        memcpy(text, "http://", 7);
        text[7 + 255 + extra] = 0;
        cr_expect_eq(otlp_check(text, &err) == 0, !extra);
        memset(text, 'x', sizeof(text));
        memcpy(text, "unix:/", 6);
        text[5 + 107 + extra] = 0;
        cr_expect_eq(otlp_check(text, &err) == 0, !extra);
    }
}

/* Waits until the numbers of exported and dropped spans are as given. */
static void await(const struct otlp *o, uint64_t n_exported, uint64_t n_dropped) {
    uint64_t exported = 0, waiting = 0, dropped = 0;

    for (int i = 0; i < 1000 && (exported != n_exported || dropped != n_dropped); i++) {
        usleep(10000);
        otlp_counts(o, &exported, &waiting, &dropped);
    }
    cr_expect_eq(exported, n_exported);
    cr_expect_eq(dropped, n_dropped);
}

Test(otlp, a_batch_is_posted) {
    struct otlp *o = NULL;
    struct trace_span s = span();
    char why[OTLP_WHY] = "x";
    uint64_t exported, waiting, dropped;

    cr_assert_eq(otlp_new(&o, endpoint), 0);
    otlp_set_port(o, 8080);
    for (int i = 0; i < 3; i++)
        otlp_add(o, &s);
    otlp_counts(o, &exported, &waiting, &dropped);
    cr_expect_eq(waiting, 3, "others are waited for");
    await(o, 3, 0);
    cr_expect_eq(n_requests(), 1);
    cr_expect_eq(strncmp(collector.last.data, "POST /v1/traces HTTP/1.1\r\n", 26), 0);
    cr_expect(strstr(collector.last.data, "\r\nHost: localhost\r\n"));
    cr_expect(strstr(collector.last.data, "\r\nContent-Type: application/json\r\n"));
    cr_expect(strstr(collector.last.data, "\r\nUser-Agent: weft/"));
    cr_expect(strstr(collector.last.data, NUMBER("server.port", "8080")));
    cr_expect_not(otlp_news(o, why), "the first batch was taken, as was expected");
    for (int i = 0; i < 257; i++) /* more than a batch: the first batch is sent at once */
        otlp_add(o, &s);
    await(o, 260, 0);
    cr_expect_eq(n_requests(), 3);
    otlp_add(o, &s);
    cr_expect_null(otlp_free(o), "what waits is sent at the end");
    cr_expect_eq(n_requests(), 4);
    otlp_free(NULL);
}

Test(otlp, a_refused_batch_is_dropped_and_a_busy_collector_asked_again) {
    static const char *const answers[] = {"400 Bad", "503 Busy\r\nRetry-After: 1", "429 Busy",
                                          "204 Taken"};
    struct otlp *o = NULL;
    struct trace_span s = span();
    char why[OTLP_WHY] = "";

    memcpy(collector.answers, answers, sizeof(answers));
    cr_assert_eq(otlp_new(&o, endpoint), 0);
    otlp_add(o, &s);
    await(o, 0, 1);
    cr_expect(otlp_news(o, why));
    cr_expect_str_eq(why, "status 400");
    cr_expect_not(otlp_news(o, why), "it is told once");
    otlp_add(o, &s);
    await(o, 1, 1);
    cr_expect_eq(n_requests(), 4);
    cr_expect(otlp_news(o, why));
    cr_expect_str_eq(why, "", "it takes them again");
    otlp_free(o);
}

Test(otlp, one_that_is_not_there_is_named) {
    struct otlp *o = NULL;
    struct trace_span s = span();
    char why[OTLP_WHY] = "";

    collector.answers[0] = "";
    cr_assert_eq(otlp_new(&o, endpoint), 0);
    otlp_add(o, &s);
    for (int i = 0; i < 500 && !otlp_news(o, why); i++)
        usleep(10000);
    cr_expect_str_eq(why, "no answer");
    otlp_free(o);
    cr_assert_eq(otlp_new(&o, "unix:/nonexistent/otlp"), 0);
    for (int i = 0; i < 2048 + 256 + 5; i++)
        otlp_add(o, &s);
    for (int i = 0; i < 500 && !otlp_news(o, why); i++)
        usleep(10000);
    cr_expect_str_eq(why, "it cannot be reached");
    uint64_t exported, waiting, dropped;
    otlp_counts(o, &exported, &waiting, &dropped);
    cr_expect(dropped >= 5 && dropped <= 256 + 5, "%u", (unsigned)dropped);
    cr_expect_eq(waiting + dropped, 2048 + 256 + 5);
    otlp_free(o);
}

/* A collector that takes the connection and never answers does not delay the end of the daemon by
 * more than two seconds; POST_MS is ten. */
Test(otlp, a_silent_collector_does_not_delay_the_end) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct otlp *o = NULL;
    struct trace_span s = span();
    char silent[sizeof(a.sun_path) + 8];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s-silent", path);
    snprintf(silent, sizeof(silent), "unix:%s", a.sun_path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    cr_assert_eq(listen(fd, 8), 0);
    cr_assert_eq(otlp_new(&o, silent), 0);
    otlp_add(o, &s);
    int peer = accept(fd, NULL, NULL); /* the thread posts */
    int64_t begin = clock_now(clock_monotonic());
    otlp_free(o);
    double took_s = (double)(clock_now(clock_monotonic()) - begin) / 1e9;
    cr_expect_lt(took_s, 5, "%f s", took_s);
    close(peer);
    close(fd);
    unlink(a.sun_path);
}

/* Sends a request with header @parent, and returns what the collector got. *@port: that of the
 * daemon's address. */
static const char *traced(const char *parent, int *port) {
    static char text[8192];
    struct world w;
    struct reply r;
    struct err err;

    world_init(&w);
    w.opts.otlp_endpoint = endpoint;
    world_start(&w);
    cr_assert_eq(api_listen_tcp(w.api, "127.0.0.1", 0, false, port, &err), 0);
    w.port.script = "ab";
    int fd = world_connect(&w);
    world_say(&w, fd,
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ntraceparent: %s\r\n"
              "Content-Type: application/json\r\nContent-Length: 29\r\n\r\n"
              R"({"model":"tiny","prompt":"h"})",
              parent);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
    snprintf(text, sizeof(text), "%s", collector.last.data ? collector.last.data : "");
    buf_clear(&collector.last);
    return text;
}

Test(otlp, a_span_has_the_parent_of_the_request) {
    static const char *const known[] = {
        "00-" TRACE "-00000000000000aa-01", "00-" TRACE "-00000000000000aa-03",
        "01-" TRACE "-00000000000000aa-01-more", "fe-" TRACE "-00000000000000aa-01"};
    static const char *const malformed[] = {
        "00-" TRACE "-00000000000000aa-01-",
        "ff-" TRACE "-00000000000000aa-01",
        "00-" TRACE "-0000000000000000-01",
        "00-00000000000000000000000000000000-00000000000000aa-01",
        "00-" TRACE "-00000000000000aA-01",
        "00-" TRACE "-00000000000000aa-0",
        "0x-" TRACE "-00000000000000aa-01",
        "00-" TRACE "_00000000000000aa-01",
        "00-" TRACE "-00000000000000aa_01",
        "01-" TRACE "-00000000000000aa-01x",
        "00-" TRACE "-00000000000000aa-0g"};

    char origin[100];
    int port;

    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        const char *text = traced(known[i], &port);

        cr_expect(strstr(text, R"({"traceId":")" TRACE R"(",)"), "%s: %s", known[i], text);
        cr_expect(strstr(text, R"("parentSpanId":"00000000000000aa","name":)"));
        snprintf(origin, sizeof(origin), NUMBER("server.port", "%d"), port);
        cr_expect(strstr(text, origin), "%s", text);
    }
    for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
        const char *text = traced(malformed[i], &port);

        cr_expect(strstr(text, R"("traceId":")") && !strstr(text, TRACE), "%s: %s", malformed[i],
                  text);
    }
    cr_expect_str_eq(traced("00-" TRACE "-00000000000000aa-00", &port), "", "it is not sampled");
}
