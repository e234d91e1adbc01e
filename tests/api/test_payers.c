/* Choice of the payer that loses a place when connections, bodies or unsent output are full:
 * connections without a key, from this one address, beside those of the tenants alice and bob. */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/json.h"
#include "api/http/payer.h"
#include "api/http/respond.h"
#include "api/http/server.h"
#include "api/parts.h"
#include "stream.h"

#define PLACES 8

static struct world w;
/* the address that every peer seems to have; family 0: its own */
static struct sockaddr_storage seeming;

/* Replaces the C library's function. */
int getpeername(int fd, __SOCKADDR_ARG sa, socklen_t *restrict len) {
    if (!seeming.ss_family)
        return (int)syscall(SYS_getpeername, fd, sa.__sockaddr__, len);
    memcpy(sa.__sockaddr__, &seeming, MIN(*len, sizeof(seeming)));
    return 0;
}

static void start(void) {
    char path[64];

    snprintf(path, sizeof(path), "/tmp/weft-test-payers-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("alice:ka\nbob:kb\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.opts.max_connections = PLACES;
    w.opts.max_body_bytes = 65536;
    world_start(&w);
    unlink(path);
}

/* Clients without a key pay together where there are keys; else each address pays for itself. */
Test(payers, who_has_no_key_is_one_of_many) {
    for (int keys = 0; keys < 2; keys++) {
        if (keys) {
            start();
        } else {
            world_init(&w);
            world_start(&w);
        }
        struct payers *all = &w.api->http.payers;
        int fd = world_connect(&w);
        struct payer *p = payer_of_peer(all, fd);

        cr_assert_not_null(p);
        for (int i = 0; i < PAYER_RESOURCES; i++)
            cr_expect_eq(p->account[i].parent == &all->strangers.account[i], keys, "%d", i);
        payer_release(p);
        world_drop(&w, fd);
        world_stop(&w);
    }
}

static void say(int fd, const char *text) {
    world_send(&w, fd, text, strlen(text));
    world_turns(&w, 4);
}

static bool is_open(int fd) {
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* Reads one answer on a connection that stays open. */
static void expect_answer(int fd, int status) {
    struct reply r;

    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, status, "%d: %s", r.status, r.body.data ? r.body.data : "");
    reply_deinit(&r);
}

/* Returns a connection that has sent a request with @key (NULL: none) and is idle. */
static int idle(const char *key) {
    char text[200];
    int fd = world_connect(&w);

    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n",
             key ? "/v1/models" : "/health", key ? "Authorization: Bearer " : "", key ? key : "");
    if (key)
        strcat(text, "\r\n");
    say(fd, text);
    expect_answer(fd, 200);
    return fd;
}

static uint32_t n_open(const int *fd, int n) {
    uint32_t open = 0;

    for (int i = 0; i < n; i++)
        open += is_open(fd[i]);
    return open;
}

static void drop(const int *fd, int n) {
    for (int i = 0; i < n; i++)
        world_drop(&w, fd[i]);
}

Test(payers, idle_connections_without_a_key_lock_out_no_one) {
    int flood[40], own[2];

    start();
    own[0] = idle("ka");
    for (int i = 0; i < 40; i++)
        flood[i] = idle(NULL);
    own[1] = idle("kb");
    cr_expect_eq(n_open(flood, 40), PLACES - 2);
    for (int i = 0; i < 40; i++)
        cr_expect_eq(is_open(flood[i]), i >= 40 - (PLACES - 2), "the oldest go first: %d", i);
    cr_expect_eq(n_open(own, 2), 2, "a tenant within its share keeps its connections");
    drop(flood, 40);
    drop(own, 2);
    world_stop(&w);
}

Test(payers, a_tenant_above_its_share_gives_way_to_another) {
    int many[PLACES], one, next;

    start();
    for (int i = 0; i < PLACES; i++)
        many[i] = idle("ka");
    one = idle("kb");
    cr_expect(!is_open(many[0]));
    cr_expect_eq(n_open(many, PLACES), PLACES - 1);
    next = idle("ka"); /* comes without a key, and then belongs to alice */
    cr_expect(is_open(one));
    cr_expect(!is_open(many[1]));
    drop(many, PLACES);
    world_drop(&w, one);
    world_drop(&w, next);
    world_stop(&w);
}

Test(payers, half_a_head_or_an_unread_refusal_holds_no_place) {
    int flood[PLACES], fd;

    start();
    for (int i = 0; i < PLACES; i++) {
        flood[i] = world_connect(&w);
        say(flood[i], i % 2 ? "GET /heal"
                            : "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                              "Content-Length: 100\r\n\r\n{");
    }
    fd = idle("ka");
    cr_expect(!is_open(flood[0]));
    cr_expect(is_open(flood[1]));
    cr_expect(is_open(fd));
    drop(flood, PLACES);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(payers, a_unix_socket_has_places_of_its_own) {
    int busy[PLACES], fd;
    const char body[] = R"({"prompt":"a"})";
    struct reply r;

    start();
    for (int i = 0; i < PLACES; i++) {
        busy[i] = world_connect(&w);
        world_say(&w, busy[i],
                  "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  sizeof(body) - 1, body);
        world_turns(&w, 4);
    }
    fd = world_connect(&w); /* running requests are not interrupted */
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    world_drop(&w, fd);
    fd = world_connect_unix(&w);
    say(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect_answer(fd, 200);
    world_drop(&w, fd);
    drop(busy, PLACES);
    world_stop(&w);
}

/* Sends @n bytes of an unfinished body. */
static int begin_body(const char *key, size_t n) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    int fd = world_connect(&w);

    buf_printf(&b,
               "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
               "Content-Length: %zu\r\n\r\n"
               R"({"prompt":")",
               key, n);
    while (b.len < n)
        buf_add_char(&b, 'a');
    world_send(&w, fd, b.data, b.len);
    world_turns(&w, 6);
    return fd;
}

Test(payers, unfinished_bodies_of_a_tenant_refuse_no_other) {
    int flood[12], own, fd;

    start();
    own = begin_body("kb", 60000);
    for (int i = 0; i < 7; i++)
        flood[i] = begin_body("ka", 65536);
    cr_expect_eq(n_open(flood, 7), 7);
    for (int i = 0; i < 4; i++) { /* complete, while there is no room for another one */
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

        fd = world_connect_unix(&w);
        buf_add_str(&b, R"({"prompt":")");
        while (b.len < 60000)
            buf_add_char(&b, ' ');
        buf_add_str(&b, R"("})");
        world_say(&w, fd,
                  "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer kb\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  b.len, b.data);
        expect_answer(fd, 200);
        world_drop(&w, fd);
    }
    expect_answer(flood[0], 503);
    for (int i = 2; i < 7; i++)
        cr_expect(recv(flood[i], &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) < 0, "%d", i);
    cr_expect(recv(own, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) < 0, "within its share");
    drop(flood, 7);
    world_drop(&w, own);
    world_stop(&w);
}

/* ---- unsent output, at a server whose answers are large ---- */

#define ANSWER (8u << 20)

static int n_gone;

static void serve(struct exchange *x, struct http *h) {
    char *data = calloc(1, ANSWER);

    (void)h;
    respond(x, 200, RESPOND_JSON, data, ANSWER);
    free(data);
}

static void put_error(struct json *j, const struct exchange *x, const struct err *err) {
    (void)x;
    (void)err;
    json_open(j, '{');
    json_close(j, '}');
}

static void on_ended(const struct exchange *x) {
    (void)x;
    n_gone++;
}

#define PART 40000u

static void serve_part(struct exchange *x, struct http *h) {
    static char data[PART];

    (void)h;
    respond(x, 200, RESPOND_JSON, data, PART);
}

/* Streams an event that leaves three bytes of the room for unsent output. */
static void serve_full(struct exchange *x, struct http *h) {
    char head[24];

    (void)h;
    respond_stream(x);
    size_t n = x->conn->out.max - x->conn->out.len - 3 - strlen("\r\n");
    n -= (size_t)snprintf(head, sizeof(head), "%zx\r\n", n);
    char *data = calloc(1, n);
    respond_event(x, data, n);
    free(data);
    cr_expect_eq(x->conn->out.max - x->conn->out.len, 3);
    respond_stream_end(x);
}

static const struct route routes[] = {{"/large", HTTP_GET, .serve = serve},
                                      {"/full", HTTP_GET, .serve = serve_full},
                                      {"/part", HTTP_GET, .serve = serve_part},
                                      {0}};
static const struct dialect dialect = {.name = "test",
                                       .routes = routes,
                                       .put_error = put_error,
                                       .stream_type = "text/plain",
                                       .event_begin = "",
                                       .event_end = ""};
static const struct dialect *const dialects[] = {&dialect, NULL};

static int connect_and_ask(struct http_server *s, struct world *at, bool local,
                           const char *request) {
    int fd = local ? world_connect_unix(at) : world_connect(at);

    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int));
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    for (int i = 0; i < 20; i++)
        uv_run(s->opts.loop, UV_RUN_NOWAIT);
    return fd;
}

/* Reads what has arrived. Returns whether the connection was reset. */
static bool is_reset(int fd) {
    static char chunk[1 << 16];
    ssize_t n;

    do {
        n = recv(fd, chunk, sizeof(chunk), 0);
    } while (n > 0);
    return n < 0 && errno == ECONNRESET;
}

static uv_loop_t loop;

/* Starts @s, which has room for four answers that are not read yet. Its addresses are in @at. */
static void start_server(struct http_server *s, struct world *at) {
    struct err err;
    const struct http_server_opts o = {
        .loop = &loop,
        .clock = clock_monotonic(),
        .name = "test",
        .dialects = dialects,
        .limits = {.target = 100, .head = 4096, .body = 100, .n_headers = 10},
        .max_connections = 20,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 10000,
        .idle_timeout_ms = 10000,
        .stall_timeout_ms = 10000,
        .stream_buffer_bytes = 65536,
        .max_unsent = 2 * ANSWER,
        .max_bodies = 1000,
        .max_output = 4 * ANSWER,
        .stream_headers = "",
        .ended = on_ended,
    };
    uv_loop_init(&loop);
    cr_assert_eq(http_server_init(s, &o), 0);
    cr_assert_eq(http_server_listen_tcp(s, "127.0.0.1", 0, false, &at->tcp_port, &err), 0);
    snprintf(at->path, sizeof(at->path), "/tmp/weft-test-payers-%d.sock", getpid());
    cr_assert_eq(http_server_listen_unix(s, at->path, &err), 0);
}

static void stop_server(struct http_server *s) {
    http_server_close(s, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_expect_eq(s->payers.quota[PAYER_OUTPUT].root.used, 0);
    http_server_deinit(s);
    cr_expect_eq(uv_loop_close(&loop), 0);
}

#define LARGE "GET /large HTTP/1.1\r\n\r\n"

Test(payers, readers_that_do_not_read_are_cut_off_before_another_is) {
    static struct http_server s;
    static struct world at; /* used only for its addresses */
    int slow[8], other;
    unsigned n_reset = 0;

    start_server(&s, &at);
    other = connect_and_ask(&s, &at, true, LARGE);
    for (int i = 0; i < 8; i++)
        slow[i] = connect_and_ask(&s, &at, false, LARGE);
    const struct quota *q = &s.payers.quota[PAYER_OUTPUT];
    cr_expect_leq(q->root.used, 4 * ANSWER);
    cr_expect_geq(s.n_lost_outputs, 4);
    size_t got = 0;
    ssize_t n = 1;
    while (n != 0 && got < ANSWER) { /* the connection over the UNIX socket has its whole answer */
        static char chunk[1 << 16];

        n = recv(other, chunk, sizeof(chunk), 0);
        got += n > 0 ? (size_t)n : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
        cr_assert(n >= 0 || errno == EAGAIN);
    }
    cr_expect_geq(got, ANSWER);
    for (int i = 0; i < 8; i++) { /* an answer that was cut off does not look complete */
        n_reset += is_reset(slow[i]);
        close(slow[i]);
    }
    cr_expect_geq(n_reset, s.n_lost_outputs);
    close(other);
    stop_server(&s);
    cr_expect_eq(n_gone, 9);
}

/* Without its last chunk the next answer of the connection would look like a chunk. */
Test(payers, a_stream_without_room_for_its_last_chunk_is_cut_off) {
    static struct http_server s;
    static struct world at;
    unsigned before = n_gone;

    start_server(&s, &at);
    int fd = connect_and_ask(&s, &at, false, "GET /full HTTP/1.1\r\n\r\n");
    cr_expect_eq(n_gone, before + 1);
    cr_expect(is_reset(fd));
    close(fd);
    stop_server(&s);
}

/* Asks for parts until the connection waits for a request although something is unsent. Returns how
 * many parts it asked for. */
static unsigned ask_until_unsent(struct http_server *s, struct conn *c, int fd) {
    static const char part[] = "GET /part HTTP/1.1\r\n\r\n";
    unsigned n = 0;

    for (; conn_unsent(c) == 0; n++) {
        cr_assert_eq(send(fd, part, strlen(part), MSG_NOSIGNAL), strlen(part));
        for (int i = 0; i < 20; i++)
            uv_run(s->opts.loop, UV_RUN_NOWAIT);
    }
    cr_assert(c->state == CONN_IDLE && conn_is_flushing(c));
    return n;
}

/* Reads until the connection ends. Returns the number of bytes. */
static size_t read_to_end(int fd) {
    static char chunk[1 << 16];
    size_t got = 0;
    ssize_t n = 1;

    while (n != 0) {
        n = recv(fd, chunk, sizeof(chunk), 0);
        cr_assert(n >= 0 || errno == EAGAIN, "%zu bytes, then %s", got, strerror(errno));
        got += n > 0 ? (size_t)n : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    return got;
}

static void run_for_ms(int ms) {
    for (int i = 0; i < ms; i++) {
        usleep(1000);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
}

Test(payers, what_is_unread_between_two_requests_is_no_idle_time) {
    static struct http_server s;
    static struct world at;

    start_server(&s, &at);
    s.opts.idle_timeout_ms = 20;
    s.opts.stall_timeout_ms = 300;
    int fd = connect_and_ask(&s, &at, true, "");
    struct conn *c = LIST_ENTRY(s.conns.next, struct conn, link);
    unsigned n = ask_until_unsent(&s, c, fd);
    run_for_ms(60);
    cr_expect(http_server_is_busy(&s));
    cr_expect_geq(read_to_end(fd), (size_t)n * PART, "it has been idle after its answer");
    close(fd);
    stop_server(&s);
}

Test(payers, who_reads_nothing_between_two_requests_is_cut_off) {
    static struct http_server s;
    static struct world at;

    start_server(&s, &at);
    s.opts.stall_timeout_ms = 20;
    int fd = connect_and_ask(&s, &at, true, "");
    ask_until_unsent(&s, LIST_ENTRY(s.conns.next, struct conn, link), fd);
    run_for_ms(100);
    cr_expect(list_empty(&s.conns));
    close(fd);
    stop_server(&s);
}

Test(payers, a_reader_between_two_requests_keeps_its_place) {
    static struct http_server s;
    static struct world at;
    struct quota *places = &s.payers.quota[PAYER_UNIX];

    start_server(&s, &at);
    int reader = connect_and_ask(&s, &at, true, "");
    ask_until_unsent(&s, LIST_ENTRY(s.conns.next, struct conn, link), reader);
    int waits = connect_and_ask(&s, &at, true, "");
    places->limit = 2;
    int next = connect_and_ask(&s, &at, true, "");
    cr_expect_eq(recv(waits, &(char){0}, 1, 0), 0, "it gives its place to the next");
    cr_expect_not(is_reset(reader));
    close(reader);
    close(waits);
    close(next);
    stop_server(&s);
}

/* Returns the payer of a peer with @address. */
static struct payer *payer_of(struct payers *ps, const char *address) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)&seeming;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&seeming;

    memset(&seeming, 0, sizeof(seeming));
    seeming.ss_family = strchr(address, ':') ? AF_INET6 : AF_INET;
    if (seeming.ss_family == AF_INET)
        cr_assert_eq(inet_pton(AF_INET, address, &v4->sin_addr), 1, "%s", address);
    else
        cr_assert_eq(inet_pton(AF_INET6, address, &v6->sin6_addr), 1, "%s", address);
    v4->sin_port = (in_port_t)rand(); /* is not a part of the address */
    struct payer *p = payer_of_peer(ps, -1);
    memset(&seeming, 0, sizeof(seeming));
    return p;
}

/* An IPv6 address pays as its network of 64 bits, any other address as a whole. */
Test(payers, an_address_is_that_of_a_host_or_of_a_network) {
    static const struct {
        const char *one, *other;
        bool same;
    } cases[] = {
        {"10.0.0.1", "10.0.0.1", true},
        {"10.0.0.1", "10.0.0.2", false},
        {"10.0.0.1", "11.0.0.1", false},
        {"2001:db8::1", "2001:db8::ffff:2", true},
        {"2001:db8::1", "2001:db8:0:0:8000::1", true},
        {"2001:db8::1", "2001:db8:0:1::1", false},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.1", true},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
        {"::ffff:10.0.0.1", "10.0.0.1", false},
        {"a00:1::", "10.0.0.1", false},
    };
    struct payers ps;

    for (int keys = 0; keys < 2; keys++) {
        memset(&ps, 0, sizeof(ps));
        cr_assert_eq(payers_init(&ps, keys), 0);
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
            struct payer *one = payer_of(&ps, cases[i].one);
            struct payer *other = payer_of(&ps, cases[i].other);

            cr_expect_eq(one == other, cases[i].same, "%s, %s", cases[i].one, cases[i].other);
            cr_expect_eq(one->n_refs, cases[i].same ? 2u : 1u);
            payer_release(one);
            payer_release(other);
        }
        payers_deinit(&ps); /* asserts that none is left */
    }
}
