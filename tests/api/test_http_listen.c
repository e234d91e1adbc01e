/* Listeners, the clients that may connect to them, and the end of their service. */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "world.h"

#define HELLO R"({"messages":[{"role":"user","content":"hi"}]})"

static bool listens_fail;

/* Replaces the C library's function, also for libuv. */
int listen(int fd, int backlog) {
    if (listens_fail) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

Test(http_listen, one_connection_too_many_is_told_so) {
    struct world w;
    struct reply r;
    int fd[3];

    world_init(&w);
    w.opts.max_connections = 2;
    world_start(&w);
    for (int i = 0; i < 3; i++) { /* two connections are busy, so none can be closed to make room */
        fd[i] = world_connect(&w);
        if (i < 2)
            world_post(&w, fd[i], "/v1/chat/completions", HELLO);
        world_turns(&w, 5);
    }
    world_receive(&w, fd[2], &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "too_many_connections"));
    reply_deinit(&r);
    fake_accept(&w.port, 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd[0], &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    for (int i = 0; i < 3; i++)
        world_drop(&w, fd[i]);
    world_stop(&w);
}

Test(http_listen, unix_socket_serves_and_needs_no_known_host) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect_unix(&w);
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: anything\r\n\r\n");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(http_listen, unknown_origins_on_a_unix_socket_are_told_nothing) {
    static const char *const origins[][2] = {{"http://localhost:3000", "http://localhost:3000"},
                                             {"https://evil.example", ""}};
    struct world w;
    struct reply r;
    char v[128];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(origins); i++) {
        int fd = world_connect_unix(&w);

        world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: a\r\nOrigin: %s\r\n\r\n", origins[i][0]);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(reply_header(&r, "access-control-allow-origin", v, sizeof(v)),
                         origins[i][1]);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

Test(http_listen, configured_hosts_are_known) {
    static const char *const hosts[] = {"weft.example", NULL}, *const all[] = {"*", NULL};
    struct world w;

    world_init(&w);
    w.opts.hosts = hosts;
    world_start(&w);
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: WEFT.example:8080\r\n\r\n", 200, "ok");
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: x.weft.example\r\n\r\n", 421, "misdirected");
    world_stop(&w);
    world_init(&w);
    w.opts.hosts = all;
    world_start(&w);
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: x.y\r\n\r\n", 200, "ok");
    world_stop(&w);
}

Test(http_listen, draining_answers_idle_connections_once) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    int fd = world_connect(&w);
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    api_set_health(w.api, API_DRAINING);
    api_drain(w.api);
    world_turns(&w, 3);
    world_post(&w, fd, "/v1/chat/completions", "{}");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, R"("code":"draining")"));
    cr_expect_str_eq(reply_header(&r, "retry-after", v, sizeof(v)), "2");
    cr_expect(r.closed);
    reply_deinit(&r);
    close(fd);
    world_stop(&w);
}

/* A proxy sends a request on a connection that it made just before. */
Test(http_listen, draining_serves_the_first_request_of_a_connection) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "a";
    int fd = world_connect(&w);
    world_turns(&w, 3);
    api_drain(w.api);
    world_post(&w, fd, "/v1/completions", R"({"prompt":[1],"max_tokens":1})");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(r.closed);
    reply_deinit(&r);
    close(fd);
    world_stop(&w);
}

Test(http_listen, leaving_serves_what_is_on_its_way_and_closes) {
    struct world w;
    struct reply r;
    int fd[2];

    started(&w);
    for (int i = 0; i < 2; i++)
        fd[i] = world_connect(&w);
    world_say(&w, fd[1], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd[1], &r);
    reply_deinit(&r);
    api_stop_accepting(w.api);
    world_turns(&w, 3);
    world_say(&w, fd[0], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd[0], &r);
    cr_expect_eq(r.status, 200);
    cr_expect(r.closed);
    reply_deinit(&r);
    api_drain(w.api);
    world_post(&w, fd[1], "/v1/chat/completions", "{}");
    world_receive(&w, fd[1], &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    close(fd[0]);
    close(fd[1]);
    world_stop(&w);
}

static int tcp(struct world *w, const char *host, int port, bool tls, struct err *err) {
    *err = (struct err){0};
    return api_listen_tcp(w->api, host, port, tls, NULL, err);
}

static int local(struct world *w, const char *path, struct err *err) {
    *err = (struct err){0};
    return api_listen_unix(w->api, path, err);
}

static void refused(int got, int want, const struct err *err, const char *text) {
    cr_expect_eq(got, want, "%d, not %d: %s", got, want, err->message);
    cr_expect(strstr(err->message, text), "%s has no %s", err->message, text);
    cr_expect_str_eq(err->param, strstr(text, "TLS") ? "tls-certificate" : "listen");
    cr_expect_eq(err->status, 0);
}

Test(http_listen, what_cannot_be_listened_on_is_said) {
    static const char elsewhere[] = ": address already in use. Stop the program that listens there "
                                    "(ss -ltnp names it), or choose another address.";
    static const char any_address[] = "another address; [::] stands for all addresses";
    struct world w;
    struct err err;
    int port = 0;

    started(&w);
    cr_assert_eq(api_listen_tcp(w.api, "*", 0, false, &port, &err), 0);
    cr_expect_gt(port, 0);
    refused(tcp(&w, "127.0.0.1", w.tcp_port, false, &err), UV_EADDRINUSE, &err, elsewhere);
    refused(tcp(&w, "localhost", w.tcp_port, false, &err), UV_EADDRINUSE, &err, ": 127.0.0.1:");
    refused(tcp(&w, "0.0.0.0", port, false, &err), UV_EADDRINUSE, &err, any_address);
    refused(tcp(&w, "*", port, false, &err), UV_EADDRINUSE, &err, any_address);
    refused(tcp(&w, "192.0.2.1", 0, false, &err), UV_EADDRNOTAVAIL, &err,
            ". No interface of this machine has this address");
    refused(tcp(&w, "not-an-address", 1, false, &err), -EINVAL, &err,
            "listen: not-an-address:1: must be an address");
    refused(tcp(&w, "1:2", 1, false, &err), -EINVAL, &err, "listen: [1:2]:1: must be");
    refused(tcp(&w, "127.0.0.1", 0, true, &err), -EINVAL, &err,
            "an address with TLS needs tls-certificate and tls-key");
    refused(local(&w, w.path, &err), UV_EADDRINUSE, &err,
            ". Stop the program that listens there (ss -lxp names it; remove the file");
    cr_expect_eq(access(w.path, F_OK), 0, "a socket in use is not touched");
    refused(local(&w, "/no/such/folder/x", &err), UV_ENOENT, &err, "no such file or directory");
    cr_expect_eq(err.message[strlen(err.message) - 1], 'y', "no advice: %s", err.message);
    *err.message = 0;
    cr_expect_lt(api_listen_fd(w.api, 12345, false, &err), 0);
    cr_expect_str_eq(err.message, "listen: inherited descriptor 12345: Bad file descriptor");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_expect_eq(api_listen_fd(w.api, fd, true, &err), -EINVAL);
    cr_expect(strstr(err.message, "needs tls-certificate"), "%s", err.message);
    close(fd);
    world_stop(&w);
}

/* The longest path that the system takes, and one byte more. */
Test(http_listen, a_path_may_be_as_long_as_the_system_allows) {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    size_t most = sizeof(path) - 2;
    struct world w;
    struct err err;

    memset(path, 'x', sizeof(path));
    snprintf(path, sizeof(path), "/tmp/weft-test-long-%d", getpid());
    path[strlen(path)] = '-';
    path[most + 1] = 0;
    started(&w);
    refused(local(&w, path, &err), -EINVAL, &err, "...: the path is longer than 107 bytes");
    path[most] = 0;
    cr_expect_eq(local(&w, path, &err), 0, "%s", err.message);
    cr_expect_eq(access(path, F_OK), 0);
    world_stop(&w);
    cr_expect_neq(access(path, F_OK), 0, "%s stays", path);
}

Test(http_listen, no_socket_file_stays_when_listening_fails) {
    struct world w;
    struct err err = {0};
    char path[64];

    started(&w);
    snprintf(path, sizeof(path), "/tmp/weft-test-bound-%d", getpid());
    listens_fail = true;
    cr_expect_lt(api_listen_unix(w.api, path, &err), 0);
    cr_expect(strstr(err.message, "not supported"), "%s", err.message);
    cr_expect_neq(access(path, F_OK), 0, "%s stays", path);
    world_stop(&w);
}

Test(http_listen, a_stale_socket_file_is_replaced_and_a_file_is_not) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct world w;
    struct err err = {0};

    started(&w);
    snprintf(sa.sun_path, sizeof(sa.sun_path), "/tmp/weft-test-stale-%d", getpid());
    unlink(sa.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    close(fd); /* leaves the file, as after a crash */
    cr_expect_eq(api_listen_unix(w.api, sa.sun_path, &err), 0, "%s", err.message);
    world_stop(&w);
    FILE *f = fopen(sa.sun_path, "w");
    cr_assert(f && fputs("a file\n", f) >= 0 && fclose(f) == 0);
    started(&w);
    cr_expect_lt(api_listen_unix(w.api, sa.sun_path, &err), 0);
    cr_expect_eq(access(sa.sun_path, F_OK), 0);
    unlink(sa.sun_path);
    world_stop(&w);
}

Test(http_listen, an_inherited_socket_and_ipv6_serve) {
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof(sa);
    struct world w;
    struct reply r;
    struct err err = {0};
    int port = 0;

    started(&w);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    cr_assert_eq(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *)&sa, &len);
    cr_expect_eq(api_listen_fd(w.api, fd, false, &err), 0, "%s", err.message);
    w.tcp_port = ntohs(sa.sin_port);
    world_get(&w, "/health", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    if (api_listen_tcp(w.api, "::1", 0, false, &port, &err) == 0) /* if the machine has IPv6 */
        cr_expect_gt(port, 0);
    world_stop(&w);
}

/* Listening for other machines without keys gives a warning. */
Test(http_listen, addresses_that_others_reach_without_keys_are_told) {
    static const struct {
        const char *address, *line;
    } cases[] = {
        {"127.0.0.1", NULL}, {"127.9.9.9", NULL}, {"localhost", NULL},
        {"::1", NULL},       {"::", "[::]"},      {"0.0.0.0", "0.0.0.0"},
    };
    FILE *f = tmpfile();
    struct world w;
    struct err err;

    cr_assert(f && dup2(fileno(f), STDERR_FILENO) >= 0); /* before the first event is logged */
    started(&w);
    log_set_level(WLOG_WARN);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char got[300] = "", want[100];
        int port;
        long before = ftell(f);

        err = (struct err){0};
        if (api_listen_tcp(w.api, cases[i].address, 0, false, &port, &err) < 0) {
            /* the machine has no IPv6 */
            cr_expect(strchr(cases[i].address, ':'), "%s", err.message);
            continue;
        }
        fseek(f, before, SEEK_SET);
        got[fread(got, 1, sizeof(got) - 1, f)] = 0;
        snprintf(want, sizeof(want), "listen_without_keys address=%s:%d\n", cases[i].line, port);
        cr_expect(cases[i].line ? strstr(got, want) != NULL : !*got, "%s: %s", cases[i].address,
                  got);
    }
    world_stop(&w);
    fclose(f);
}

/* Two daemons may share a socket: only the one that owns its path removes the file. */
Test(http_listen, the_file_of_a_socket_is_its_owners) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa);
    struct world w;
    struct reply r;
    struct err err = {0};

    started(&w);
    int fd = api_last_fd(w.api);
    cr_assert_geq(fd, 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    cr_expect_str_eq(sa.sun_path, w.path, "the socket that was listened on last");
    int inherited = dup(fd); /* as the next daemon inherits it */
    api_own_paths(w.api, false);
    char path[sizeof(w.path)];
    snprintf(path, sizeof(path), "%s", w.path);
    snprintf(w.path, sizeof(w.path), "/nowhere"); /* which world_stop() asserts to be gone */
    world_stop(&w);
    cr_expect_eq(access(path, F_OK), 0, "the file stays for the next daemon");

    world_init(&w);
    world_start(&w);
    cr_assert_eq(api_listen_fd(w.api, inherited, false, &err), 0, "%s", err.message);
    cr_expect_eq(api_last_fd(w.api), inherited);
    api_own_paths(w.api, true);
    snprintf(w.path, sizeof(w.path), "%s", path);
    int client = world_connect_unix(&w);
    world_say(&w, client, "GET /health HTTP/1.1\r\nHost: anything\r\n\r\n");
    world_receive(&w, client, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, client);
    world_stop(&w); /* removes both files */
}
