/* Frames of a WebSocket as RFC 6455 requires them from a client. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/http.h"
#include "api/http/websocket.h"
#include "base/util.h"

#define BODY_MAX 70000u

static const uint8_t mask[4] = {0x37, 0xfa, 0x21, 0x3d};

/* Appends a masked frame, whose first byte is @first. */
static void put_frame(struct buf *out, uint8_t first, const char *data, size_t len) {
    uint8_t head[WEBSOCKET_HEAD];
    size_t n = websocket_head(head, first & 15, len);

    head[0] = first;
    head[1] |= 0x80;
    cr_assert_eq(buf_add(out, head, n), 0);
    cr_assert_eq(buf_add(out, mask, sizeof(mask)), 0);
    for (size_t i = 0; i < len; i++)
        cr_assert_eq(buf_add_char(out, (char)(data[i] ^ mask[i % 4])), 0);
}

/* State of reading frames in pieces. */
struct reading {
    struct websocket *w;
    /* texts: each message, followed by a line break */
    struct buf body, texts;
    int last;
    uint32_t n_begun;
};

static void reading_init(struct reading *r) {
    *r = (struct reading){
        .w = websocket_new(), .body = {.max = BODY_MAX}, .texts = {.max = UINT32_MAX}};
    cr_assert(r->w);
}

static void reading_deinit(struct reading *r) {
    websocket_free(r->w);
    buf_deinit(&r->body);
    buf_deinit(&r->texts);
}

/* Feeds @in in pieces of @piece until the end, an error or a close. */
static void read_all(struct reading *r, const struct buf *in, size_t piece) {
    size_t used;

    for (size_t at = 0; at < in->len || r->last == WEBSOCKET_BEGUN; at += used) {
        r->last =
            websocket_feed(r->w, in->data + at, MIN(piece, in->len - at), false, &r->body, &used);
        if (r->last < 0 || r->last == WEBSOCKET_CLOSED)
            return;
        r->n_begun += r->last == WEBSOCKET_BEGUN;
        if (r->last != WEBSOCKET_MESSAGE)
            continue;
        cr_assert_eq(buf_add(&r->texts, r->body.data, r->body.len), 0);
        cr_assert_eq(buf_add_char(&r->texts, '\n'), 0);
        buf_clear(&r->body);
    }
}

static void expect_texts(const struct buf *in, size_t piece, const char *texts) {
    struct reading r;

    reading_init(&r);
    read_all(&r, in, piece);
    cr_assert_geq(r.last, 0);
    cr_assert_eq(r.texts.len, strlen(texts));
    cr_assert(r.texts.len == 0 || memcmp(r.texts.data, texts, r.texts.len) == 0);
    reading_deinit(&r);
}

/* Asserts that @in ends the connection with @code. */
static void expect_code(const struct buf *in, unsigned code, const char *why) {
    for (size_t piece = 1; piece <= in->len; piece += MAX(in->len - 1, 1u)) {
        struct reading r;

        reading_init(&r);
        read_all(&r, in, piece);
        cr_assert_lt(r.last, 0, "%s: %d", why, r.last);
        cr_assert_eq(r.w->code, code, "%s: %u", why, r.w->code);
        reading_deinit(&r);
    }
}

Test(websocket, answers_the_key_of_the_rfc) {
    char out[WEBSOCKET_ACCEPT];

    websocket_accept("dGhlIHNhbXBsZSBub25jZQ==", out);
    cr_assert_str_eq(out, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    websocket_accept("x3JJHMbDL1EzLkh9GBhXDw==", out);
    cr_assert_str_eq(out, "HSmrc0sMlYUkAGmm5OPpG2HaGWk=");
}

Test(websocket, heads_have_the_shortest_length) {
    uint8_t h[WEBSOCKET_HEAD];

    cr_assert_eq(websocket_head(h, WEBSOCKET_TEXT, 125), 2);
    cr_assert(h[0] == 0x81 && h[1] == 125);
    cr_assert_eq(websocket_head(h, WEBSOCKET_TEXT, 126), 4);
    cr_assert(h[1] == 126 && h[2] == 0 && h[3] == 126);
    cr_assert_eq(websocket_head(h, WEBSOCKET_TEXT, 65535), 4);
    cr_assert_eq(websocket_head(h, WEBSOCKET_PING, 65536), 10);
    cr_assert(h[0] == 0x89 && h[1] == 127 && h[7] == 1 && h[8] == 0 && h[9] == 0);
}

Test(websocket, messages_of_all_lengths_in_all_pieces) {
    static const size_t lengths[] = {0, 1, 125, 126, 127, 65535, 65536};
    static char text[BODY_MAX], expected[2 * BODY_MAX + 2];

    memset(text, 'x', sizeof(text));
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};

        put_frame(&in, 0x81, text, lengths[i]);
        put_frame(&in, 0x81, text, lengths[i]);
        snprintf(expected, sizeof(expected), "%.*s\n%.*s\n", (int)lengths[i], text, (int)lengths[i],
                 text);
        expect_texts(&in, in.len, expected);
        expect_texts(&in, 1, expected);
        expect_texts(&in, 7, expected);
    }
}

Test(websocket, a_ping_between_fragments_is_answered_and_changes_nothing) {
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
    struct reading r;

    put_frame(&in, 0x01, "he", 2);
    put_frame(&in, 0x89, "are you there", 13);
    put_frame(&in, 0x00, "dd", 2);
    put_frame(&in, 0x8A, "", 0);
    put_frame(&in, 0x80, "le", 2);
    for (size_t piece = 1; piece < 30; piece++) {
        reading_init(&r);
        read_all(&r, &in, piece);
        cr_assert_eq(r.n_begun, 1);
        cr_assert(r.texts.len == 7 && memcmp(r.texts.data, "heddle\n", 7) == 0);
        cr_assert_eq(r.w->reply.len, 15);
        cr_assert_eq(memcmp(r.w->reply.data,
                            "\x8A\x0D"
                            "are you there",
                            15),
                     0);
        reading_deinit(&r);
    }
}

/* A character may be divided between two fragments. */
Test(websocket, text_is_checked_as_it_arrives) {
    static const char *const wrong[] = {"\xC0\xAF",     "\xED\xA0\x80",         "\xF4\x90\x80\x80",
                                        "\xE0\x80\xAF", "\xF5\x80\x80\x80",     "\x80",
                                        "12345678\xFF", "1234567812345678\xC3x"};
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX}, bad = {.max = UINT32_MAX};

    put_frame(&in, 0x01, "\xC3", 1);
    put_frame(&in, 0x80, "\xA9", 1);
    expect_texts(&in, 3, "\xC3\xA9\n");
    put_frame(&bad, 0x01, "\xC3", 1);
    put_frame(&bad, 0x80, "e", 1);
    expect_code(&bad, WEBSOCKET_BAD_TEXT, "cut character");
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) { /* the message goes on behind it */
        CLEANUP(buf_deinit) struct buf part = {.max = UINT32_MAX};

        put_frame(&part, 0x01, wrong[i], strlen(wrong[i]));
        expect_code(&part, WEBSOCKET_BAD_TEXT, wrong[i]);
    }
}

/* Characters of all lengths, in pieces of all lengths. */
Test(websocket, characters_may_come_in_pieces) {
    static const char text[] =
        "12345678\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBFz";
    for (size_t step = 1; step <= sizeof(text); step++) {
        CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
        char want[sizeof(text) + 1];

        put_frame(&in, 0x81, text, strlen(text));
        snprintf(want, sizeof(want), "%s\n", text);
        expect_texts(&in, step, want);
    }
}

Test(websocket, wrong_frames_end_the_connection) {
    static const struct {
        uint8_t bytes[16];
        size_t len;
        unsigned code;
        const char *why;
    } rows[] = {
        {{0x81, 0x01, 'x'}, 3, WEBSOCKET_PROTOCOL, "not masked"},
        {{0xC1, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_PROTOCOL, "reserved bit: no extension"},
        {{0x83, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_PROTOCOL, "unknown opcode"},
        {{0x8B, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_PROTOCOL, "unknown control"},
        {{0x80, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_PROTOCOL, "continues nothing"},
        {{0x09, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_PROTOCOL, "ping in fragments"},
        {{0x89, 0xFE, 0, 126, 1, 2, 3, 4}, 8, WEBSOCKET_PROTOCOL, "ping of 126 bytes"},
        {{0x81, 0xFE, 0, 125, 1, 2, 3, 4}, 8, WEBSOCKET_PROTOCOL, "not the shortest length"},
        {{0x81, 0xFF, 0, 0, 0, 0, 0, 0, 255, 255, 1, 2, 3, 4}, 14, WEBSOCKET_PROTOCOL, "as before"},
        {{0x81, 0xFF, 128, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, 14, WEBSOCKET_PROTOCOL, "64 bits"},
        {{0x81, 0xFF, 0, 0, 0, 0, 0, 2, 0, 0, 1, 2, 3, 4}, 14, WEBSOCKET_TOO_LARGE, "too large"},
        {{0x82, 0x80, 1, 2, 3, 4}, 6, WEBSOCKET_NOT_TEXT, "binary"},
        {{0x88, 0x81, 0, 0, 0, 0, 3}, 7, WEBSOCKET_PROTOCOL, "half a code"},
        {{0x88, 0x82, 0, 0, 0, 0, 3, 237}, 8, WEBSOCKET_PROTOCOL, "code 1005"},
        {{0x88, 0x83, 0, 0, 0, 0, 3, 232, 0xFF}, 9, WEBSOCKET_BAD_TEXT, "reason"},
        {{0x81, 0x81, 0, 0, 0, 0, 0xFF}, 7, WEBSOCKET_BAD_TEXT, "text"},
    };
    CLEANUP(buf_deinit) struct buf two = {.max = UINT32_MAX};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};

        cr_assert_eq(buf_add(&in, rows[i].bytes, rows[i].len), 0);
        expect_code(&in, rows[i].code, rows[i].why);
    }
    put_frame(&two, 0x01, "a", 1);
    put_frame(&two, 0x81, "b", 1);
    expect_code(&two, WEBSOCKET_PROTOCOL, "a message inside a message");
}

Test(websocket, fragments_are_limited_together) {
    static char text[BODY_MAX];
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};

    memset(text, 'x', sizeof(text));
    put_frame(&in, 0x01, text, BODY_MAX - 10);
    put_frame(&in, 0x80, text, 11);
    expect_code(&in, WEBSOCKET_TOO_LARGE, "one byte too many");
}

/* Reads a message of @fragments frames of @each bytes, and returns the room of its buffer, which
 * must have moved at most once after its first 256 KB. */
static size_t room_of(uint32_t fragments, size_t each) {
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
    struct reading r;
    const char *was = NULL;
    uint32_t moved = 0;
    char *text = malloc(each);

    memset(text, 'a', each);
    for (uint32_t i = 0; i < fragments; i++)
        put_frame(&in, (uint8_t)((i == 0) | (i == fragments - 1 ? 0x80 : 0)), text, each);
    reading_init(&r);
    r.body.max = 8 << 20;
    for (size_t at = 0, used; at < in.len || r.last == WEBSOCKET_BEGUN; at += used) {
        r.last = websocket_feed(r.w, in.data + at, MIN(60000u, in.len - at), false, &r.body, &used);
        cr_assert_geq(r.last, 0);
        moved += r.body.len > 256 << 10 && r.body.data != was;
        was = r.body.data;
    }
    cr_expect_eq(r.last, WEBSOCKET_MESSAGE);
    cr_expect_eq(r.body.len, fragments * each);
    cr_expect_leq(moved, 1, "a large message was copied %u times", moved);
    size_t room = r.body.cap;
    reading_deinit(&r);
    free(text);
    return room;
}

/* The growth of a message must not copy all of it in one step of the loop. */
Test(websocket, a_large_message_gets_its_room_at_once) {
    size_t room = room_of(1, 2000000);

    cr_expect(room >= 2000000 && room < 2000100, "%zu", room);
    cr_expect_geq(room_of(20, 100000), 8 << 20);
    cr_expect_lt(room_of(1, 100000), 300000, "a small one has no more room than it needs");
}

Test(websocket, a_close_is_answered_once) {
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
    struct reading r;

    put_frame(&in, 0x88,
              "\x03\xE8"
              "bye",
              5);
    put_frame(&in, 0x81, "not read", 8);
    reading_init(&r);
    read_all(&r, &in, in.len);
    cr_assert_eq(r.last, WEBSOCKET_CLOSED);
    cr_assert_eq(websocket_close(r.w, WEBSOCKET_GOING_AWAY), 0);
    cr_assert(r.w->reply.len == 4 && memcmp(r.w->reply.data, "\x88\x02\x03\xE8", 4) == 0);
    reading_deinit(&r);
}

Test(websocket, while_busy_it_stops_in_front_of_the_next_message) {
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
    struct reading r;
    size_t used = 0, before;

    put_frame(&in, 0x89, "p", 1);
    before = in.len;
    put_frame(&in, 0x81, "next", 4);
    reading_init(&r);
    cr_assert_eq(websocket_feed(r.w, in.data, in.len, true, &r.body, &used), WEBSOCKET_MORE);
    cr_assert_eq(used, before);
    cr_assert_eq(r.w->reply.len, 3);
    reading_deinit(&r);
}

/* Pongs that no client waits for take no memory. */
Test(websocket, many_pings_take_bounded_memory) {
    CLEANUP(buf_deinit) struct buf in = {.max = UINT32_MAX};
    struct reading r;

    for (int i = 0; i < 10000; i++)
        put_frame(&in, 0x89, "0123456789", 10);
    put_frame(&in, 0x88, "", 0);
    reading_init(&r);
    read_all(&r, &in, in.len);
    cr_assert_eq(r.last, WEBSOCKET_CLOSED);
    cr_assert_lt(r.w->reply.len, 3000);
    cr_assert_eq(memcmp(r.w->reply.data + r.w->reply.len - 2, "\x88\x00", 2), 0);
    reading_deinit(&r);
}

/* Texts of errors for the client. */
Test(websocket, what_is_wrong_with_a_frame_is_said) {
    static const struct {
        unsigned char bytes[12];
        size_t n;
        int status;
        const char *why;
    } rows[] = {
        {{0x82, 0x80, 0, 0, 0, 0}, 6, 400, "Messages must be text, not binary."},
        {{0x83, 0x80, 0, 0, 0, 0}, 6, 400, "Malformed WebSocket frame: it needs a mask, a known"},
        {{0x81, 0x01, 'a'}, 3, 400, "Malformed WebSocket frame: it needs a mask"},
        {{0x81, 0x81, 0, 0, 0, 0, 0xff}, 7, 400, "The message is not valid UTF-8."},
        {{0x81, 0x85, 0, 0, 0, 0, 'a', 'b', 'c', 'd', 'e'},
         11,
         413,
         "The message is larger than 4 bytes (max-body)."},
    };
    static const char head[] =
        "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    struct http_limits limits = {.target = 1000, .head = 4000, .body = 4, .n_headers = 10};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct err err = {0};
        struct http h;
        size_t used, at = 0;
        int r;

        http_init(&h, &limits);
        cr_assert_eq(http_feed(&h, head, sizeof(head) - 1, &used, &err), HTTP_HEAD_DONE);
        cr_assert_eq(http_begin_websocket(&h), 0);
        do {
            r = http_feed(&h, (const char *)rows[i].bytes + at, rows[i].n - at, &used, &err);
            at += used;
        } while (r >= 0 && at < rows[i].n);
        cr_expect_eq(r, -22, "%s: %d", rows[i].why, r);
        cr_expect_eq(err.status, rows[i].status);
        cr_expect(strstr(err.message, rows[i].why), "%s", err.message);
        http_deinit(&h);
    }
}
