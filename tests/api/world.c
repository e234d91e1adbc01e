#include "world.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "api/http/websocket.h"
#include "base/log.h"
#include "base/loop_bytes.h"
#include "tests/support/test_data.h"
#include "tiny.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_do_recoverable_leak_check() 0
#endif

#define PATIENCE 20000 /* turns without new bytes before a test fails */

void world_init(struct world *w) {
    static const char *const aliases[] = {"alias", NULL};

    memset(w, 0, sizeof(*w));
    signal(SIGPIPE, SIG_IGN); /* ignored as in the daemon */
    log_init(getenv("WEFT_TEST_LOG") ? WLOG_DEBUG : WLOG_ERROR, "test");
    w->opts = (struct api_opts){
        .max_connections = 64,
        .max_running = 8,
        .max_queued = 4,
        .max_n = 8,
        .max_body_bytes = 1 << 20,
        .picture_max_megapixels = 32,
        .max_header_bytes = 16 << 10,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 10000,
        .idle_timeout_ms = 10000,
        .keepalive_ms = 10000,
        .stall_timeout_ms = 10000,
        .stream_buffer_bytes = 256 << 10,
        .web_page = true,
        .slots = true,
        .max_header_count = 100,
        .owned_by = "weft",
        .digests = true,
    };
    w->model = (struct api_model){
        .id = "tiny",
        .aliases = aliases,
        .tokenizer = tiny_tokenizer(),
        .template = tiny_template(),
        .max_context = 512,
        .n_vocab = TINY_VOCAB + 1,
        .page_tokens = 16,
        .n_pages = 64,
        .n_embd = FAKE_EMBD,
        .created_unix = 1700000000,
    };
    w->clock = clock_monotonic();
    fake_init(&w->port, w->clock);
}

static int decode(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                  struct picture *out, struct picture_layout *layout, struct err *err) {
    return picture_decode_fit(data, len, fit, out, layout, err);
}

void world_see(struct world *w) {
    static const uint8_t id[32] = {1};
    static const struct projector projector = {.kind = PROJECTOR_QWEN3VL,
                                               .name = "qwen3vl_merger",
                                               .patch = 16,
                                               .merge = 2,
                                               .least = 8,
                                               .most = 4096,
                                               .filter = FILTER_BICUBIC,
                                               .positions = true};

    tokenizer_free((struct tokenizer *)(uintptr_t)w->model.tokenizer);
    w->model.tokenizer = tiny_seeing_tokenizer();
    w->model.n_vocab = TINY_ALL;
    w->model.projector = &projector;
    w->model.projector_id = id;
    w->opts.decode = decode;
}

int world_reload_keys(struct world *w, struct err *err) {
    struct auth *keys;
    int r = api_read_keys(w->api, &keys, err);

    if (r == 0)
        api_set_keys(w->api, keys);
    return r;
}

void world_start(struct world *w) {
    static int number;
    struct err err = {0};

    uv_loop_init(&w->loop);
    cr_assert_eq(api_new(&w->api, &w->loop, &w->opts, &w->model, &w->port.port, w->clock), 0);
    w->port.model = api_first_model(w->api);
    cr_assert_eq(world_reload_keys(w, &err), 0, "%s", err.message);
    cr_assert_eq(api_listen_tcp(w->api, "127.0.0.1", 0, false, &w->tcp_port, &err), 0, "%s",
                 err.message);
    snprintf(w->path, sizeof(w->path), "/tmp/weft-test-%d-%d.sock", getpid(), number++);
    cr_assert_eq(api_listen_unix(w->api, w->path, &err), 0, "%s", err.message);
    if (!w->starting) {
        api_set_health(w->api, API_SERVING);
        api_worker_up(api_first_model(w->api), NULL);
    }
}

void world_turn(struct world *w) {
    loop_watch = w->unwatched ? NULL : loop_watch_limits;
    uv_run(&w->loop, UV_RUN_NOWAIT);
    loop_watch_turn();
    fake_turn(&w->port);
    loop_watch = NULL; /* what the tests themselves do is not the loop's */
}

void world_turns(struct world *w, int n) {
    while (n--)
        world_turn(w);
}

uint64_t world_limit(void) {
    return uv_hrtime() + 10000000000u;
}

void world_stop(struct world *w) {
    api_close(w->api);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    struct api_stats s;
    api_stats(w->api, &s);
    cr_expect_eq(s.n_connections, 0);
    cr_expect_eq(s.n_running + s.n_queued, 0);
    cr_expect(!api_busy(w->api));
    cr_expect_eq(uv_loop_close(&w->loop), 0, "handles are left open");
    cr_expect_neq(access(w->path, F_OK), 0, "the socket file is left");
    api_free(w->api);
    world_deinit(w);
}

void world_deinit(struct world *w) {
    tokenizer_free((struct tokenizer *)(uintptr_t)w->model.tokenizer);
    template_free((struct template *)(uintptr_t)w->model.template);
    fake_deinit(&w->port);
    w->api = NULL;
    memset(&w->model, 0, sizeof(w->model));
    cr_expect_eq(__lsan_do_recoverable_leak_check(), 0, "memory leaks");
}

static int connect_to(const struct sockaddr *sa, socklen_t len) {
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, sa, len), 0, "%s", strerror(errno));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int one = 1;
    if (sa->sa_family == AF_INET)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

int world_connect(struct world *w) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)w->tcp_port)};

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect_to((struct sockaddr *)&sa, sizeof(sa));
}

int world_connect_unix(struct world *w) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", w->path);
    return connect_to((struct sockaddr *)&sa, sizeof(sa));
}

void world_drop(struct world *w, int fd) {
    close(fd);
    world_turns(w, 4);
}

/* Sleeps a little after many turns without new bytes. */
static void pause_for(int fd, int *n_idle) {
    struct pollfd p = {.fd = fd, .events = POLLIN};

    poll(&p, 1, ++*n_idle > 30);
}

void world_send(struct world *w, int fd, const char *data, size_t len) {
    int patience = PATIENCE;

    while (len && patience--) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n < 0 && errno != EAGAIN)
            return; /* the server has closed the connection; the answer has the reason */
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
        world_turn(w);
    }
    cr_assert_eq(len, 0, "the server does not read");
}

void world_say(struct world *w, int fd, const char *fmt, ...) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 24};
    va_list ap;

    va_start(ap, fmt);
    cr_assert_eq(buf_vprintf(&b, fmt, ap), 0);
    va_end(ap);
    world_send(w, fd, b.data, b.len);
}

void world_post(struct world *w, int fd, const char *path, const char *body) {
    world_say(w, fd,
              "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              path, strlen(body), body);
}

/* Appends the bytes that have arrived. Returns false if the server closed the connection. */
static bool take(struct world *w, int fd, struct buf *out) {
    static int n_idle;
    char chunk[16384];
    ssize_t n = recv(fd, chunk, sizeof(chunk), 0);

    if (n > 0)
        cr_assert_eq(buf_add(out, chunk, (size_t)n), 0);
    else if (n == 0 || errno != EAGAIN)
        return false;
    world_turn(w);
    if (n < 0)
        pause_for(fd, &n_idle);
    else
        n_idle = 0;
    return true;
}

bool world_read_until(struct world *w, int fd, struct buf *out, const char *needle) {
    int patience = PATIENCE;

    while (!out->data || !memmem(out->data, out->len, needle, strlen(needle))) {
        if (!take(w, fd, out))
            return false;
        cr_assert(patience--, "waited in vain for %s after %.*s", needle, (int)MIN(out->len, 2000u),
                  out->data ? out->data : "");
    }
    return true;
}

int world_websocket(struct world *w, const char *path) {
    CLEANUP(buf_deinit) struct buf head = {.max = 1 << 12};
    int fd = world_connect(w);

    world_say(w, fd,
              "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
              "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
              path);
    cr_assert(world_read_until(w, fd, &head, "\r\n\r\n"));
    cr_assert(strstr(head.data, "HTTP/1.1 101"), "%s", head.data);
    return fd;
}

void world_message(struct world *w, int fd, const char *text) {
    uint8_t head[WEBSOCKET_HEAD];
    size_t n = websocket_head(head, WEBSOCKET_TEXT, strlen(text));

    head[1] |= 0x80;
    world_send(w, fd, (const char *)head, n);
    world_send(w, fd, "\0\0\0\0", 4); /* the mask */
    world_send(w, fd, text, strlen(text));
}

const char *reply_header(const struct reply *r, const char *name, char *out, size_t size) {
    size_t n = strlen(name);

    snprintf(out, size, "%s", "");
    for (const char *line = strchr(r->head, '\n'); line; line = strchr(line + 1, '\n')) {
        if (strncasecmp(line + 1, name, n) != 0 || line[1 + n] != ':')
            continue;
        const char *v = line + n + 2 + strspn(line + n + 2, " ");
        snprintf(out, size, "%.*s", (int)strcspn(v, "\r\n"), v);
    }
    return out;
}

/* Decodes the chunks in @raw from @at on. Returns false if the last chunk has not arrived. */
static bool unchunk(const struct buf *raw, size_t at, struct buf *out, size_t *end) {
    buf_clear(out);
    for (;;) {
        char *line_end = raw->len > at ? memmem(raw->data + at, raw->len - at, "\r\n", 2) : NULL;

        if (!line_end)
            return false;
        size_t n = strtoul(raw->data + at, NULL, 16);
        at = (size_t)(line_end - raw->data) + 2;
        if (raw->len < at + n + 2)
            return false;
        cr_assert_eq(memcmp(raw->data + at + n, "\r\n", 2), 0, "chunk does not end");
        cr_assert_eq(buf_add(out, raw->data + at, n), 0);
        at += n + 2;
        if (n == 0) {
            *end = at;
            return true;
        }
    }
}

void world_receive(struct world *w, int fd, struct reply *r) {
    CLEANUP(buf_deinit) struct buf raw = {.max = 1 << 28};
    char value[64];
    int patience = PATIENCE;

    memset(r, 0, sizeof(*r));
    r->body.max = 1 << 28;
    bool open;
    while ((open = world_read_until(w, fd, &raw, "\r\n\r\n")) &&
           strncmp(raw.data, "HTTP/1.1 100", 12) == 0)
        buf_consume(&raw, 25);
    if (!raw.len) {
        r->closed = true;
        return;
    }
    char *split = memmem(raw.data, raw.len, "\r\n\r\n", 4);
    cr_assert(split, "half a head: %.*s", (int)raw.len, raw.data);
    size_t head = (size_t)(split - raw.data) + 4;
    snprintf(r->head, sizeof(r->head), "%.*s", (int)head, raw.data);
    cr_assert_eq(sscanf(r->head, "HTTP/1.1 %d", &r->status), 1);
    reply_header(r, "content-length", value, sizeof(value));
    size_t want = *value ? strtoul(value, NULL, 10) : SIZE_MAX, end = 0;
    bool chunked = *reply_header(r, "transfer-encoding", value, sizeof(value));
    bool done = false;
    do {
        done = chunked ? unchunk(&raw, head, &r->body, &end) : raw.len - head >= want;
        cr_assert(patience--, "the answer does not end: %.3000s", raw.data);
    } while (!done && (open = open && take(w, fd, &raw)));
    if (!chunked) {
        end = MIN(raw.len, want == SIZE_MAX ? raw.len : head + want);
        cr_assert_eq(buf_add(&r->body, raw.data + head, end - head), 0);
    }
    cr_expect(done || want == SIZE_MAX, "the answer is cut off");
    cr_expect_eq(raw.len, end, "bytes after the answer: %s", raw.data + end);
    if (strcasecmp(reply_header(r, "connection", value, sizeof(value)), "close") == 0) {
        for (patience = PATIENCE; (open = open && take(w, fd, &raw)) && patience--;)
            ;
        r->closed = !open;
        cr_expect(r->closed, "announced to close, but did not");
    }
}

void reply_deinit(struct reply *r) {
    buf_deinit(&r->body);
}

void world_ask(struct world *w, const char *path, const char *body, struct reply *r) {
    int fd = world_connect(w);

    world_post(w, fd, path, body);
    world_receive(w, fd, r);
    world_drop(w, fd);
}

void world_get(struct world *w, const char *path, struct reply *r) {
    int fd = world_connect(w);

    world_say(w, fd, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    world_receive(w, fd, r);
    world_drop(w, fd);
}

#define TEMPLATE_MAX (1u << 20)

char *world_template(const char *name, size_t *len) {
    char path[TEST_DATA_PATH];
    FILE *f = fopen(test_data_file(path, "templates", name, ".jinja"), "rb");
    char *text = calloc(1, TEMPLATE_MAX);

    cr_assert(f && text, "%s", path);
    *len = fread(text, 1, TEMPLATE_MAX - 1, f);
    fclose(f);
    return text;
}

void world_use_template(struct world *w, const char *source, size_t len) {
    struct template *t = NULL;
    struct err err = {0};

    cr_assert_eq(template_new(&t, source, len, &err), 0, "%s", err.message);
    template_free((struct template *)(uintptr_t)w->model.template);
    w->model.template = t;
    w->model.template_source = source;
    w->model.template_len = len;
    w->model.n_vocab = TINY_ALL;
}

void world_raw(struct world *w, const char *text, struct reply *r) {
    int fd = world_connect(w);

    world_send(w, fd, text, strlen(text));
    world_receive(w, fd, r);
    world_drop(w, fd);
}

void world_expect(struct world *w, const char *request, int status, const char *needle) {
    struct reply r;

    world_raw(w, request, &r);
    cr_expect_eq(r.status, status, "%.200s: %d, not %d: %s", request, r.status, status,
                 r.body.data ? r.body.data : "");
    cr_expect(!needle || strstr(r.body.data ? r.body.data : "", needle), "%.200s: %s has no %s",
              request, r.body.data, needle);
    reply_deinit(&r);
}
