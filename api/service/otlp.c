#include "api/service/otlp.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef HAVE_CURL
#include "api/http/curl_calls.h"
#endif
#include "api/service/trace.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/thread.h"
#include "base/try.h"
#include "base/util.h"

/*
 * The thread waits for a batch, writes it as JSON and posts it with libcurl on a connection of its
 * own: one in a second at most, so keeping it would gain nothing. Batches are posted again after
 * the status codes 429, 502, 503 and 504, and while the collector cannot be reached or its
 * certificate is wrong, as the specification of OTLP asks; other refusals drop the batch. Name
 * lookup blocks the thread and nothing else.
 */

#define QUEUE 2048u   /* spans: 0.8 MB */
#define BATCH 256u    /* spans of a request; some 300 KB */
#define BATCH_MS 1000 /* time that the first span of a batch waits for others */
#define POST_MS 10000 /* the default of OpenTelemetry's exporters */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 30000
#define STOP_MS 1000
#define SLICE_MS 100 /* after which the thread looks whether it is to stop */
#define BODY_MAX (4u << 20)

struct endpoint {
    /* host "": path is that of a socket */
    char host[256], port[8], path[512];
    bool tls;
};

/*
 * Invariants, under the lock: n <= QUEUE; the queue is ring[first], ..., ring[first + n - 1] modulo
 * QUEUE; `news` is set while `why` differs from what the loop has read. `stop_ns` is set once.
 */
struct otlp {
    struct endpoint to;
    struct trace_origin origin;
#ifdef HAVE_CURL
    const struct curl_calls *call;
    /* of the post that runs; the thread's, as are heads and error */
    CURL *curl;
    struct curl_slist *heads;
    char error[CURL_ERROR_SIZE];
#endif
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* [QUEUE]; [BATCH], the thread's */
    struct trace_span *ring, *batch;
    uint32_t first, n;
    /* time when the thread was told to stop; 0: it was not */
    _Atomic int64_t stop_ns;
    /* the loop's */
    uint64_t n_added;
    _Atomic uint64_t n_exported, n_dropped;
    /* reason why the last batch was refused; "": it was taken */
    char why[OTLP_WHY];
    _Atomic bool news;
};

static int64_t otlp_now_ns(void) {
    return clock_now(clock_monotonic());
}

/* ---- the connection ---- */

#ifdef HAVE_CURL

/* curl's progress callback: ends the transfer some time after the thread is told to stop. */
static int otlp_on_progress(void *ctx, curl_off_t n_in, curl_off_t in, curl_off_t n_out,
                            curl_off_t out) {
    int64_t stop = atomic_load(&((const struct otlp *)ctx)->stop_ns);

    return stop && otlp_now_ns() >= stop + STOP_MS * INT64_C(1000000);
}

/* curl's write callback: the body of an answer is not read. */
static size_t otlp_on_body(char *data, size_t size, size_t n, void *ctx) {
    return size * n;
}

/* Loads libcurl. Returns 0 or -ENOMEM. */
static int load_curl(struct otlp *o) {
    o->call = curl_calls("otlp-endpoint", NULL);
    return enomem_unless(o->call);
}

/* Writes the URL of @to. One without a host is a socket of this machine. */
static void otlp_put_url(const struct endpoint *to, char *out, size_t size) {
    const char *scheme = to->tls ? "https" : "http";

    if (!*to->host)
        snprintf(out, size, "%s://localhost:80/v1/traces", scheme);
    else if (strchr(to->host, ':'))
        snprintf(out, size, "%s://[%s]:%s%s", scheme, to->host, to->port, to->path);
    else
        snprintf(out, size, "%s://%s:%s%s", scheme, to->host, to->port, to->path);
}

/* Makes the handle with all that is the same for each request. Returns 0 or -ENOMEM. */
static int open_curl(struct otlp *o) {
    char host[sizeof(o->to.host) + 8], url[sizeof(o->to) + 16];
    const struct endpoint *to = &o->to;
    const char *trusted = getenv("SSL_CERT_FILE");
    bool tcp = *to->host;

    if (!(o->curl = o->call->easy_init()))
        return -ENOMEM;
    snprintf(host, sizeof(host), "Host: %s", tcp ? to->host : "localhost");
    otlp_put_url(to, url, sizeof(url));
    const char *const heads[] = {host, "Content-Type: application/json", "Connection: close",
                                 "Expect:"};
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        struct curl_slist *more = o->call->slist_append(o->heads, heads[i]);

        if (!more)
            return -ENOMEM;
        o->heads = more;
    }
    o->call->easy_setopt(o->curl, CURLOPT_HTTPHEADER, o->heads);
    o->call->easy_setopt(o->curl, CURLOPT_USERAGENT, "weft/" WEFT_VERSION);
    o->call->easy_setopt(o->curl, CURLOPT_NOPROXY, "*");
    o->call->easy_setopt(o->curl, CURLOPT_NOSIGNAL, 1L);
    o->call->easy_setopt(o->curl, CURLOPT_FORBID_REUSE, 1L);
    o->call->easy_setopt(o->curl, CURLOPT_TIMEOUT_MS, (long)POST_MS);
    o->call->easy_setopt(o->curl, CURLOPT_ERRORBUFFER, o->error);
    o->call->easy_setopt(o->curl, CURLOPT_WRITEFUNCTION, otlp_on_body);
    o->call->easy_setopt(o->curl, CURLOPT_XFERINFOFUNCTION, otlp_on_progress);
    o->call->easy_setopt(o->curl, CURLOPT_XFERINFODATA, o);
    o->call->easy_setopt(o->curl, CURLOPT_NOPROGRESS, 0L);
    if (trusted)
        o->call->easy_setopt(o->curl, CURLOPT_CAINFO, trusted);
    if (!tcp)
        o->call->easy_setopt(o->curl, CURLOPT_UNIX_SOCKET_PATH, to->path);
    return enomem_unless(o->call->easy_setopt(o->curl, CURLOPT_URL, url) == CURLE_OK);
}

static void close_curl(struct otlp *o) {
    o->call->easy_cleanup(o->curl);
    o->call->slist_free_all(o->heads);
    o->curl = NULL;
    o->heads = NULL;
}

/* Writes why there is no answer into @why. */
static void otlp_explain(const struct otlp *o, CURLcode r, char why[OTLP_WHY]) {
    static const char problem[] = "SSL certificate problem: ";
    const char *error = o->error;

    if (strncmp(error, problem, sizeof(problem) - 1) == 0)
        error += sizeof(problem) - 1;
    if (r == CURLE_PEER_FAILED_VERIFICATION)
        snprintf(why, OTLP_WHY, "its certificate: %.100s", error);
    else
        snprintf(why, OTLP_WHY, "%s",
                 r == CURLE_COULDNT_CONNECT || r == CURLE_COULDNT_RESOLVE_HOST
                     ? "it cannot be reached"
                     : "no answer");
}

/* Posts @body with the handle. Returns as otlp_post() does. */
static int otlp_perform(struct otlp *o, const struct buf *body, int64_t *retry_ms,
                        char why[OTLP_WHY]) {
    curl_off_t seconds = 0;
    long status = 0;

    *o->error = 0;
    o->call->easy_setopt(o->curl, CURLOPT_POSTFIELDS, body->data);
    o->call->easy_setopt(o->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    CURLcode r = o->call->easy_perform(o->curl);
    o->call->easy_getinfo(o->curl, CURLINFO_RESPONSE_CODE, &status);
    if (!status) {
        otlp_explain(o, r, why);
        return 0;
    }
    snprintf(why, OTLP_WHY, "status %ld", status);
    o->call->easy_getinfo(o->curl, CURLINFO_RETRY_AFTER, &seconds);
    *retry_ms = MIN((int64_t)seconds, PAUSE_MAX_MS / 1000) * 1000;
    return (int)status;
}

/* Posts @body with a handle of its own, since an old libcurl must not use one twice
 * (cmd/curl_again.h). Returns the status of the answer, or 0 if there is none. Sets @why, which
 * tells what is wrong unless the status is 2xx. */
static int otlp_post(struct otlp *o, const struct buf *body, int64_t *retry_ms,
                     char why[OTLP_WHY]) {
    int status = 0;

    if (open_curl(o) == 0)
        status = otlp_perform(o, body, retry_ms, why);
    else
        snprintf(why, OTLP_WHY, "out of memory");
    close_curl(o);
    return status;
}

#else

static int load_curl(struct otlp *o) {
    return -ENOSYS;
}

static int otlp_post(struct otlp *o, const struct buf *body, int64_t *retry_ms,
                     char why[OTLP_WHY]) {
    return 0;
}

#endif

/* ---- the thread ---- */

/* Waits on `changed`, under the lock, until there is a whole batch, for @ms at most. */
static void sleep_for(struct otlp *o, int64_t ms) {
    int64_t until = otlp_now_ns() + ms * 1000000;
    struct timespec t = {until / 1000000000, until % 1000000000};

    while (!o->stop_ns && otlp_now_ns() < until && o->n < BATCH)
        pthread_cond_timedwait(&o->changed, &o->lock, &t);
}

/* Takes the next batch. Returns its length; 0: the thread is to stop, and nothing is left. */
static uint32_t otlp_next_batch(struct otlp *o) {
    uint32_t n;

    pthread_mutex_lock(&o->lock);
    while (!o->n && !o->stop_ns)
        pthread_cond_wait(&o->changed, &o->lock);
    sleep_for(o, BATCH_MS);
    assert(o->n <= QUEUE && o->first < QUEUE);
    n = MIN(o->n, BATCH);
    for (uint32_t i = 0; i < n; i++)
        o->batch[i] = o->ring[(o->first + i) % QUEUE];
    o->first = (o->first + n) % QUEUE;
    o->n -= n;
    pthread_mutex_unlock(&o->lock);
    return n;
}

/* Pauses for @ms. Returns false if the thread is to stop. */
static bool pause_for(struct otlp *o, int64_t ms) {
    int64_t until = otlp_now_ns() + ms * 1000000;

    while (!o->stop_ns && otlp_now_ns() < until)
        poll(NULL, 0, SLICE_MS);
    return !o->stop_ns;
}

static void otlp_note(struct otlp *o, const char *why) {
    pthread_mutex_lock(&o->lock);
    if (strcmp(o->why, why) != 0) {
        snprintf(o->why, sizeof(o->why), "%s", why);
        o->news = true;
    }
    pthread_mutex_unlock(&o->lock);
}

/* Returns true if the collector has taken @body. */
static bool otlp_deliver(struct otlp *o, const struct buf *body) {
    int64_t pause_ms = PAUSE_MIN_MS;
    char why[OTLP_WHY];

    for (;;) {
        int64_t retry_ms = 0;
        int status = otlp_post(o, body, &retry_ms, why);
        bool taken = status >= 200 && status < 300;

        otlp_note(o, taken ? "" : why);
        if (taken)
            return true;
        if (status != 0 && status != 429 && status != 502 && status != 503 && status != 504)
            return false;
        if (!pause_for(o, retry_ms ? retry_ms : pause_ms))
            return false;
        pause_ms = MIN(2 * pause_ms, PAUSE_MAX_MS);
    }
}

/* Posts batches until the thread is to stop. */
static void *otlp_run(void *arg) {
    struct otlp *o = arg;
    uint32_t n;

    while ((n = otlp_next_batch(o))) {
        CLEANUP(buf_deinit) struct buf body = {.max = BODY_MAX};

        bool ok = trace_write(&body, &o->origin, o->batch, n) == 0 && otlp_deliver(o, &body);
        atomic_fetch_add(ok ? &o->n_exported : &o->n_dropped, n);
    }
    return NULL;
}

/* ---- what the loop calls ---- */

static int read_endpoint(struct endpoint *to, const char *endpoint, struct err *err) {
    bool tls = strncmp(endpoint, "https://", 8) == 0;
    bool tcp = tls || strncmp(endpoint, "http://", 7) == 0;
    const char *rest = endpoint + 7 + tls, *slash, *colon;
    size_t room = tcp ? sizeof(to->path) : sizeof(((struct sockaddr_un *)0)->sun_path), n;

    if (strncmp(endpoint, "unix:/", 6) == 0 && strlen(endpoint + 5) < room) {
        snprintf(to->path, sizeof(to->path), "%s", endpoint + 5);
        return 0;
    }
    n = tcp ? strcspn(rest, "/") : 0;
    slash = rest + n;
    colon = tcp ? memrchr(rest, ':', n) : NULL;
    if (colon && memchr(colon, ']', (size_t)(slash - colon)))
        colon = NULL;
    size_t host = colon ? (size_t)(colon - rest) : n, port = colon ? n - host - 1 : 4;
    bool v6 = host > 2 && *rest == '[' && rest[host - 1] == ']';
    if (!tcp || !host || host >= sizeof(to->host) || !port || port > 5 || strlen(slash) >= room ||
        strpbrk(endpoint, " \t\r\n") || strspn(colon ? colon + 1 : "4318", "0123456789") != port)
        return err_set(err, 0, "otlp-endpoint",
                       "otlp-endpoint: must be http[s]://HOST[:PORT][/PATH] or unix:/PATH, not "
                       "\"%.200s\"",
                       endpoint);
    snprintf(to->host, sizeof(to->host), "%.*s", (int)(v6 ? host - 2 : host), rest + v6);
    snprintf(to->port, sizeof(to->port), "%.*s", (int)port, colon ? colon + 1 : "4318");
    snprintf(to->path, sizeof(to->path), "%s", slash[0] && slash[1] ? slash : "/v1/traces");
    to->tls = tls;
    return 0;
}

static int otlp_start(struct otlp *o) {
    pthread_condattr_t attr;
    sigset_t all, old;

    pthread_mutex_init(&o->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); /* the loop's thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = thread_start(&o->thread, NULL, otlp_run, o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

static struct otlp *otlp_release(struct otlp *o) {
    free(o->ring);
    free(o->batch);
    free(o);
    return NULL;
}

int otlp_check(const char *endpoint, struct err *err) {
    struct endpoint to = {0};
    int r = read_endpoint(&to, endpoint, err);

#ifdef HAVE_CURL
    return r < 0 || curl_calls("otlp-endpoint", err) ? r : -EINVAL;
#else
    if (r == 0)
        return err_set(err, 0, "otlp-endpoint",
                       "otlp-endpoint: weftd was built without libcurl (libcurl4-openssl-dev)");
    return r;
#endif
}

static int otlp_open(struct otlp *o, const char *endpoint) {
    struct err err;

    TRY(read_endpoint(&o->to, endpoint, &err));
    TRY(load_curl(o));
    o->origin.pid = getpid();
    gethostname(o->origin.host, sizeof(o->origin.host) - 1);
    o->ring = calloc(QUEUE, sizeof(*o->ring));
    o->batch = calloc(BATCH, sizeof(*o->batch));
    if (!o->ring || !o->batch)
        return -ENOMEM;
    return otlp_start(o);
}

int otlp_new(struct otlp **out, const char *endpoint) {
    struct otlp *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    int r = otlp_open(o, endpoint);
    if (r < 0)
        otlp_release(o);
    else
        *out = o;
    return r;
}

void otlp_set_port(struct otlp *o, int port) {
    assert(port > 0);
    o->origin.port = port;
}

void otlp_add(struct otlp *o, const struct trace_span *s) {
    o->n_added++;
    pthread_mutex_lock(&o->lock);
    assert(o->n <= QUEUE);
    if (o->n == QUEUE) {
        atomic_fetch_add(&o->n_dropped, 1);
    } else {
        o->ring[(o->first + o->n++) % QUEUE] = *s;
        if (o->n == 1 || o->n == BATCH)
            pthread_cond_signal(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
}

bool otlp_news(struct otlp *o, char why[OTLP_WHY]) {
    if (!o->news)
        return false;
    pthread_mutex_lock(&o->lock);
    memcpy(why, o->why, OTLP_WHY);
    o->news = false;
    pthread_mutex_unlock(&o->lock);
    return true;
}

void otlp_counts(const struct otlp *o, uint64_t *n_exported, uint64_t *n_waiting,
                 uint64_t *n_dropped) {
    *n_exported = atomic_load(&o->n_exported);
    *n_dropped = atomic_load(&o->n_dropped);
    assert(*n_exported + *n_dropped <= o->n_added);
    *n_waiting = o->n_added - *n_exported - *n_dropped;
}

/* Waits for the thread for some seconds only, because a lookup of a name may hang for longer. The
 * memory then stays, and the thread ends with the process. */
struct otlp *otlp_free(struct otlp *o) {
    struct timespec until;

    if (!o)
        return NULL;
    pthread_mutex_lock(&o->lock);
    atomic_store(&o->stop_ns, otlp_now_ns());
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (pthread_timedjoin_np(o->thread, NULL, &until) == 0) {
        pthread_cond_destroy(&o->changed);
        pthread_mutex_destroy(&o->lock);
        otlp_release(o);
    }
    return NULL;
}
