/* Anthropic's Messages API: paths, heads, errors and the frame of streams. */

#include "api/http/dialect.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/anthropic/anthropic.h"
#include "api/anthropic/input.h"
#include "api/generation/lookup.h"
#include "api/generation/writer.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"

static size_t anthropic_put_ids(const struct exchange *x, int64_t processing_ms, char *out,
                                size_t size) {
    int n = snprintf(out, size, "X-Request-Id: %s\r\nRequest-Id: %s\r\n", x->id, x->id);

    assert(n > 0 && (size_t)n < size);
    return (size_t)n;
}

static size_t put_limit(const struct limit_left *l, char *out, size_t size) {
    time_t at = time(NULL) + (time_t)(l->reset_ms / 1000 + 1);
    char reset[40];
    struct tm tm;

    strftime(reset, sizeof(reset), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
    int n = snprintf(out, size,
                     "anthropic-ratelimit-%s-limit: %.0f\r\n"
                     "anthropic-ratelimit-%s-remaining: %.0f\r\n"
                     "anthropic-ratelimit-%s-reset: %s\r\n",
                     l->what, l->limit, l->what, l->left, l->what, reset);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    return (size_t)n;
}

/* Returns true if the service cannot answer, and would not when it is asked again. */
static bool anthropic_is_broken(const struct err *err) {
    return err->status == 500 || strcmp(err->code, "model_unavailable") == 0;
}

/* Maps 503 to 529: clients of this API do not know 503, and retry 529 for minutes. */
static int anthropic_status(const struct err *err, int status) {
    if (status != 503)
        return status;
    if (anthropic_is_broken(err))
        return 500;
    return 529;
}

static const char *anthropic_type(const struct err *err) {
    if (err->status == 404)
        return "not_found_error";
    if (err->status == 413)
        return "request_too_large";
    if (anthropic_is_broken(err))
        return "api_error";
    return respond_error_type(err);
}

/* Writes an error. Claude Code shortens the conversation when it reads "prompt is too long". */
static void anthropic_put_error(struct json *j, const struct exchange *x, const struct err *err) {
    bool too_long = strcmp(err->code, "context_length_exceeded") == 0;
    char text[sizeof(err->message) + 32];

    snprintf(text, sizeof(text), "%s%s", too_long ? "prompt is too long: " : "", err->message);
    json_print(j, "{type:'error', error:{type:%s, message:%s", anthropic_type(err), text);
    if (strcmp(err->code, ANTHROPIC_NO_THREADS) == 0) /* for SDKs that rely on a server's memory */
        json_print(j, "details:{error_code:%s, unsupported:['thread']}", err->code);
    json_print(j, "}, request_id:%s}", x->id);
}

static const struct route routes[] = {
    {"/v1/messages", HTTP_POST, false, true, writer_serve, &anthropic_messages},
    {"/v1/messages/count_tokens", HTTP_POST, false, false, lookup_serve, &anthropic_count},
    {"/v1/models", HTTP_GET, false, false, anthropic_models_list_serve, NULL},
    {"/v1/models/*", HTTP_GET, false, false, anthropic_models_one_serve, NULL},
    {0},
};

static const char *const prefixes[] = {"/v1/messages", NULL};

const struct dialect anthropic_dialect = {
    .name = "anthropic",
    .prefixes = prefixes,
    .header = "anthropic-version",
    .routes = routes,
    .put_ids = anthropic_put_ids,
    .put_limit = put_limit,
    .status_of = anthropic_status,
    .put_error = anthropic_put_error,
    .stream_type = SSE_TYPE,
    .event_begin = SSE_BEGIN,
    .event_end = SSE_END,
    .error_event = "error",
    .keepalive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};
