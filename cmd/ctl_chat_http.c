#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_value.h"
#include "base/try.h"
#include "cmd/bench_sse.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_chat.h"
#include "cmd/curl_again.h"

#define CONNECT_MS 5000
#define URL_MAX 1024
#define STEP_MS 100
#define WAIT_MAX_S 10
#define LOAD_TRIES 900u

struct chat_server {
    CURL *curl;
    char *url, *unix_path;
    struct curl_slist *headers;
    bool has_key;
    char why[CURL_ERROR_SIZE];
};

/* Adds a header, for example with the key; libcurl copies it. */
static int chat_add_header(struct chat_server *s, const char *text) {
    struct curl_slist *longer = curl_slist_append(s->headers, text);

    if (!longer)
        return -ENOMEM;
    s->headers = longer;
    return 0;
}

int chat_server_new(struct chat_server **out, const char *url, const char *unix_path,
                    const char *key) {
    CLEANUP(chat_server_freep) struct chat_server *s = calloc(1, sizeof(*s));
    CLEANUP(freep) char *auth = NULL;

    if (!s || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return -ENOMEM;
    s->url = ctl_base_url(url);
    if (!s->url || (unix_path && !(s->unix_path = strdup(unix_path))))
        return -ENOMEM;
    TRY(chat_add_header(s, "Content-Type: application/json"));
    if (key && asprintf(&auth, "Authorization: Bearer %s", key) < 0) {
        auth = NULL;
        return -ENOMEM;
    }
    s->has_key = key != NULL;
    if (key) {
        int r = chat_add_header(s, auth);

        explicit_bzero(auth, strlen(auth));
        TRY(r);
    }
    *out = STEAL(s);
    return 0;
}

struct chat_server *chat_server_free(struct chat_server *s) {
    if (!s)
        return NULL;
    curl_slist_free_all(s->headers);
    curl_easy_cleanup(s->curl);
    free(s->url);
    free(s->unix_path);
    free(s);
    return NULL;
}

void chat_answer_deinit(struct chat_answer *a) {
    buf_deinit(&a->text);
    buf_deinit(&a->reasoning);
    yyjson_doc_free(a->usage);
}

/* ---- one transfer ---- */

/* A transfer. One with a sink is a stream, whose parts go to the sink and into `answer`; any other
 * body goes into `whole`. */
struct transfer {
    struct chat_server *server;
    /* NULL: the answer is not a stream */
    const struct chat_sink *sink;
    struct chat_answer *answer;
    struct sse sse;
    /* an answer that is not a stream: JSON, or an error */
    struct buf whole;
    /* message of an error event */
    struct printable refusal;
    int64_t began_ns;
    bool is_error, done;
};

static double chat_seconds_since(int64_t ns) {
    return (double)(clock_now(clock_monotonic()) - ns) * 1e-9;
}

static int add_text_delta(struct transfer *t, yyjson_val *v, bool reasoning) {
    struct chat_answer *a = t->answer;
    size_t len = json_len(v);

    assert(t->sink && a);
    if (!yyjson_is_str(v) || len == 0)
        return 0;
    if (a->first_s == 0)
        a->first_s = chat_seconds_since(t->began_ns);
    if (t->sink->text)
        t->sink->text(t->sink->ctx, reasoning, json_text(v), json_len(v));
    return buf_add(reasoning ? &a->reasoning : &a->text, json_text(v), json_len(v));
}

/* Handles one chunk of a stream. */
static int chat_on_event(void *ctx, const char *data, size_t len) {
    struct transfer *t = ctx;
    struct chat_answer *a = t->answer;

    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        t->done = true;
        return 0;
    }
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(data, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *error = yyjson_obj_get(root, "error");
    yyjson_val *choice = yyjson_arr_get_first(yyjson_obj_get(root, "choices"));
    yyjson_val *delta = yyjson_obj_get(choice, "delta");
    const char *finish = json_cstr(yyjson_obj_get(choice, "finish_reason"));

    if (!doc)
        return -EBADMSG;
    if (error)
        t->refusal = ctl_message(error, "message");
    TRY(add_text_delta(t, yyjson_obj_get(delta, "reasoning_content"), true));
    TRY(add_text_delta(t, yyjson_obj_get(delta, "content"), false));
    if (finish)
        snprintf(a->finish, sizeof(a->finish), "%s", finish);
    a->loop_ended |= yyjson_is_true(yyjson_obj_get(choice, "loop_ended"));
    if (yyjson_is_obj(yyjson_obj_get(root, "usage"))) {
        yyjson_doc_free(a->usage);
        a->usage = STEAL(doc);
    }
    return 0;
}

/* Takes bytes of a body. Returning fewer bytes than arrived ends the transfer. */
static size_t chat_on_data(char *data, size_t size, size_t n, void *ctx) {
    struct transfer *t = ctx;
    long status = 0;
    int r;

    assert(!t->sink == !t->answer);
    curl_easy_getinfo(t->server->curl, CURLINFO_RESPONSE_CODE, &status);
    t->is_error = status / 100 != 2;
    if (t->sink && !t->is_error)
        r = sse_feed(&t->sse, data, size * n, chat_on_event, t);
    else
        r = buf_add(&t->whole, data, size * n);
    if (r < 0)
        return 0;
    return size * n;
}

/* Called by libcurl several times a second, also without data. */
static int chat_on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    struct transfer *t = ctx;

    (void)a, (void)b, (void)c, (void)d;
    return t->sink && t->sink->stop && *t->sink->stop;
}

static int chat_refused(struct transfer *t, long status, struct err *err) {
    yyjson_doc *doc = ctl_parse(t->whole.data, t->whole.len);
    struct printable why =
        ctl_message(yyjson_obj_get(yyjson_doc_get_root(doc), "error"), "message");

    yyjson_doc_free(doc);
    if (status == 401 && t->server->has_key)
        err_set(err, 0, NULL, "%s does not accept the given API key: %s", t->server->url, why.s);
    else if (status == 401)
        err_set(err, 0, NULL, "%s requires an API key: set WEFT_API_KEY or give --key-file FILE",
                t->server->url);
    else
        err_set(err, 0, NULL, "%s (status %ld)", why.s, status);
    if (status != 401)
        return CTL_REFUSED;
    return CTL_DENIED;
}

/* Returns what the end of the transfer with @code means: 0, or an error with @err. */
static int outcome(struct transfer *t, CURLcode code, struct err *err) {
    struct chat_server *s = t->server;
    long status = 0;

    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        assert(t->answer); /* only streams are ended by chat_on_progress() */
        t->answer->stopped = true;
        return CTL_OK;
    }
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST) {
        err_set(err, 0, NULL, "no weftd answers at %s (--url, --unix or $WEFT_URL)",
                s->unix_path ? s->unix_path : s->url);
        return CTL_UNREACHABLE;
    }
    if (code != CURLE_OK) {
        err_set(err, 0, NULL, "%s: the connection was lost during the answer: %s", s->url,
                s->why[0] ? s->why : curl_easy_strerror(code));
        return CTL_UNREACHABLE;
    }
    if (status / 100 != 2)
        return chat_refused(t, status, err);
    if (t->refusal.s[0]) {
        err_set(err, 0, NULL, "%s", t->refusal.s);
        return CTL_REFUSED;
    }
    if (t->sink && !t->done) {
        err_set(err, 0, NULL, "%s: the answer ended too early", s->url);
        return CTL_UNREACHABLE;
    }
    return CTL_OK;
}

static int chat_perform(struct transfer *t, const char *path, const char *body, size_t len,
                        struct err *err) {
    struct chat_server *s = t->server;
    char url[URL_MAX];

    assert(*path == '/');
    if ((size_t)snprintf(url, sizeof(url), "%s%s", s->url, path) >= sizeof(url)) {
        err_set(err, 0, NULL, "the address is too long");
        return CTL_REFUSED;
    }
    s->curl = curl_again(s->curl);
    if (!s->curl) {
        err_set(err, 0, NULL, "out of memory");
        return CTL_REFUSED;
    }
    s->why[0] = 0;
    curl_easy_setopt(s->curl, CURLOPT_URL, url);
    if (s->unix_path)
        curl_easy_setopt(s->curl, CURLOPT_UNIX_SOCKET_PATH, s->unix_path);
    if (s->unix_path || cli_is_loopback(s->url)) /* ignores the proxy that the environment names */
        curl_easy_setopt(s->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(s->curl, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(s->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(s->curl, CURLOPT_ERRORBUFFER, s->why);
    curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, chat_on_data);
    curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(s->curl, CURLOPT_XFERINFOFUNCTION, chat_on_progress);
    curl_easy_setopt(s->curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(s->curl, CURLOPT_NOPROGRESS, 0L);
    if (body) {
        curl_easy_setopt(s->curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(s->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
    }
    return outcome(t, curl_easy_perform(s->curl), err);
}

int chat_get(struct chat_server *s, const char *path, yyjson_doc **out, struct err *err) {
    struct transfer t = {.server = s, .whole = {.max = CHAT_REPLY_MAX}};
    int r = chat_perform(&t, path, NULL, 0, err);

    if (r == CTL_OK && !(*out = ctl_parse(t.whole.data, t.whole.len))) {
        err_set(err, 0, NULL, "%s: the answer to GET %s is not a JSON object", s->url, path);
        r = CTL_REFUSED;
    }
    buf_deinit(&t.whole);
    return r;
}

/* Returns true if the answer is the refusal of a server that is loading the model. */
static bool is_loading(const struct transfer *t) {
    yyjson_doc *doc = ctl_parse(t->whole.data, t->whole.len);
    yyjson_val *code = yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "error"), "code");
    bool is = yyjson_equals_str(code, "model_loading");

    yyjson_doc_free(doc);
    return is;
}

/* Waits as long as the server asks for, at most WAIT_MAX_S. Returns false if the user ends it. */
static bool wait_for_load(const struct transfer *t) {
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000};
    curl_off_t s = 0;

    curl_easy_getinfo(t->server->curl, CURLINFO_RETRY_AFTER, &s);
    int64_t n = MIN(MAX(s, 1), WAIT_MAX_S) * 1000 / STEP_MS;
    for (int64_t i = 0; i < n; i++) {
        if (t->sink->stop && *t->sink->stop)
            return false;
        nanosleep(&step, NULL);
    }
    return true;
}

/* Sends the request until the server has loaded the model: LOAD_TRIES times at most. */
static int perform_when_loaded(struct transfer *t, const char *body, size_t len, struct err *err) {
    int r = chat_perform(t, "/v1/chat/completions", body, len, err);

    for (uint32_t n = 0; r == CTL_REFUSED && n < LOAD_TRIES && is_loading(t); n++) {
        if (n == 0)
            fputs("weftctl: the model is being loaded; waiting\n", stderr);
        if (!wait_for_load(t))
            break;
        buf_clear(&t->whole);
        *err = (struct err){0};
        r = chat_perform(t, "/v1/chat/completions", body, len, err);
    }
    return r;
}

int chat_ask(struct chat_server *s, const char *body, size_t len, const struct chat_sink *sink,
             struct chat_answer *out, struct err *err) {
    struct transfer t = {.server = s, .sink = sink, .answer = out};

    buf_init(&t.whole, CHAT_REPLY_MAX);
    buf_init(&out->text, CHAT_REPLY_MAX);
    buf_init(&out->reasoning, CHAT_REPLY_MAX);
    sse_init(&t.sse);
    t.began_ns = clock_now(clock_monotonic());
    int r = perform_when_loaded(&t, body, len, err);
    out->total_s = chat_seconds_since(t.began_ns);
    sse_deinit(&t.sse);
    buf_deinit(&t.whole);
    return r;
}
