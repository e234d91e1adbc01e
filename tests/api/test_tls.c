/* A client of OpenSSL against the layer, without sockets: the test passes the bytes of each side to
 * the other in pieces of its choice. */

#include <criterion/criterion.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/http/tls.h"
#include "base/rng.h"
#include "world.h"

#define ROOM (4u << 20)

struct pair {
    struct tls_config config;
    struct tls *server;
    SSL_CTX *client_ctx;
    SSL *client;
    BIO *to_client, *from_client;
    char cert[40], key[40];
};

static void write_pair(struct pair *p) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();

    cr_assert(key && x);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400 * 3 + 60);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               (const unsigned char *)"a", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    cr_assert(X509_sign(x, key, EVP_sha256()) > 0);
    strcpy(p->cert, "/tmp/weft-test-cert-XXXXXX");
    strcpy(p->key, "/tmp/weft-test-key-XXXXXX");
    FILE *f = fdopen(mkstemp(p->cert), "w");
    cr_assert(PEM_write_X509(f, x) == 1 && fclose(f) == 0);
    f = fdopen(mkstemp(p->key), "w");
    cr_assert(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) == 1 && fclose(f) == 0);
    X509_free(x);
    EVP_PKEY_free(key);
}

static void open_pair(struct pair *p, int version) {
    struct err err = {0};

    memset(p, 0, sizeof(*p));
    write_pair(p);
    cr_assert_eq(tls_config_init(&p->config, p->cert, p->key, &err), 0, "%s", err.message);
    cr_assert_eq(tls_new(&p->server, &p->config, ROOM), 0);
    p->client_ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(p->client_ctx, version);
    p->client = SSL_new(p->client_ctx);
    p->to_client = BIO_new(BIO_s_mem());
    p->from_client = BIO_new(BIO_s_mem());
    SSL_set_bio(p->client, p->to_client, p->from_client);
    SSL_set_connect_state(p->client);
}

static void close_pair(struct pair *p) {
    tls_free(p->server);
    tls_config_deinit(&p->config);
    SSL_free(p->client);
    SSL_CTX_free(p->client_ctx);
    unlink(p->cert);
    unlink(p->key);
}

/* Hands what the server has written to the client. */
static void send_wire(struct pair *p, struct buf *from) {
    CLEANUP(buf_deinit) struct buf to = {.max = ROOM};

    while (from->len || tls_unsent(p->server)) {
        buf_clear(&to);
        cr_assert_eq(tls_wrap(p->server, from, &to), 0);
        cr_assert_leq(to.len, 70000, "a part is bounded");
        if (to.len)
            cr_assert_eq(BIO_write(p->to_client, to.data, (int)to.len), (int)to.len);
    }
}

/* Passes the client's bytes to the server, @step at a time, and collects the HTTP in @got. Returns
 * the last result of tls_read(). */
static ssize_t receive(struct pair *p, size_t step, struct buf *got) {
    char piece[4096], text[TLS_RECORD];
    struct buf none = {.max = ROOM};
    ssize_t r = 0;
    int n;

    while (r >= 0 && (n = BIO_read(p->from_client, piece, (int)step)) > 0) {
        tls_feed(p->server, piece, (size_t)n);
        while ((r = tls_read(p->server, text, sizeof(text))) > 0)
            cr_assert_eq(buf_add(got, text, (size_t)r), 0);
    }
    send_wire(p, &none);
    buf_deinit(&none);
    return r;
}

static void shake(struct pair *p, size_t step) {
    struct buf got = {.max = ROOM};

    for (int i = 0; i < 4; i++) {
        SSL_do_handshake(p->client);
        cr_assert_eq(receive(p, step, &got), 0);
    }
    cr_assert(SSL_is_init_finished(p->client) && tls_is_open(p->server));
    cr_assert_eq(got.len, 0);
    buf_deinit(&got);
}

Test(tls, records_may_come_in_pieces_of_any_size) {
    static const size_t steps[] = {1, 2, 5, 6, 1000, 4096};
    static char sent[100000], back[100000];
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    struct pair p;

    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (char)(i * 7 + i / 251);
    for (size_t v = 0; v < ARRAY_SIZE(versions); v++)
        for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
            struct buf got = {.max = ROOM}, from = {.max = ROOM};

            open_pair(&p, versions[v]);
            shake(&p, steps[i]);
            cr_assert_eq(SSL_write(p.client, sent, sizeof(sent)), (int)sizeof(sent));
            cr_assert_eq(receive(&p, steps[i], &got), 0);
            cr_assert_eq(got.len, sizeof(sent));
            cr_assert_eq(memcmp(got.data, sent, sizeof(sent)), 0);
            cr_assert_eq(buf_add(&from, sent, sizeof(sent)), 0);
            send_wire(&p, &from);
            int n = 0, r;
            while ((r = SSL_read(p.client, back + n, (int)sizeof(back) - n)) > 0)
                n += r;
            cr_assert_eq(n, (int)sizeof(sent));
            cr_assert_eq(memcmp(back, sent, sizeof(sent)), 0);
            tls_rest(p.server);
            buf_deinit(&got);
            buf_deinit(&from);
            close_pair(&p);
        }
}

Test(tls, what_is_added_while_a_part_is_sent_comes_behind_it) {
    static char sent[150000], back[300010];
    struct buf from = {.max = ROOM}, to = {.max = ROOM};
    struct pair p;
    int n = 0, r;

    memset(sent, 'a', sizeof(sent));
    open_pair(&p, TLS1_3_VERSION);
    shake(&p, 4096);
    cr_assert_eq(buf_add(&from, sent, sizeof(sent)), 0);
    cr_assert_eq(tls_wrap(p.server, &from, &to), 0);
    cr_expect_eq(from.len, 0);
    cr_expect_eq(tls_unsent(p.server), sizeof(sent) - 65536);
    cr_assert_eq(buf_add_str(&from, "end"), 0);
    BIO_write(p.to_client, to.data, (int)to.len);
    send_wire(&p, &from);
    while ((r = SSL_read(p.client, back + n, (int)sizeof(back) - n)) > 0)
        n += r;
    cr_expect_eq(n, (int)sizeof(sent) + 3);
    cr_expect_eq(memcmp(back + sizeof(sent) - 2, "aaend", 5), 0);
    buf_deinit(&from);
    buf_deinit(&to);
    close_pair(&p);
}

Test(tls, both_sides_say_when_they_end) {
    struct buf got = {.max = ROOM}, from = {.max = ROOM};
    struct pair p;
    char c;

    open_pair(&p, TLS1_3_VERSION);
    shake(&p, 4096);
    tls_end(p.server);
    tls_end(p.server);
    size_t n = tls_unsent(p.server);
    cr_expect(n > 0 && n < 40, "one alert: %zu", n);
    send_wire(&p, &from);
    cr_expect_leq(SSL_read(p.client, &c, 1), 0);
    cr_expect_eq(SSL_get_shutdown(p.client), SSL_RECEIVED_SHUTDOWN);
    SSL_shutdown(p.client);
    cr_expect_eq(receive(&p, 4096, &got), -EPIPE);
    cr_expect_eq(got.len, 0);
    close_pair(&p);
}

Test(tls, a_record_that_is_cut_off_or_changed_gives_nothing) {
    struct buf got = {.max = ROOM};
    char record[200];
    struct pair p;

    for (int changed = 0; changed < 2; changed++) {
        open_pair(&p, TLS1_3_VERSION);
        shake(&p, 4096);
        SSL_write(p.client, "GET / HTTP/1.1\r\n\r\n", 18);
        int n = BIO_read(p.from_client, record, sizeof(record));
        cr_assert(n > 20 && n < 200);
        record[n / 2] ^= (char)changed;
        tls_feed(p.server, record, (size_t)(changed ? n : n - 1));
        char text[100];
        cr_expect_eq(tls_read(p.server, text, sizeof(text)), changed ? -EPROTO : 0);
        cr_expect_eq(tls_unsent(p.server) > 0, changed, "an alert");
        close_pair(&p);
    }
    buf_deinit(&got);
}

Test(tls, renegotiation_is_refused) {
    struct buf got = {.max = ROOM};
    struct pair p;
    char c;

    open_pair(&p, TLS1_2_VERSION);
    shake(&p, 4096);
    cr_assert_eq(SSL_renegotiate(p.client), 1);
    SSL_do_handshake(p.client);
    receive(&p, 4096, &got);
    cr_expect_leq(SSL_read(p.client, &c, 1), 0);
    cr_expect_neq(SSL_is_init_finished(p.client), 1);
    cr_expect_eq(got.len, 0);
    close_pair(&p);
}

Test(tls, key_updates_without_end_fill_no_memory) {
    struct pair p;
    ssize_t r = 0;

    open_pair(&p, TLS1_3_VERSION);
    shake(&p, 4096);
    for (int i = 0; i < 40000 && r == 0; i++) {
        char record[200], text[10];
        SSL_key_update(p.client, SSL_KEY_UPDATE_REQUESTED);
        SSL_do_handshake(p.client);
        int n = BIO_read(p.from_client, record, sizeof(record));
        tls_feed(p.server, record, (size_t)n);
        r = tls_read(p.server, text, sizeof(text));
        cr_assert_leq(tls_unsent(p.server), 1 << 20);
    }
    close_pair(&p);
}

Test(tls, plain_http_is_told_from_noise) {
    static const struct {
        const char *bytes;
        ssize_t answer;
    } rows[] = {
        {"GET / HTTP/1.1\r\n\r\n", -EPROTONOSUPPORT},
        {"POST /v1/completions HTTP/1.1\r\n", -EPROTONOSUPPORT},
        {"SSH-2.0-OpenSSH_9.2\r\n", -EPROTO},
        {"\x16\x03\x01", 0},
    };
    struct pair p;
    char text[100];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        open_pair(&p, TLS1_3_VERSION);
        tls_feed(p.server, rows[i].bytes, strlen(rows[i].bytes));
        cr_expect_eq(tls_read(p.server, text, sizeof(text)), rows[i].answer, "%s", rows[i].bytes);
        cr_expect(!tls_is_open(p.server));
        close_pair(&p);
    }
}

Test(tls, noise_in_a_handshake_breaks_nothing) {
    struct rng rng = {7};
    char hello[2000], copy[2000], text[TLS_RECORD];
    struct pair p;

    open_pair(&p, TLS1_3_VERSION);
    SSL_do_handshake(p.client);
    int n = BIO_read(p.from_client, hello, sizeof(hello));
    for (int i = 0; i < 3000; i++) {
        struct tls *t;

        memcpy(copy, hello, (size_t)n);
        for (uint64_t k = rng_next(&rng) % 8 + 1; k; k--)
            copy[rng_next(&rng) % (uint64_t)n] = (char)rng_next(&rng);
        cr_assert_eq(tls_new(&t, &p.config, ROOM), 0);
        tls_feed(t, copy, (size_t)n - rng_next(&rng) % 4);
        cr_expect_leq(tls_read(t, text, sizeof(text)), 0);
        tls_free(t);
    }
    close_pair(&p);
}

Test(tls, a_key_that_others_may_read_is_refused) {
    struct tls_config config = {0};
    struct err err = {0};
    struct pair p;

    open_pair(&p, TLS1_3_VERSION);
    cr_expect_eq(p.config.days_left, 3);
    cr_expect_eq(p.config.rsa_bits, 0);
    chmod(p.key, 0640);
    cr_expect_eq(tls_config_init(&config, p.cert, p.key, &err), 0, "a group may: %s", err.message);
    tls_config_deinit(&config);
    chmod(p.key, 0644);
    cr_expect_lt(tls_config_init(&config, p.cert, p.key, &err), 0);
    cr_expect(strstr(err.message, "other users"), "%s", err.message);
    cr_expect_lt(tls_config_init(&config, p.key, p.key, &err), 0);
    cr_expect_str_eq(err.param, "tls-certificate");
    close_pair(&p);
}

/* Shortages that may be temporary are distinguished from a wrong configuration, after which systemd
 * does not try again. */
Test(tls, a_shortage_is_told_apart_from_a_bad_file) {
    struct rlimit files, none;
    struct tls_config config = {0};
    struct err err = {0};
    struct pair p;

    open_pair(&p, TLS1_3_VERSION);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = files;
    none.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int r = tls_config_init(&config, p.cert, p.key, &err);
    setrlimit(RLIMIT_NOFILE, &files);
    cr_expect_eq(r, -EMFILE, "%d %s", r, err.message);
    cr_expect_str_eq(err.param, "tls-certificate");
    cr_expect(strstr(err.message, "cannot be read: Too many open files"), "%s", err.message);
    cr_expect_eq(tls_config_init(&config, "/dev/null", p.key, &err), -EINVAL);
    close_pair(&p);
}

static void refused_file(struct pair *p, const char *file, const char *why) {
    struct tls_config config = {0};
    struct err err = {0};

    cr_expect_lt(tls_config_init(&config, file, p->key, &err), 0);
    cr_expect_str_eq(err.param, "tls-certificate");
    cr_expect(strstr(err.message, why), "%s", err.message);
    cr_expect_lt(tls_config_init(&config, p->cert, file, &err), 0);
    cr_expect_str_eq(err.param, "tls-key");
    cr_expect(strstr(err.message, why) || strstr(err.message, "other users"), "%s", err.message);
}

Test(tls, fifos_and_devices_are_not_waited_for) {
    char fifo[] = "/tmp/weft-test-fifo-XXXXXX";
    struct pair p;

    open_pair(&p, TLS1_3_VERSION);
    close(mkstemp(fifo));
    unlink(fifo);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    refused_file(&p, fifo, "Resource temporarily unavailable");
    refused_file(&p, "/dev/zero", "File too large");
    refused_file(&p, "/tmp", "Is a directory");
    unlink(fifo);
    close_pair(&p);
}

Test(tls, the_certificates_of_issuers_follow_the_own) {
    struct tls_config config = {0};
    struct err err = {0};
    struct pair p, issuer;
    STACK_OF(X509) *chain = NULL;
    char command[120];

    open_pair(&p, TLS1_3_VERSION);
    open_pair(&issuer, TLS1_3_VERSION);
    snprintf(command, sizeof(command), "cat %s >>%s", issuer.cert, p.cert);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(tls_config_init(&config, p.cert, p.key, &err), 0, "%s", err.message);
    cr_assert_eq(SSL_CTX_get0_chain_certs(config.ctx, &chain), 1);
    cr_expect_eq(sk_X509_num(chain), 1);
    tls_config_deinit(&config);
    snprintf(command, sizeof(command), "echo -----BEGIN CERTIFICATE----- >>%s", p.cert);
    cr_assert_eq(system(command), 0);
    cr_expect_eq(tls_config_init(&config, p.cert, p.key, &err), -EINVAL, "a damaged issuer");
    close_pair(&issuer);
    close_pair(&p);
}

/* ---- connections of a server ---- */

/* Starts a world whose port has TLS, with the certificate of @p. */
static void start_server(struct world *w, struct pair *p) {
    struct err err = {0};

    memset(p, 0, sizeof(*p));
    write_pair(p);
    world_init(w);
    w->port.script = "Hi";
    world_start(w);
    cr_assert_eq(tls_config_init(&p->config, p->cert, p->key, &err), 0, "%s", err.message);
    api_set_tls(w->api, &p->config); /* takes it over */
    cr_assert_eq(api_listen_tcp(w->api, "127.0.0.1", 0, true, &w->tcp_port, &err), 0, "%s",
                 err.message);
    p->client_ctx = SSL_CTX_new(TLS_client_method());
}

static void stop_server(struct world *w, struct pair *p) {
    SSL_CTX_free(p->client_ctx);
    unlink(p->cert);
    unlink(p->key);
    world_stop(w);
}

static SSL *shake_hands(struct world *w, struct pair *p, int fd) {
    SSL *client = SSL_new(p->client_ctx);

    SSL_set_fd(client, fd);
    for (int i = 0; i < 10000 && SSL_connect(client) != 1; i++)
        world_turn(w);
    cr_assert(SSL_is_init_finished(client));
    return client;
}

/* Sends @request and reads until the answer has @end. */
static void exchange(struct world *w, SSL *client, const char *request, const char *end) {
    CLEANUP(buf_deinit) struct buf b = {.max = ROOM};
    char piece[4096];

    cr_assert_eq(SSL_write(client, request, (int)strlen(request)), (int)strlen(request));
    for (int i = 0; i < 10000 && !(b.len && strstr(b.data, end)); i++) {
        int n = SSL_read(client, piece, sizeof(piece));

        if (n > 0)
            cr_assert_eq(buf_add(&b, piece, (size_t)n), 0);
        world_turn(w);
    }
    cr_assert(b.len && strstr(b.data, "HTTP/1.1 200"), "%s", b.len ? b.data : "nothing");
    cr_expect(strstr(b.data, end), "%s", b.data);
}

static uint32_t n_connections(const struct world *w) {
    struct api_stats stats;

    api_stats(w->api, &stats);
    return stats.n_connections;
}

Test(tls, a_connection_has_many_answers, .timeout = 60) {
    static const char body[] =
        R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":2})";
    char request[400];
    struct world w;
    struct pair p;

    start_server(&w, &p);
    int fd = world_connect(&w);
    SSL *client = shake_hands(&w, &p, fd);
    snprintf(request, sizeof(request),
             "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    exchange(&w, client, request, "data: [DONE]\n\n");
    exchange(&w, client, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "{");
    SSL_shutdown(client);
    for (int i = 0; i < 10000 && n_connections(&w) > 0; i++)
        world_turn(&w);
    cr_expect_eq(n_connections(&w), 0);
    cr_expect_eq(SSL_shutdown(client), 1, "the server says that it ends, too");
    SSL_free(client);
    close(fd);
    stop_server(&w, &p);
}

Test(tls, plain_http_on_its_port_is_told, .timeout = 60) {
    struct world w;
    struct pair p;
    struct reply r;

    start_server(&w, &p);
    int fd = world_connect(&w);
    world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "This is an HTTPS port"), "%s", r.body.data);
    cr_expect(r.closed);
    reply_deinit(&r);
    world_drop(&w, fd);
    stop_server(&w, &p);
}

/* Whatever else comes in place of a handshake ends the connection, as does its end. */
Test(tls, what_is_no_handshake_ends_the_connection, .timeout = 60) {
    static const char garbage[] = "\x16\x03\x01\x00\x04\xff\xff\xff\xff";
    struct world w;
    struct pair p;

    start_server(&w, &p);
    for (int leaves = 0; leaves < 2; leaves++) {
        int fd = world_connect(&w);

        world_turns(&w, 3);
        cr_expect_eq(n_connections(&w), 1);
        cr_assert_eq(send(fd, garbage, sizeof(garbage) - 1, 0), sizeof(garbage) - 1);
        if (leaves)
            close(fd);
        for (int i = 0; i < 10000 && n_connections(&w) > 0; i++)
            world_turn(&w);
        cr_expect_eq(n_connections(&w), 0);
        if (!leaves)
            close(fd);
    }
    stop_server(&w, &p);
}
