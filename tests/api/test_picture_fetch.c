/*
 * Pictures from addresses: which hosts and IP addresses are reached, what ends a transfer, and what
 * becomes of the request.
 */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/generation/picture_fetch.h"
#include "api/parts.h"
#include "base/util.h"
#include "stream.h"
#include "tests/support/test_data.h"
#include "tiny.h"
#include "vision/picture.h"

static bool is_public(const char *text) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return picture_fetch_is_public((const struct sockaddr *)&v4);
    cr_assert_eq(inet_pton(AF_INET6, text, &v6.sin6_addr), 1, "%s", text);
    return picture_fetch_is_public((const struct sockaddr *)&v6);
}

Test(picture_fetch, only_addresses_of_the_internet_are_public) {
    static const char *const no[] = {
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:8.8.8.8",
        "::ffff:127.0.0.1",
        "::7f00:1",
        "64:ff9b::7f00:1",
        "fe80::1",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "2001::1",
        "2001:1ff:ffff::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "3fff:fff:ffff::1",
        "4000::1",
    };
    static const char *const yes[] = {
        "1.1.1.1",     "8.8.8.8",      "9.255.255.255",   "11.0.0.0",        "100.63.255.255",
        "100.128.0.0", "126.0.0.1",    "128.0.0.1",       "169.253.0.1",     "172.15.255.255",
        "172.32.0.0",  "192.0.1.1",    "192.167.0.1",     "192.169.0.1",     "198.17.255.255",
        "198.20.0.0",  "203.0.114.0",  "223.255.255.255", "2001:200::1",     "2001:db9::1",
        "2003::1",     "2a00:1450::1", "3ffe::1",         "2606:4700::1111",
    };

    for (size_t i = 0; i < ARRAY_SIZE(no); i++)
        cr_expect_not(is_public(no[i]), "%s", no[i]);
    for (size_t i = 0; i < ARRAY_SIZE(yes); i++)
        cr_expect(is_public(yes[i]), "%s", yes[i]);
    struct sockaddr other = {.sa_family = AF_UNIX};
    cr_expect_not(picture_fetch_is_public(&other));
}

Test(picture_fetch, hosts_that_are_not_listed_are_refused) {
    static const char *const hosts[] = {"pics.example", "img.example:8443", "1.2.3.4", NULL};
    static const struct {
        const char *url;
        bool ok;
    } t[] = {
        {"https://pics.example/a.png", true},
        {"HTTPS://PICS.Example/a.png?b=c#d", true},
        {"https://pics.example:443/", true},
        {"https://img.example:8443/x", true},
        {"https://1.2.3.4/x", true},
        {"https://pics.example:444/", false},
        {"https://img.example/x", false},
        {"http://pics.example/a.png", false},
        {"http://pics.example:443/a.png", false},
        {"ftp://pics.example/a.png", false},
        {"file:///etc/passwd", false},
        {"https://other.example/", false},
        {"https://pics.example.other/", false},
        {"https://xpics.example/", false},
        {"https://pics.example@other.example/", false},
        {"https://user@pics.example/", false},
        {"https://user:word@pics.example/", false},
        {"https://pics.example\\@other.example/", false},
        {"https://other.example#@pics.example/", false},
        {"https://other.example?pics.example/", false},
        {"https://pics.example./", false},
        {"https://pics.example%00.other/", false},
        {"https://pics.example :443/", false},
        {"https://[::1]/", false},
        {"https://[fe80::1%25eth0]/", false},
        {"https:pics.example", false},
        {"https://", false},
        {"https:", false},
        {"", false},
    };
    const struct picture_fetch_opts o = {hosts, picture_fetch_is_public};

    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        struct err err = {0};
        int r = picture_fetch_check(&o, t[i].url, "messages[0].content[1]", &err);

        cr_expect_eq(r, t[i].ok ? 0 : -EINVAL, "%s: %s", t[i].url, err.message);
        if (r == 0)
            continue;
        cr_expect_eq(err.status, 400);
        cr_expect_str_eq(err.code, "invalid_image_url");
        cr_expect(strncmp(err.message, "messages[0].content[1]: ", 24) == 0, "%s", err.message);
    }
}

/* ---- a host on this machine ---- */

static int listener;
static char base[64], allowed[32];
static const char *const own[] = {allowed, NULL};
static _Atomic int n_connections, n_begun, n_left; /* of bodies without an end, n_left: given up */

static bool any(const struct sockaddr *a) {
    return true;
}

static void say(int fd, const char *text) {
    ssize_t r = write(fd, text, strlen(text));
    (void)r;
}

/* Sends a body without an end, until the client has left. */
static void drip(int fd) {
    say(fd, "HTTP/1.1 200 OK\r\n\r\n");
    n_begun++;
    while (send(fd, "x", 1, MSG_NOSIGNAL) == 1)
        usleep(1000);
    n_left++;
}

static void send_picture(int fd) {
    char path[TEST_DATA_PATH], head[64];
    static uint8_t data[1 << 16];
    FILE *f = fopen(test_data_file(path, "golden-vision/resize", "source-97x61.png", ""), "rb");
    size_t n = fread(data, 1, sizeof(data), f);

    fclose(f);
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", n);
    say(fd, head);
    send(fd, data, n, MSG_NOSIGNAL);
}

static void answer(int fd, const char *path) {
    static char block[65536];

    if (strncmp(path, "/picture", 8) == 0)
        send_picture(fd);
    else if (strncmp(path, "/drip", 5) == 0)
        drip(fd);
    else if (strncmp(path, "/ok", 3) == 0)
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    else if (strncmp(path, "/empty", 6) == 0)
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/moved", 6) == 0)
        say(fd, "HTTP/1.1 302 Found\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/file", 5) == 0)
        say(fd, "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/claims", 7) == 0)
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx");
    else if (strncmp(path, "/cut", 4) == 0)
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello");
    else if (strncmp(path, "/long", 5) == 0) {
        say(fd, "HTTP/1.1 200 OK\r\n\r\n"); /* the end of the connection ends the body */
        for (uint32_t n = 0; n <= PICTURE_FILE_MAX; n += sizeof(block))
            if (send(fd, block, sizeof(block), MSG_NOSIGNAL) < 0)
                return;
    } else
        say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nsecret");
}

static void *serve(void *arg) {
    char head[4096];
    int fd;

    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        n_connections++;
        ssize_t n = read(fd, head, sizeof(head) - 1);
        head[n > 0 ? n : 0] = 0;
        answer(fd, head + 4);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    return NULL;
}

static void setup(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    pthread_t thread;

    listener = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&a, len), 0);
    cr_assert_eq(listen(listener, 8), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    snprintf(allowed, sizeof(allowed), "localhost:%u", ntohs(a.sin_port));
    snprintf(base, sizeof(base), "http://%s", allowed);
    cr_assert_eq(pthread_create(&thread, NULL, serve, NULL), 0);
    setenv("http_proxy", "http://127.0.0.1:1", 1); /* the proxy is not used */
    n_connections = n_begun = n_left = 0;
}

TestSuite(picture_fetched, .init = setup);

static int get(bool (*may)(const struct sockaddr *), const char *path, struct err *err,
               uint8_t **out, size_t *n) {
    const struct picture_fetch_opts o = {own, may};
    char url[128];

    snprintf(url, sizeof(url), "%s%s", base, path);
    return picture_fetch(&o, url, "place", out, n, err);
}

Test(picture_fetched, a_file_comes_whole) {
    struct err err = {0};
    uint8_t *data = NULL;
    size_t n = 0;

    cr_assert_eq(get(any, "/ok", &err, &data, &n), 0, "%s", err.message);
    cr_expect_eq(n, 5);
    cr_expect_eq(memcmp(data, "hello", 5), 0);
    free(data);
}

Test(picture_fetched, other_answers_are_errors_about_the_place) {
    static const struct {
        const char *path, *text;
        int status;
    } t[] = {
        {"/moved", "place: its host answers with another address, and none is followed.", 400},
        {"/file", "place: its host answers with another address, and none is followed.", 400},
        {"/none", "place: its host has no picture there.", 400},
        {"/empty", "place: its host has no picture there.", 400},
        {"/cut", "place: its host cannot be reached, or ended the connection.", 400},
        {"/claims", "place: it has more than 20 MiB.", 413},
        {"/long", "place: it has more than 20 MiB.", 413},
    };

    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        struct err err = {0};
        uint8_t *data = NULL;
        size_t n = 0;

        cr_expect_eq(get(any, t[i].path, &err, &data, &n), -EINVAL);
        cr_expect_str_eq(err.message, t[i].text, "%s: %s", t[i].path, err.message);
        cr_expect_eq(err.status, t[i].status);
        cr_expect_null(data);
        cr_expect_eq(n_connections, (int)i + 1, "a redirect was followed");
    }
}

/* Refuses all addresses: the name is allowed, but belongs to this machine, so no connection is
 * made. */
static bool none(const struct sockaddr *a) {
    cr_expect_not(picture_fetch_is_public(a));
    return picture_fetch_is_public(a);
}

Test(picture_fetched, a_name_of_a_private_address_is_not_connected_to) {
    struct err err = {0};
    uint8_t *data = NULL;
    size_t n = 0;

    cr_expect_eq(get(none, "/ok", &err, &data, &n), -EINVAL);
    cr_expect_str_eq(err.message, "place: its host has an address that is not public.");
    cr_expect_eq(n_connections, 0);
}

/* The first address of the name is refused, and no other address is tried. */
static int n_asked;
static bool second(const struct sockaddr *a) {
    return n_asked++ > 0;
}

Test(picture_fetched, one_refused_address_refuses_the_host) {
    struct err err = {0};
    uint8_t *data = NULL;
    size_t n = 0;

    cr_expect_eq(get(second, "/ok", &err, &data, &n), -EINVAL);
    cr_expect_str_eq(err.message, "place: its host has an address that is not public.");
    cr_expect_eq(n_connections, 0);
}

/* ---- requests ---- */

static void started(struct world *w) {
    world_init(w);
    world_see(w);
    w->opts.picture_fetch = (struct picture_fetch_opts){own, any};
    w->port.script = "ok";
    world_start(w);
}

/* Sends a chat with the pictures of @old in an earlier message and of @now in the last. */
static int send_chat(struct world *w, const char *old, const char *now) {
    static const char form[] =
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":"%s%s"}]},)"
        R"({"role":"assistant","content":"a"},)"
        R"({"role":"user","content":[{"type":"image_url","image_url":"%s%s"}]}]})";
    char body[1024];
    int fd = world_connect(w);

    snprintf(body, sizeof(body), form, base, old, base, now);
    world_post(w, fd, CHAT, body);
    return fd;
}

static void ask(struct world *w, const char *old, const char *now, struct reply *r) {
    int fd = send_chat(w, old, now);

    world_receive(w, fd, r);
    world_drop(w, fd);
}

static uint64_t n_fetches(struct world *w) {
    struct jobs_stats s;

    jobs_stats(w->api->env.fetchers.jobs, &s);
    return s.n_done;
}

Test(picture_fetched, the_pictures_of_a_request_are_shown) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, "/picture", "/picture", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(w.port.r[0].m.n_pictures, 2);
    cr_expect_eq(w.port.r[0].pictures[0].n_rows, w.port.r[0].pictures[1].n_rows);
    cr_expect_eq(n_connections, 2);
    cr_expect_eq(n_fetches(&w), 1, "one job fetches all of a request");
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(n_fetches(&w), 1, "a request without addresses needs no thread that waits");
    reply_deinit(&r);
    world_stop(&w);
}

Test(picture_fetched, one_that_is_missing_refuses_the_request) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, "/picture", "/none", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("message":"messages[2].content[0].image_url: its host has no )"
                                  R"(picture there.")"),
              "%s", r.body.data);
    cr_expect_eq(w.port.n, 0);
    reply_deinit(&r);
    world_get(&w, "/metrics", &r);
    cr_expect(strstr(r.body.data, R"(weft_pictures_refused_total{reason="address"} 1)"
                                  "\n"));
    reply_deinit(&r);
    world_stop(&w);
}

/* Clients send it with each request: a refusal would end the conversation. */
Test(picture_fetched, one_of_the_past_that_is_missing_becomes_a_note) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, "/none", "/picture", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(w.port.r[0].m.n_pictures, 1);
    cr_expect(strstr(fake_prompt(&w.port.r[0]), "(An image or file, which this model cannot see.)"),
              "%s", fake_prompt(&w.port.r[0]));
    cr_expect_eq(n_connections, 2);
    reply_deinit(&r);
    world_get(&w, "/metrics", &r);
    cr_expect(strstr(r.body.data, R"(weft_pictures_refused_total{reason="address"} 1)"
                                  "\n"));
    reply_deinit(&r);
    world_stop(&w);
}

/* Sends a request whose picture does not end, and waits until it begins. */
static int ask_for_ever(struct world *w) {
    int fd = send_chat(w, "/drip", "/picture");

    for (uint64_t end = world_limit(); n_begun == 0 && uv_hrtime() < end;)
        world_turn(w);
    cr_assert_eq(n_begun, 1);
    return fd;
}

Test(picture_fetched, a_transfer_ends_when_the_client_leaves) {
    struct world w;

    started(&w);
    world_drop(&w, ask_for_ever(&w));
    for (uint64_t end = world_limit(); jobs_n(w.api->env.fetchers.jobs) && uv_hrtime() < end;)
        world_turn(&w);
    cr_expect_eq(jobs_n(w.api->env.fetchers.jobs), 0);
    for (uint64_t end = world_limit(); n_left == 0 && uv_hrtime() < end;)
        usleep(1000);
    cr_expect_eq(n_left, 1);
    cr_expect_eq(n_connections, 1, "the next picture was fetched");
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

Test(picture_fetched, a_transfer_ends_with_the_service) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = ask_for_ever(&w);
    api_close(w.api);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    close(fd);
    uint64_t begun = uv_hrtime();
    uv_run(&w.loop, UV_RUN_DEFAULT);
    cr_expect_lt(uv_hrtime() - begun, 5 * UINT64_C(1000000000), "it waited for the host");
    world_stop(&w);
    cr_expect_eq(w.port.n, 0);
}
