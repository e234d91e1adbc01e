#include "api/service/otlp.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "api/http/tls.h"
#include "api/service/trace.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/thread.h"
#include "base/util.h"

/*
 * The thread waits for a batch, writes it as JSON and posts it on a connection of its own: one in a
 * second at most, so keeping it would gain nothing. Status codes 429, 502, 503 and 504, and a
 * collector that cannot be reached or whose certificate is wrong, are tried again, as the
 * specification of OTLP asks; other refusals drop the batch. Name lookup blocks the thread and
 * nothing else.
 */

#define QUEUE 2048u   /* spans: 0.8 MB */
#define BATCH 256u    /* spans of a request; some 300 KB */
#define BATCH_MS 1000 /* that the first span of a batch waits for others */
#define POST_MS 10000 /* the default of OpenTelemetry's exporters */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 30000
#define STOP_MS 1000
#define SLICE_MS 100 /* after which the thread looks whether it is to stop */
#define BODY_MAX (4u << 20)
#define HEAD_MAX 1024u

struct endpoint {
    char host[256], port[8], path[512]; /* host "": path is that of a socket */
    bool tls;
};

/*
 * Invariants, under the lock: n <= QUEUE; the queue is ring[first], ..., ring[first + n - 1]
 * modulo QUEUE; `news` is set where `why` is another than the loop knows. `stop_ns` is set once.
 */
struct otlp {
    struct endpoint to;
    struct tls_config tls; /* with to.tls */
    struct trace_origin origin;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct trace_span *ring, *batch; /* [QUEUE]; [BATCH], the thread's */
    uint32_t first, n;
    _Atomic int64_t stop_ns; /* 0: go on */
    uint64_t n_added;        /* the loop's */
    _Atomic uint64_t n_exported, n_dropped;
    char why[OTLP_WHY]; /* the last batch was not taken; "": it was */
    _Atomic bool news;
};

/* A connection to the collector, for one request, which ends at until_ns. tls: NULL where it is
 * plain. */
struct link {
    int fd;
    struct tls *tls;
    int64_t until_ns;
    char in[TLS_RECORD]; /* of the socket, fed to tls */
};

static int64_t now_ns(void) {
    return clock_now(clock_monotonic());
}

/* ---- the connection ---- */

/* False: the time is over, or it is to stop. */
static bool wait_for(const struct otlp *o, int fd, short events, int64_t until_ns) {
    assert(fd >= 0);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t stop = atomic_load(&o->stop_ns), now = now_ns();

        if (poll(&p, 1, SLICE_MS) > 0)
            return true;
        if (now >= until_ns || (stop && now >= stop + STOP_MS * INT64_C(1000000)))
            return false;
    }
}

static int open_to(const struct otlp *o, const struct sockaddr *to, socklen_t len, int64_t until) {
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
    socklen_t size = sizeof(error);

    if (fd < 0)
        return -errno;
    if (connect(fd, to, len) == 0)
        return fd;
    if (errno == EINPROGRESS && wait_for(o, fd, POLLOUT, until) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
        return fd;
    close(fd);
    return -EHOSTUNREACH;
}

static int open_connection(const struct otlp *o, int64_t until) {
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = -EHOSTUNREACH;

    if (!*o->to.host) {
        memcpy(at.sun_path, o->to.path, strlen(o->to.path) + 1);
        return open_to(o, (struct sockaddr *)&at, sizeof(at), until);
    }
    if (getaddrinfo(o->to.host, o->to.port, &hints, &list) != 0)
        return -EHOSTUNREACH;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = open_to(o, a->ai_addr, a->ai_addrlen, until);
    freeaddrinfo(list);
    return fd;
}

static bool send_all(const struct otlp *o, struct link *l, const char *data, size_t len) {
    while (len) {
        ssize_t n = send(l->fd, data, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EAGAIN && wait_for(o, l->fd, POLLOUT, l->until_ns))
            continue;
        if (n < 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* Receives at most @size bytes; 0 or negative: no more will come. */
static ssize_t receive(const struct otlp *o, struct link *l, char *out, size_t size) {
    ssize_t n;

    while ((n = recv(l->fd, out, size, 0)) < 0 && errno == EAGAIN)
        if (!wait_for(o, l->fd, POLLIN, l->until_ns))
            break;
    return n;
}

/* Encrypts @from, and sends what TLS has for the peer. */
static bool send_wrapped(const struct otlp *o, struct link *l, struct buf *from) {
    CLEANUP(buf_deinit) struct buf out;
    bool ok;

    buf_init(&out, 0);
    do {
        buf_clear(&out);
        ok = tls_wrap(l->tls, from, &out) == 0 && send_all(o, l, out.data, out.len);
    } while (ok && tls_unsent(l->tls));
    return ok;
}

/* The next bytes of HTTP; of TLS the handshake before them. As receive(). */
static ssize_t read_link(const struct otlp *o, struct link *l, char *out, size_t size) {
    CLEANUP(buf_deinit) struct buf none = {0};
    bool opens = l->tls && !tls_is_open(l->tls);
    ssize_t n;

    if (!l->tls)
        return receive(o, l, out, size);
    while ((n = tls_read(l->tls, out, size)) == 0) {
        if (tls_unsent(l->tls) && !send_wrapped(o, l, &none))
            return -1;
        if (opens && tls_is_open(l->tls))
            return 0;
        if ((n = receive(o, l, l->in, sizeof(l->in))) <= 0)
            return -1;
        tls_feed(l->tls, l->in, (size_t)n);
    }
    return n;
}

/* The status of the answer, 0: there is none. *retry_ms is set where it has a Retry-After. */
static int read_status(const struct otlp *o, struct link *l, int64_t *retry_ms) {
    char head[4096];
    size_t len = 0;
    int status = 0, seconds = 0;

    while (len < sizeof(head) - 1) {
        ssize_t n = read_link(o, l, head + len, sizeof(head) - 1 - len);

        if (n <= 0)
            break;
        len += (size_t)n;
        head[len] = 0;
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    head[len] = 0;
    if (sscanf(head, "HTTP/1.%*c %3d", &status) != 1)
        return 0;
    const char *retry = strcasestr(head, "\r\nretry-after:");
    if (retry && sscanf(retry + 14, "%d", &seconds) == 1 && seconds > 0)
        *retry_ms = MIN(seconds, PAUSE_MAX_MS / 1000) * 1000;
    return status;
}

/* The head and @body. */
static int write_request(const struct otlp *o, struct buf *out, const struct buf *body) {
    bool tcp = *o->to.host;
    int r = buf_printf(
        out,
        "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: weft/" WEFT_VERSION
        "\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
        tcp ? o->to.path : "/v1/traces", tcp ? o->to.host : "localhost", body->len);

    return r < 0 ? r : buf_add(out, body->data, body->len);
}

/* Over @l, which is connected: the status of the answer, or 0. */
static int ask(const struct otlp *o, struct link *l, struct buf *request, int64_t *retry_ms) {
    char none[1];

    if (!l->tls)
        return send_all(o, l, request->data, request->len) ? read_status(o, l, retry_ms) : 0;
    if (read_link(o, l, none, sizeof(none)) != 0 || !send_wrapped(o, l, request))
        return 0;
    return read_status(o, l, retry_ms);
}

/* Posts @body: the status of the answer, or 0. @why is set where it is not 2xx. */
static int post(const struct otlp *o, const struct buf *body, int64_t *retry_ms,
                char why[OTLP_WHY]) {
    CLEANUP(buf_deinit) struct buf request;
    struct link l = {.until_ns = now_ns() + POST_MS * INT64_C(1000000)};
    int status = 0;

    buf_init(&request, BODY_MAX + HEAD_MAX);
    l.fd = open_connection(o, l.until_ns);
    snprintf(why, OTLP_WHY, "it cannot be reached");
    if (l.fd < 0)
        return 0;
    snprintf(why, OTLP_WHY, "no answer");
    if (write_request(o, &request, body) == 0 &&
        (!o->to.tls || tls_new_client(&l.tls, &o->tls, o->to.host, BODY_MAX + HEAD_MAX) == 0))
        status = ask(o, &l, &request, retry_ms);
    if (status)
        snprintf(why, OTLP_WHY, "status %d", status);
    else if (l.tls && tls_refused(l.tls))
        snprintf(why, OTLP_WHY, "its certificate: %s", tls_refused(l.tls));
    tls_free(l.tls);
    close(l.fd);
    return status;
}

/* ---- the thread ---- */

/* Waits on `changed`, under the lock, for @ms at most. */
static void sleep_for(struct otlp *o, int64_t ms) {
    int64_t until = now_ns() + ms * 1000000;
    struct timespec t = {until / 1000000000, until % 1000000000};

    while (!o->stop_ns && now_ns() < until && o->n < BATCH)
        pthread_cond_timedwait(&o->changed, &o->lock, &t);
}

/* The next batch; 0: it is to stop, and nothing is left. */
static uint32_t take_batch(struct otlp *o) {
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

/* False: it is to stop. */
static bool pause_for(struct otlp *o, int64_t ms) {
    int64_t until = now_ns() + ms * 1000000;

    while (!o->stop_ns && now_ns() < until)
        poll(NULL, 0, SLICE_MS);
    return !o->stop_ns;
}

static void note(struct otlp *o, const char *why) {
    pthread_mutex_lock(&o->lock);
    if (strcmp(o->why, why) != 0) {
        snprintf(o->why, sizeof(o->why), "%s", why);
        o->news = true;
    }
    pthread_mutex_unlock(&o->lock);
}

/* Returns true if the collector has taken @body. */
static bool deliver(struct otlp *o, const struct buf *body) {
    int64_t pause_ms = PAUSE_MIN_MS;
    char why[OTLP_WHY];

    for (;;) {
        int64_t retry_ms = 0;
        int status = post(o, body, &retry_ms, why);
        bool taken = status >= 200 && status < 300;

        note(o, taken ? "" : why);
        if (taken)
            return true;
        if (status != 0 && status != 429 && status != 502 && status != 503 && status != 504)
            return false;
        if (!pause_for(o, retry_ms ? retry_ms : pause_ms))
            return false;
        pause_ms = MIN(2 * pause_ms, PAUSE_MAX_MS);
    }
}

/* The thread. */
static void *run(void *arg) {
    struct otlp *o = arg;
    uint32_t n;

    while ((n = take_batch(o))) {
        CLEANUP(buf_deinit) struct buf body;

        buf_init(&body, BODY_MAX);
        bool ok = trace_write(&body, &o->origin, o->batch, n) == 0 && deliver(o, &body);
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

static int start(struct otlp *o) {
    pthread_condattr_t attr;
    sigset_t all, old;

    pthread_mutex_init(&o->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); /* signals are the loop's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = thread_start(&o->thread, NULL, run, o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

static struct otlp *release(struct otlp *o) {
    tls_config_deinit(&o->tls);
    free(o->ring);
    free(o->batch);
    free(o);
    return NULL;
}

int otlp_check(const char *endpoint, struct err *err) {
    struct tls_config tls = {0};
    struct endpoint to = {0};
    int r = read_endpoint(&to, endpoint, err);

    if (r == 0 && to.tls)
        r = tls_config_init_client(&tls, err);
    tls_config_deinit(&tls);
    return r;
}

int otlp_new(struct otlp **out, const char *endpoint) {
    struct otlp *o = calloc(1, sizeof(*o));
    struct err err;
    int r = o ? read_endpoint(&o->to, endpoint, &err) : -ENOMEM;

    if (!o)
        return r;
    if (r == 0 && o->to.tls)
        r = tls_config_init_client(&o->tls, &err);
    o->origin.pid = getpid();
    gethostname(o->origin.host, sizeof(o->origin.host) - 1);
    o->ring = calloc(QUEUE, sizeof(*o->ring));
    o->batch = calloc(BATCH, sizeof(*o->batch));
    if (r == 0)
        r = o->ring && o->batch ? start(o) : -ENOMEM;
    if (r < 0)
        release(o);
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

/* A lookup of a name may hang for longer than a stop may take: the process ends, and the thread
 * with it. */
struct otlp *otlp_free(struct otlp *o) {
    struct timespec until;

    if (!o)
        return NULL;
    pthread_mutex_lock(&o->lock);
    atomic_store(&o->stop_ns, now_ns());
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (pthread_timedjoin_np(o->thread, NULL, &until) == 0) {
        pthread_cond_destroy(&o->changed);
        pthread_mutex_destroy(&o->lock);
        release(o);
    }
    return NULL;
}
