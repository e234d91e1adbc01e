#include "api/service/trace.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api/http/dialect.h"
#include "api/http/http.h"
#include "api/http/json.h"
#include "base/text.h"
#include "base/try.h"
#include "base/util.h"

#define KIND_INTERNAL 1
#define KIND_SERVER 2
#define STATUS_ERROR 2

/* ---- reading ---- */

/* Reads 2 * @n lower-case hexadecimal digits. Returns false if they are none, or all 0. */
static bool trace_read_id(const char *text, uint8_t *out, size_t n) {
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned v = 0;

        for (size_t k = 0; k < 2; k++) {
            char c = text[2 * i + k];

            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
                return false;
            v = v * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        out[i] = (uint8_t)v;
        any |= out[i];
    }
    return any;
}

/* Reads "VV-TRACE-SPAN-FLAGS"; later versions may have more behind that. */
void trace_read_head(struct trace_parent *p, const struct http *h) {
    const char *s = http_header(h, "traceparent", NULL);
    struct trace_parent r = {0};
    uint8_t version = 0, flags = 0;
    size_t n = s ? strlen(s) : 0;

    *p = r;
    if (n < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || (s[55] && s[55] != '-'))
        return;
    bool known =
        trace_read_id(s, &version, 1) ? version != 0xff : memcmp(s, "00", 2) == 0 && n == 55;
    bool sampled = trace_read_id(s + 53, &flags, 1) && flags & 1;
    if (!known || (!flags && memcmp(s + 53, "00", 2) != 0) || !trace_read_id(s + 3, r.trace, 16) ||
        !trace_read_id(s + 36, r.span, 8))
        return;
    r.unsampled = !sampled;
    *p = r;
}

void trace_span_init(struct trace_span *s, const struct exchange *x, const char *tenant,
                     int64_t now) {
    struct timespec wall;

    assert(x->route && now >= x->started_ns);
    clock_gettime(CLOCK_REALTIME, &wall);
    *s = (struct trace_span){
        .parent = x->parent,
        .path = x->route->path,
        .method = x->route->method == HTTP_POST ? "POST" : "GET",
        .finish = text_or(x->finish, "-"),
        .status = x->status,
        .n_prompt = x->n_prompt,
        .n_cached = x->n_cached,
        .n_output = x->n_output,
        .n_resumed = x->n_resumed,
        .queue_ns = x->queue_ns,
        .ttft_ns = x->ttft_ns,
        .total_ns = now - x->started_ns,
    };
    s->start_unix_ns = wall.tv_sec * INT64_C(1000000000) + wall.tv_nsec - s->total_ns;
    snprintf(s->request_id, sizeof(s->request_id), "%s", x->id);
    snprintf(s->model, sizeof(s->model), "%s", x->model);
    snprintf(s->tenant, sizeof(s->tenant), "%s", tenant);
    snprintf(s->error, sizeof(s->error), "%s", x->code);
}

/* ---- writing ---- */

static void trace_put_id(struct json *j, const char *key, const uint8_t *id, size_t n) {
    char text[33];

    assert(n > 0 && 2 * n < sizeof(text));
    hex_write(text, id, n);
    json_print(j, "%s:%s", key, text);
}

static void trace_put_text(struct json *j, const char *key, const char *value) {
    if (*value)
        json_print(j, "{key:%s, value:{stringValue:%s}}", key, value);
}

/* Writes a number as a string, as protobuf's JSON has those of 64 bits. */
static void trace_put_number(struct json *j, const char *key, int64_t value) {
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, value);
    json_print(j, "{key:%s, value:{intValue:%s}}", key, text);
}

static void put_finish(struct json *j, const char *finish) {
    json_print(j,
               "{key:'gen_ai.response.finish_reasons', "
               "value:{arrayValue:{values:[{stringValue:%s}]}}}",
               finish);
}

static void trace_put_time(struct json *j, const char *key, int64_t ns) {
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, ns);
    json_print(j, "%s:%s", key, text);
}

/* Returns the gen_ai.operation.name of a route. */
static const char *operation_of(const char *path) {
    static const struct {
        const char *part, *name;
    } known[] = {{"embed", "embeddings"}, {"rerank", "rerank"},  {"score", "rerank"},
                 {"chat", "chat"},        {"responses", "chat"}, {"messages", "chat"},
                 {"", "text_completion"}};
    size_t i = 0;

    while (!strstr(path, known[i].part))
        i++;
    return known[i].name;
}

/* Returns the code of the error, or the status if that is an error, or "". */
static const char *trace_error(const struct trace_span *s, char out[12]) {
    if (*s->error)
        return s->error;
    if (s->status < 400)
        return "";
    snprintf(out, 12, "%d", s->status);
    return out;
}

static void put_attributes(struct json *j, const struct trace_origin *from,
                           const struct trace_span *s) {
    char status[12];

    json_print(j, "attributes:[");
    trace_put_text(j, "gen_ai.operation.name", operation_of(s->path));
    trace_put_text(j, "gen_ai.provider.name", "weft");
    trace_put_text(j, "gen_ai.request.model", s->model);
    trace_put_text(j, "gen_ai.response.model", s->model);
    if (*s->finish != '-')
        put_finish(j, s->finish);
    if (s->n_prompt) {
        trace_put_number(j, "gen_ai.usage.input_tokens", s->n_prompt);
        trace_put_number(j, "gen_ai.usage.cache_read.input_tokens", s->n_cached);
        trace_put_number(j, "gen_ai.usage.output_tokens", s->n_output);
    }
    trace_put_text(j, "server.address", from->host);
    if (from->port)
        trace_put_number(j, "server.port", from->port);
    trace_put_text(j, "http.request.method", s->method);
    trace_put_text(j, "http.route", s->path);
    trace_put_number(j, "http.response.status_code", s->status);
    trace_put_text(j, "error.type", trace_error(s, status));
    trace_put_text(j, "weft.request_id", s->request_id);
    trace_put_text(j, "weft.tenant", s->tenant);
    if (s->n_resumed)
        trace_put_number(j, "weft.resumed", s->n_resumed);
    json_close(j, ']');
}

/* Writes the common beginning of all spans, without their attributes. */
static void open_span(struct json *j, const uint8_t *trace, const uint8_t *id,
                      const uint8_t *parent, const char *name, int kind, int64_t from_ns,
                      int64_t until_ns) {
    static const uint8_t none[8];

    json_open(j, '{');
    trace_put_id(j, "traceId", trace, 16);
    trace_put_id(j, "spanId", id, 8);
    if (memcmp(parent, none, 8) != 0)
        trace_put_id(j, "parentSpanId", parent, 8);
    json_print(j, "name:%s, kind:%d", name, kind);
    trace_put_time(j, "startTimeUnixNano", from_ns);
    trace_put_time(j, "endTimeUnixNano", until_ns);
}

/* Writes the spans of a request and of its phases. A phase that was not reached is left out, and
 * the one before it lasts until the end. */
static int put_span(struct json *j, const struct trace_origin *from, const struct trace_span *s) {
    static const char *const phase[] = {"queue", "prefill", "decode"};
    int64_t at[] = {0, s->queue_ns, s->queue_ns ? s->ttft_ns : 0, s->total_ns};
    uint8_t ids[16 + 4 * 8], *trace = ids, *id = ids + 16;
    char name[128];

    if (getrandom(ids, sizeof(ids), 0) != sizeof(ids))
        return -EIO;
    if (memcmp(s->parent.span, (uint8_t[8]){0}, 8) != 0)
        memcpy(trace, s->parent.trace, 16);
    snprintf(name, sizeof(name), "%s%s%s", operation_of(s->path), *s->model ? " " : "", s->model);
    open_span(j, trace, id, s->parent.span, name, KIND_SERVER, s->start_unix_ns,
              s->start_unix_ns + s->total_ns);
    put_attributes(j, from, s);
    if (s->status >= 500)
        json_print(j, "status:{code:%d}", STATUS_ERROR);
    json_close(j, '}');
    for (size_t i = 0; i < 3 && (i == 0 ? at[1] : at[i]); i++) {
        int64_t until = i < 2 && at[i + 1] ? at[i + 1] : s->total_ns;

        open_span(j, trace, id + 8 * (i + 1), id, phase[i], KIND_INTERNAL, s->start_unix_ns + at[i],
                  s->start_unix_ns + until);
        json_close(j, '}');
    }
    return 0;
}

int trace_write(struct buf *out, const struct trace_origin *from, const struct trace_span *spans,
                uint32_t n) {
    struct json j = {.out = out};

    assert(n > 0);
    json_print(&j, "{resourceSpans:[{resource:{attributes:[");
    trace_put_text(&j, "service.name", "weft");
    trace_put_text(&j, "service.version", WEFT_VERSION);
    trace_put_text(&j, "host.name", from->host);
    trace_put_number(&j, "process.pid", from->pid);
    json_print(&j, "]}, scopeSpans:[{scope:{name:'weft'}, spans:[");
    for (uint32_t i = 0; i < n; i++)
        TRY(put_span(&j, from, &spans[i]));
    json_print(&j, "]}]}]}");
    return j.error;
}
