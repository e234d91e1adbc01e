#include "cmd/bench_http.h"

#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/json_value.h"
#include "base/text.h"
#include "base/try.h"
#include "cmd/bench_poll.h"
#include "cmd/bench_sse.h"
#include "cmd/curl_again.h"

#define REPLY_MAX ((size_t)64 << 20) /* most bytes of a response that is not streamed */
#define SPARE_MAX 256u /* most handles kept for later requests, since a new one costs much memory */

/* A request under way, in bench_http.running; q->transfer is this transfer. */
struct http_transfer {
    struct bench_request *q;
    CURL *easy;
    /* headers of this request alone; NULL: bench_http.headers */
    struct curl_slist *headers;
    struct sse sse;
    /* body that is no event stream */
    struct buf reply;
    /* known: the type of the body is known; events: it is an event stream */
    bool known, events;
    /* times of sending and of the first byte of the response; 0: not yet */
    int64_t sent_ns, head_ns;
    /* finished: a finish_reason arrived; done: [DONE] arrived */
    bool finished, done;
    char curl_error[CURL_ERROR_SIZE];
    struct http_transfer *next, *prev;
};

/* n_running is the length of the list `running`; spare handles keep their connections for the next
 * requests. */
struct bench_http {
    CURLM *multi;
    struct bench_poll poll;
    CURL *spare[SPARE_MAX];
    uint32_t n_spare;
    struct curl_slist *headers;
    char *base, *post_url, *api_key;
    double timeout_s;
    uint32_t n_running;
    struct http_transfer *running;
};

const char *outcome_name(enum outcome o) {
    static const char *const names[] = {
        [OUTCOME_OK] = "ok",         [OUTCOME_REJECTED] = "rejected", [OUTCOME_HTTP] = "http",
        [OUTCOME_STREAM] = "stream", [OUTCOME_PROTOCOL] = "protocol", [OUTCOME_NETWORK] = "network",
    };

    assert((size_t)o < ARRAY_SIZE(names));
    return names[o];
}

void bench_request_init(struct bench_request *q) {
    *q = (struct bench_request){.prompt_tokens = -1, .cached_tokens = -1, .output_tokens = -1};
    buf_init(&q->body, (size_t)64 << 20);
    buf_init(&q->text, (size_t)64 << 20);
}

void bench_request_deinit(struct bench_request *q) {
    assert(!q->transfer);
    buf_deinit(&q->body);
    buf_deinit(&q->text);
    samples_deinit(&q->gaps);
}

void bench_request_reset(struct bench_request *q) {
    struct bench_request old = *q;

    assert(!q->transfer);
    q->body = (struct buf){0};
    bench_request_deinit(q);
    bench_request_init(q);
    q->body = old.body;
    q->stream = old.stream;
    q->keep_text = old.keep_text;
    q->due_ns = old.due_ns;
    q->api_key = old.api_key;
    q->session = old.session;
    q->done = old.done;
    q->ctx = old.ctx;
}

static void bench_http_fail(struct bench_request *q, enum outcome o, const char *why) {
    if (q->outcome != OUTCOME_OK)
        return; /* the first reason counts */
    q->outcome = o;
    openai_copy_text(q->error, sizeof(q->error), why);
}

/* Takes over usage, end and error from an event or a whole reply. */
static void bench_http_merge_part(struct http_transfer *t, const struct openai_part *part) {
    struct bench_request *q = t->q;

    t->finished |= part->finished;
    if (part->prompt_tokens >= 0)
        q->prompt_tokens = part->prompt_tokens;
    if (part->cached_tokens >= 0)
        q->cached_tokens = part->cached_tokens;
    if (part->output_tokens >= 0)
        q->output_tokens = part->output_tokens;
    if (part->error[0])
        bench_http_fail(q, OUTCOME_STREAM, part->error);
}

/* Takes one event of the stream. Returns 0 or -ENOMEM; a malformed event sets the outcome of the
 * request. */
static int handle_event(void *ctx, const char *data, size_t len) {
    struct http_transfer *t = ctx;
    struct bench_request *q = t->q;
    int64_t now = bench_now_ns();
    struct openai_part part;

    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        t->done = true;
        return 0;
    }
    assert(!q->first_ns == !q->n_pieces && q->last_ns <= now);
    int r = openai_parse(data, len, &q->text, &part);
    if (r == -EBADMSG) {
        bench_http_fail(q, OUTCOME_PROTOCOL, "an event is not a JSON object");
        return 0;
    }
    if (r < 0)
        return r;
    bench_http_merge_part(t, &part);
    if (part.n_text) {
        q->n_pieces++;
        if (!q->first_ns)
            q->first_ns = now;
        else
            r = samples_add(&q->gaps, (double)(now - q->last_ns) * 1e-9);
        q->last_ns = now;
    }
    if (!q->keep_text)
        buf_clear(&q->text);
    return r;
}

/* Takes bytes of a body. The first ones decide whether it is an event stream. */
static size_t on_write(char *data, size_t size, size_t n, void *ctx) {
    struct http_transfer *t = ctx;
    int r;

    assert(t->q->transfer == t);
    if (!t->known) {
        const char *type = NULL;
        long status = 0;

        curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type);
        t->events = status == 200 && type && strncasecmp(type, "text/event-stream", 17) == 0;
        t->known = true;
    }
    if (t->events)
        r = sse_feed(&t->sse, data, size * n, handle_event, t);
    else
        r = buf_add(&t->reply, data, size * n);
    if (r < 0)
        bench_http_fail(t->q, OUTCOME_PROTOCOL, strerror(-r));
    if (r < 0)
        return 0;
    return size * n;
}

/* Notes the time of sending, when the connection is made. Called again if the connection turns out
 * to be closed. */
static int on_send(void *ctx, char *ip, char *local_ip, int port, int local_port) {
    struct http_transfer *t = ctx;

    t->sent_ns = bench_now_ns();
    return CURL_PREREQFUNC_OK;
}

static size_t on_header(char *data, size_t size, size_t n, void *ctx) {
    struct http_transfer *t = ctx;

    if (!t->head_ns)
        t->head_ns = bench_now_ns();
    return size * n;
}

/* Handles a body that was no event stream: an error, or the answer to a request without
 * "stream". */
static void finish_reply(struct http_transfer *t) {
    struct bench_request *q = t->q;
    struct openai_part part = {.error = ""};
    bool json = openai_parse(t->reply.len ? t->reply.data : "", t->reply.len, &q->text, &part) == 0;

    if (q->status == 200) {
        if (!json)
            bench_http_fail(q, OUTCOME_PROTOCOL, "the response is not a JSON object");
        else if (q->stream)
            bench_http_fail(q, OUTCOME_PROTOCOL,
                            "a stream was requested, but the response is not one");
        else
            bench_http_merge_part(t, &part);
    } else {
        char text[200];

        snprintf(text, sizeof(text), "HTTP %d%s%s", q->status, part.error[0] ? ": " : "",
                 part.error);
        bench_http_fail(q, q->status == 429 || q->status == 503 ? OUTCOME_REJECTED : OUTCOME_HTTP,
                        text);
    }
}

/* Determines the outcome of a request whose transfer has ended. */
static void bench_http_judge(struct http_transfer *t, CURLcode code) {
    struct bench_request *q = t->q;
    curl_off_t retry_s = 0;
    long status = 0;

    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry_s);
    q->answer_s = t->head_ns > t->sent_ns ? (double)(t->head_ns - t->sent_ns) * 1e-9 : 0;
    q->status = (int)status;
    q->retry_s = (double)retry_s;
    q->end_ns = bench_now_ns();
    if (code != CURLE_OK && !t->done) {
        bench_http_fail(q, status == 200 ? OUTCOME_STREAM : OUTCOME_NETWORK,
                        t->curl_error[0] ? t->curl_error : curl_easy_strerror(code));
    } else if (!t->events) {
        finish_reply(t);
    } else if (!t->done || !t->finished) {
        bench_http_fail(q, OUTCOME_STREAM,
                        t->done ? "the stream has no finish_reason" : "the stream ended early");
    }
}

/* Removes @t from the list and frees it; its request belongs to the caller again. */
static void end_transfer(struct bench_http *h, struct http_transfer *t) {
    assert(t->q->transfer == t && h->n_running > 0 && !t->prev == (h->running == t));
    curl_multi_remove_handle(h->multi, t->easy);
    curl_easy_reset(t->easy); /* the handle points into the transfer, which is freed here */
    if (curl_may_reuse() && h->n_spare < SPARE_MAX)
        h->spare[h->n_spare++] = t->easy;
    else
        curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    if (t->prev)
        t->prev->next = t->next;
    else
        h->running = t->next;
    if (t->next)
        t->next->prev = t->prev;
    h->n_running--;
    t->q->transfer = NULL;
    sse_deinit(&t->sse);
    buf_deinit(&t->reply);
    free(t);
}

/* Adds a header. Returns 0, or -ENOMEM with *list unchanged. */
static int bench_http_add_header(struct curl_slist **list, const char *format, const char *value) {
    CLEANUP(freep) char *line = NULL;

    if (asprintf(&line, format, value) < 0)
        return -ENOMEM;
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (!longer)
        return -ENOMEM;
    *list = longer;
    return 0;
}

/* Adds the headers of a request. @api_key, @session: NULL: none. */
static int add_headers(struct curl_slist **list, const char *api_key, const char *session) {
    TRY(bench_http_add_header(list, "%s", "Content-Type: application/json"));
    TRY(bench_http_add_header(list, "%s", "Expect:"));
    if (api_key)
        TRY(bench_http_add_header(list, "Authorization: Bearer %s", api_key));
    if (session)
        TRY(bench_http_add_header(list, "x-session-id: %s", session));
    return 0;
}

int bench_http_new(struct bench_http **out, const struct bench_http_opts *o, struct err *err) {
    CLEANUP(bench_http_freep) struct bench_http *h = calloc(1, sizeof(*h));
    size_t len = strlen(o->url);

    if (!h)
        return -ENOMEM;
    if (strncmp(o->url, "http://", 7) != 0 && strncmp(o->url, "https://", 8) != 0)
        return err_set(err, 0, NULL, "%s is not an http:// or https:// URL", o->url);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    while (len && o->url[len - 1] == '/')
        len--;
    if (len > 3 && memcmp(o->url + len - 3, "/v1", 3) == 0)
        len -= 3;
    if (asprintf(&h->base, "%.*s/v1", (int)len, o->url) < 0)
        return -ENOMEM;
    if (asprintf(&h->post_url, "%s/%scompletions", h->base, o->chat ? "chat/" : "") < 0)
        return -ENOMEM;
    h->timeout_s = o->timeout_s;
    TRY(add_headers(&h->headers, o->api_key, NULL));
    if (o->api_key)
        h->api_key = strdup(o->api_key);
    if (o->api_key && !h->api_key)
        return -ENOMEM;
    h->multi = curl_multi_init();
    if (!h->multi)
        return -ENOMEM;
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, 16384L);
    TRY(bench_poll_init(&h->poll, h->multi));
    *out = STEAL(h);
    return 0;
}

void bench_http_stop(struct bench_http *h) {
    while (h->running)
        end_transfer(h, h->running);
}

struct bench_http *bench_http_free(struct bench_http *h) {
    if (!h)
        return NULL;
    bench_http_stop(h);
    assert(h->n_running == 0);
    while (h->n_spare)
        curl_easy_cleanup(h->spare[--h->n_spare]);
    curl_multi_cleanup(h->multi);
    bench_poll_deinit(&h->poll);
    curl_slist_free_all(h->headers);
    free(h->base);
    free(h->post_url);
    free(h->api_key);
    free(h);
    return NULL;
}

/* Returns a handle for @url, reusing a spare one if possible. NULL: no memory. */
static CURL *easy_new(struct bench_http *h, const char *url) {
    CURL *e = h->n_spare ? h->spare[--h->n_spare] : curl_easy_init();

    if (!e)
        return NULL;
    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, h->headers);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_PROXY, ""); /* a proxy would be measured too */
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(h->timeout_s * 1000));
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    return e;
}

/* Returns a transfer with the headers of @q. NULL: no memory. */
static struct http_transfer *new_transfer(struct bench_http *h, const struct bench_request *q) {
    struct http_transfer *t = calloc(1, sizeof(*t));
    bool own = q->api_key || q->session;

    if (!t)
        return NULL;
    t->easy = easy_new(h, h->post_url);
    if (t->easy && own &&
        add_headers(&t->headers, q->api_key ? q->api_key : h->api_key, q->session) == 0)
        curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    else if (!t->easy || own) {
        curl_easy_cleanup(t->easy);
        curl_slist_free_all(t->headers);
        free(t);
        return NULL;
    }
    return t;
}

int bench_http_start(struct bench_http *h, struct bench_request *q) {
    assert(!q->transfer && q->done && q->body.len > 0);
    struct http_transfer *t = new_transfer(h, q);

    if (!t)
        return -ENOMEM;
    t->q = q;
    sse_init(&t->sse);
    buf_init(&t->reply, REPLY_MAX);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, q->body.data);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.len);
    curl_easy_setopt(t->easy, CURLOPT_PREREQFUNCTION, on_send);
    curl_easy_setopt(t->easy, CURLOPT_PREREQDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->curl_error);
    t->next = h->running;
    if (t->next)
        t->next->prev = t;
    h->running = t;
    h->n_running++;
    q->transfer = t;
    if (curl_multi_add_handle(h->multi, t->easy) == CURLM_OK)
        return 0;
    end_transfer(h, t);
    return -EIO;
}

int bench_http_run(struct bench_http *h, int timeout_ms) {
    int left, r = bench_poll_run(&h->poll, timeout_ms);
    CURLMsg *msg;

    while (r == 0 && (msg = curl_multi_info_read(h->multi, &left))) {
        struct http_transfer *t;
        CURLcode code = msg->data.result;

        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t);
        assert(t && t->easy == msg->easy_handle);
        struct bench_request *q = t->q;
        bench_http_judge(t, code);
        end_transfer(h, t);
        q->done(q); /* may start other requests */
    }
    return r;
}

uint32_t bench_http_n_running(const struct bench_http *h) {
    return h->n_running;
}

static size_t on_write_plain(char *data, size_t size, size_t n, void *ctx) {
    if (buf_add(ctx, data, size * n) < 0)
        return 0;
    return size * n;
}

/* Sends GET, or POST of @body, for the path @path below the server's root, and reads the body of
 * the reply into @reply. Returns false with @err if the status is not 200. */
static bool bench_http_perform(struct bench_http *h, const char *path, const struct buf *body,
                               struct buf *reply, struct err *err) {
    char url[1024], why[CURL_ERROR_SIZE] = "";
    long status = 0;

    assert(path[0] == '/' && strlen(h->base) > 3); /* the base ends with "/v1" */
    snprintf(url, sizeof(url), "%.*s%s", (int)(strlen(h->base) - 3), h->base, path);
    CURL *e = easy_new(h, url);
    if (!e)
        return false;
    if (body) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, body->data);
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    }
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write_plain);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(e);
    curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(e);
    if (code == CURLE_OK && status == 200)
        return true;
    if (code != CURLE_OK)
        err_set(err, 0, NULL, "%s: %s", url, *why ? why : curl_easy_strerror(code));
    else
        err_set(err, 0, NULL, "%s: the server answered with status %ld instead of 200", url,
                status);
    return false;
}

/* Performs the request like bench_http_perform(); returns the reply's document, or NULL. */
static yyjson_doc *bench_http_ask(struct bench_http *h, const char *path, const struct buf *body,
                                  struct err *err) {
    CLEANUP(buf_deinit) struct buf reply = {.max = REPLY_MAX};
    yyjson_doc *doc;

    if (!bench_http_perform(h, path, body, &reply, err))
        return NULL;
    doc = yyjson_read(text_or(reply.data, ""), reply.len, 0);
    if (!doc)
        err_set(err, 0, NULL, "%.*s%s: not JSON", (int)(strlen(h->base) - 3), h->base, path);
    return doc;
}

/* Returns the number of the device in the label of a line; 0 if it has none. */
static unsigned long bench_http_device(const char *line, const char *end) {
    const char *at = strstr(line, "device=\"");

    if (!at || at >= end)
        return 0;
    return strtoul(at + strlen("device=\""), NULL, 10);
}

double bench_http_metric(struct bench_http *h, const char *name) {
    CLEANUP(buf_deinit) struct buf reply = {.max = REPLY_MAX};
    size_t len = strlen(name);
    double most[16] = {0}, sum = 0; /* devices above 64 share the last entry */

    if (!bench_http_perform(h, "/metrics", NULL, &reply, NULL) || buf_add(&reply, "", 1) < 0)
        return 0;
    for (char *line = reply.data; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *end = line + strcspn(line, "\n"), *value = end;

        while (value > line && value[-1] != ' ')
            value--;
        if (strncmp(line, name, len) != 0 || (line[len] != '{' && line[len] != ' '))
            continue;
        double *of = &most[MIN(bench_http_device(line, end), ARRAY_SIZE(most) - 1)];
        *of = fmax(*of, strtod(value, NULL));
    }
    for (size_t i = 0; i < ARRAY_SIZE(most); i++)
        sum += most[i];
    return sum;
}

int64_t bench_http_tokenize(struct bench_http *h, const char *model, const char *text) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);
    CLEANUP(buf_deinit) struct buf body = {.max = REPLY_MAX};

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "model", model);
    yyjson_mut_obj_add_str(d, root, "prompt", text);
    yyjson_mut_obj_add_str(d, root, "content", text); /* name of the counter in llama-server */
    CLEANUP(freep) char *json = yyjson_mut_write(d, 0, NULL);
    yyjson_mut_doc_free(d);
    if (!json || buf_add_str(&body, json) < 0)
        return -1;
    CLEANUP(json_doc_freep) yyjson_doc *doc = bench_http_ask(h, "/tokenize", &body, NULL);
    yyjson_val *tokens = yyjson_obj_get(yyjson_doc_get_root(doc), "tokens");

    if (!yyjson_is_arr(tokens))
        return -1;
    return (int64_t)yyjson_arr_size(tokens);
}

int bench_http_model(struct bench_http *h, char out[256], struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = bench_http_ask(h, "/v1/models", NULL, err);
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(doc), "data");
    const char *id = json_cstr(yyjson_obj_get(yyjson_arr_get_first(data), "id"));

    if (!id) {
        if (doc)
            return err_set(err, 0, NULL, "%s/models lists no model", h->base);
        return -EIO;
    }
    snprintf(out, 256, "%s", id);
    return 0;
}
