/* Request bodies that come compressed. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "api/http/unpack.h"
#include "api/parts.h"
#include "base/rng.h"
#include "world.h"

static void pack(enum unpack_coding coding, const char *text, size_t len, struct buf *out) {
    size_t max = ZSTD_compressBound(len) + 1000;

    cr_assert_eq(buf_reserve(out, max), 0);
    if (coding == UNPACK_ZSTD) {
        size_t n = ZSTD_compress(out->data + out->len, max, text, len, 3);

        cr_assert(!ZSTD_isError(n));
        out->len += n;
        return;
    }
    z_stream z = {.next_in = (Bytef *)(uintptr_t)text,
                  .avail_in = (uInt)len,
                  .next_out = (Bytef *)out->data + out->len,
                  .avail_out = (uInt)max};
    cr_assert_eq(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, 0), Z_OK);
    cr_assert_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->len += max - z.avail_out;
    deflateEnd(&z);
}

static int unpack(enum unpack_coding coding, const struct buf *in, size_t piece, struct buf *out) {
    struct unpack_room room = {0};
    struct unpack *u = NULL;
    int r = unpack_new(&u, coding, &room);

    for (size_t at = 0; at < in->len && r == 0; at += piece)
        r = unpack_feed(u, in->data + at, MIN(piece, in->len - at), out);
    if (r == 0)
        r = unpack_is_whole(u);
    unpack_free(u);
    cr_expect_eq(room.n, 0);
    return r;
}

Test(unpack, what_was_packed_comes_back) {
    static const enum unpack_coding codings[] = {UNPACK_GZIP, UNPACK_ZSTD};
    static char text[300000];
    struct rng rng = {1};

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + rng_next(&rng) % 8);
    for (size_t i = 0; i < 40; i++) {
        enum unpack_coding coding = codings[i % 2];
        CLEANUP(buf_deinit) struct buf in = {.max = 1 << 22}, out = {.max = 1 << 22};
        size_t len = rng_next(&rng) % sizeof(text), first = rng_next(&rng) % (len + 1);

        pack(coding, text, first, &in);
        pack(coding, text + first, len - first, &in); /* in two members or frames */
        cr_assert_eq(unpack(coding, &in, i % 3 ? 1000 : in.len, &out), 1);
        cr_assert(out.len == len && memcmp(out.data, text, len) == 0);
        buf_clear(&out);
        in.len--;
        cr_assert_eq(unpack(coding, &in, in.len, &out), 0, "cut off");
    }
}

/* A decoder unpacks 16,384 bytes at once; a body that ends with the last of them is whole. */
Test(unpack, bodies_of_full_pieces_are_whole) {
    static const enum unpack_coding codings[] = {UNPACK_GZIP, UNPACK_ZSTD};
    static char text[3 * 16384 + 1];

    memset(text, 'x', sizeof(text));
    for (size_t i = 0; i < 2; i++)
        for (size_t len = 16384 - 1; len <= sizeof(text); len += len % 16384 == 1 ? 16382 : 1) {
            CLEANUP(buf_deinit) struct buf in = {.max = 1 << 22}, out = {.max = 1 << 22};

            pack(codings[i], text, len, &in);
            cr_expect_eq(unpack(codings[i], &in, in.len, &out), 1, "%zu at once", len);
            cr_expect_eq(out.len, len);
            cr_expect_eq(unpack(codings[i], &in, 1, &out), 1, "%zu byte by byte", len);
        }
}

Test(unpack, a_bomb_is_stopped) {
    static const enum unpack_coding codings[] = {UNPACK_GZIP, UNPACK_ZSTD};
    char *zeros = calloc(1, 64 << 20);

    for (size_t i = 0; i < 2; i++) {
        CLEANUP(buf_deinit) struct buf in = {.max = 1 << 27}, out = {.max = 1 << 27};

        pack(codings[i], zeros, 64 << 20, &in);
        cr_expect_eq(unpack(codings[i], &in, 65536, &out), -EMSGSIZE);
        cr_expect_leq(out.len, UNPACK_FREE + in.len * UNPACK_RATIO);
        buf_deinit(&out);
        out = (struct buf){.max = 1000};
        cr_expect_eq(unpack(codings[i], &in, 65536, &out), -EMSGSIZE);
    }
    free(zeros);
}

Test(unpack, decoders_are_bounded) {
    struct unpack *u[UNPACK_DECODERS + 1] = {0};
    struct unpack_room room = {0};

    for (size_t i = 0; i < UNPACK_DECODERS; i++)
        cr_assert_eq(unpack_new(&u[i], UNPACK_ZSTD, &room), 0);
    cr_expect_eq(unpack_new(&u[UNPACK_DECODERS], UNPACK_ZSTD, &room), -EAGAIN);
    for (size_t i = 0; i < UNPACK_DECODERS; i++)
        unpack_free(u[i]);
    cr_expect_eq(room.n, 0);
}

/* ---- over HTTP ---- */

static void post(struct world *w, const char *coding, const struct buf *body, size_t n, int status,
                 const char *needle) {
    int fd = world_connect(w);
    struct reply r;

    world_say(w, fd,
              "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: %s\r\n"
              "Content-Length: %zu\r\n\r\n",
              coding, n);
    world_send(w, fd, body->data, n);
    world_receive(w, fd, &r);
    world_drop(w, fd);
    cr_expect_eq(r.status, status, "%s: %d %s", coding, r.status, r.body.data);
    cr_expect(strstr(r.body.data, needle), "%s", r.body.data);
    reply_deinit(&r);
}

Test(unpack, bodies_are_read) {
    static const char text[] = R"({"prompt":"hi"})";
    CLEANUP(buf_deinit) struct buf gzip = {.max = 1 << 20}, zstd = {.max = 1 << 20};
    CLEANUP(buf_deinit) struct buf plain = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    world_start(&w);
    buf_add_str(&plain, text);
    pack(UNPACK_GZIP, text, sizeof(text) - 1, &gzip);
    pack(UNPACK_ZSTD, text, sizeof(text) - 1, &zstd);
    post(&w, "gzip", &gzip, gzip.len, 200, R"("count":2)");
    post(&w, "zstd", &zstd, zstd.len, 200, R"("count":2)");
    post(&w, "ZSTD", &zstd, zstd.len, 200, R"("count":2)");
    post(&w, "", &plain, plain.len, 200, R"("count":2)");
    post(&w, "identity", &plain, plain.len, 200, R"("count":2)");
    post(&w, "gzip", &zstd, zstd.len, 400, "malformed_body");
    post(&w, "zstd", &gzip, gzip.len, 400, "malformed_body");
    post(&w, "zstd", &zstd, zstd.len - 1, 400, "cut off");
    post(&w, "gzip, zstd", &zstd, zstd.len, 415, "unsupported_media_type");
    world_stop(&w);
}

/* The limit applies to the unpacked body. */
Test(unpack, max_body_counts_what_comes_of_it) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20}, zstd = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    w.opts.max_body_bytes = 5000;
    world_start(&w);
    buf_add_str(&body, R"({"prompt":")");
    for (int i = 0; i < 6000; i++)
        buf_add_char(&body, 'x');
    buf_add_str(&body, R"("})");
    pack(UNPACK_ZSTD, body.data, body.len, &zstd);
    cr_assert_lt(zstd.len, 200);
    post(&w, "zstd", &zstd, zstd.len, 413, "body_too_large");
    world_stop(&w);
}

/* A read of a compressed body may become megabytes, so it takes many turns. Those of other
 * connections come in between. The request is answered also if the connection ends with it. */
Test(unpack, a_turn_unpacks_a_piece) {
    CLEANUP(buf_deinit) struct buf body = {.max = 8 << 20}, gzip = {.max = 8 << 20};
    CLEANUP(buf_deinit) struct buf request = {.max = 1 << 20};
    struct rng rng = {1};
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_body_bytes = 8 << 20;
    world_start(&w);
    buf_add_str(&body, R"({"prompt":"hi")");
    while (body.len < 4 << 20) { /* as much as a compressed byte may become, nearly */
        buf_printf(&body, R"(,"%016lx":1)", rng_next(&rng));
        for (int i = 0; i < 600; i++)
            buf_add_char(&body, ' ');
    }
    buf_add_char(&body, '}');
    pack(UNPACK_GZIP, body.data, body.len, &gzip);
    cr_assert(gzip.len > body.len / 100 && gzip.len < HTTP_READ_SIZE * 2, "%zu", gzip.len);
    buf_printf(&request,
               "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               "Content-Encoding: gzip\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n",
               gzip.len);
    buf_add(&request, gzip.data, gzip.len);
    int fd = world_connect(&w);
    const struct quota *bodies = &w.api->http.payers.quota[PAYER_BODIES];
    cr_assert_eq(send(fd, request.data, request.len, 0), (ssize_t)request.len);
    for (uint64_t end = world_limit(); bodies->root.used == 0 && uv_hrtime() < end;)
        world_turn(&w);
    cr_expect(bodies->root.used > 0 && bodies->root.used < body.len / 2, "%zu",
              (size_t)bodies->root.used);
    world_receive(&w, fd, &r);
    cr_expect(r.status == 200 && r.closed, "%d %s", r.status, r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Clients that leave in the middle of a body leave no decoder behind. */
Test(unpack, clients_may_leave) {
    CLEANUP(buf_deinit) struct buf zstd = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    world_start(&w);
    pack(UNPACK_ZSTD, R"({"prompt":"hi"})", 15, &zstd);
    for (uint32_t i = 0; i < 2 * UNPACK_DECODERS; i++) {
        int fd = world_connect(&w);

        world_say(&w, fd,
                  "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: zstd\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  zstd.len);
        world_send(&w, fd, zstd.data, 10);
        world_turns(&w, 4);
        cr_expect_eq(w.api->unpack.n, 1);
        world_drop(&w, fd);
        world_turns(&w, 4);
    }
    cr_expect_eq(w.api->unpack.n, 0);
    post(&w, "zstd", &zstd, zstd.len, 200, R"("count":2)");
    world_stop(&w);
}
