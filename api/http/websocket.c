/*
 * Frames are read strictly: what RFC 6455 forbids a client ends the connection, so that no two
 * readers can take the same bytes for different messages.
 */

#include "api/http/websocket.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/base64.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/util.h"

#define FIN 0x80u
#define RESERVED 0x70u
#define MASKED 0x80u
#define SHA1_SIZE 20u

struct websocket *websocket_new(void) {
    struct websocket *w = calloc(1, sizeof(*w));

    if (w) /* room for some pongs and a close */
        buf_init(&w->reply, 16u * (WEBSOCKET_CONTROL + WEBSOCKET_HEAD));
    return w;
}

struct websocket *websocket_free(struct websocket *w) {
    if (!w)
        return NULL;
    if (w->drop)
        w->drop(w->state);
    buf_deinit(&w->reply);
    free(w);
    return NULL;
}

/* ---- the handshake ---- */

static uint32_t websocket_rotate(uint32_t v, unsigned n) {
    return v << n | v >> (32 - n);
}

/* Adds a block of 64 bytes to the SHA-1 @h (FIPS 180-4). */
static void sha1_block(uint32_t h[5], const uint8_t *block) {
    static const uint32_t k[] = {0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6};
    uint32_t w[80], v[5];

    memcpy(v, h, sizeof(v));
    for (unsigned i = 0; i < 80; i++) {
        const uint8_t *p = block + 4 * i;

        w[i] = i < 16 ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]
                      : websocket_rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        uint32_t f = v[1] ^ v[2] ^ v[3];
        if (i < 20)
            f = (v[1] & v[2]) | (~v[1] & v[3]);
        else if (i >= 40 && i < 60)
            f = (v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3]);
        uint32_t next = websocket_rotate(v[0], 5) + f + v[4] + k[i / 20] + w[i];
        v[4] = v[3];
        v[3] = v[2];
        v[2] = websocket_rotate(v[1], 30);
        v[1] = v[0];
        v[0] = next;
    }
    for (unsigned i = 0; i < 5; i++)
        h[i] += v[i];
}

/* Computes the SHA-1 of at most 119 bytes. It protects nothing: the handshake uses it to show that
 * the server has read the key. */
static void sha1(const char *text, size_t len, uint8_t out[SHA1_SIZE]) {
    uint32_t h[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    uint8_t blocks[128] = {0};
    size_t end = len < 56 ? 64 : 128;

    assert(len < 120);
    memcpy(blocks, text, len);
    blocks[len] = 0x80;
    blocks[end - 2] = (uint8_t)(len >> 5);
    blocks[end - 1] = (uint8_t)(len << 3);
    for (size_t at = 0; at < end; at += 64)
        sha1_block(h, blocks + at);
    for (unsigned i = 0; i < SHA1_SIZE; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

void websocket_accept(const char *key, char out[WEBSOCKET_ACCEPT]) {
    static const char suffix[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[120];
    uint8_t sum[SHA1_SIZE];
    size_t n = MIN(strlen(key), sizeof(text) - sizeof(suffix)), at = 0;

    memcpy(text, key, n);
    memcpy(text + n, suffix, sizeof(suffix));
    sha1(text, n + strlen(suffix), sum);
    for (size_t i = 0; i < SHA1_SIZE; i += 3, at += 4)
        base64_group(sum + i, MIN(SHA1_SIZE - i, 3u), out + at);
    out[at] = 0;
    assert(at + 1 == WEBSOCKET_ACCEPT);
}

/* ---- frames to the client ---- */

/* Returns the number of bytes of the length that follow a second byte with the low bits @code. */
static unsigned websocket_n_size(unsigned code) {
    switch (code) {
    case 126:
        return 2;
    case 127:
        return 8;
    default:
        return 0; /* @code is the length */
    }
}

size_t websocket_head(uint8_t out[WEBSOCKET_HEAD], enum websocket_opcode opcode, size_t len) {
    uint8_t code = 127;

    if (len < 126)
        code = (uint8_t)len;
    else if (len <= UINT16_MAX)
        code = 126;
    out[0] = (uint8_t)(FIN | opcode);
    out[1] = code;
    unsigned n_size = websocket_n_size(code);
    for (unsigned i = 0; i < n_size; i++)
        out[2 + i] = (uint8_t)((uint64_t)len >> (8 * (n_size - 1 - i)));
    return 2 + n_size;
}

static int websocket_reply(struct websocket *w, enum websocket_opcode opcode, const void *data,
                           size_t len) {
    uint8_t head[WEBSOCKET_HEAD];
    size_t n = websocket_head(head, opcode, len);

    TRY(buf_add(&w->reply, head, n));
    return buf_add(&w->reply, data, len);
}

int websocket_close(struct websocket *w, uint16_t code) {
    uint8_t text[2] = {(uint8_t)(code >> 8), (uint8_t)code};

    if (w->close_sent)
        return 0;
    w->close_sent = true;
    return websocket_reply(w, WEBSOCKET_CLOSE, text, code == WEBSOCKET_NO_CODE ? 0 : sizeof(text));
}

/* ---- frames of the client ---- */

static int websocket_fail(struct websocket *w, uint16_t code) {
    w->code = code;
    return -EPROTO;
}

/* Begins the character whose first byte is @c. Returns false if none begins with it. */
static bool text_begin(struct websocket_text *t, uint8_t c) {
    struct utf8_lead lead = utf8_lead(c);

    if (c < 0x80)
        return true;
    if (lead.n == 0)
        return false;
    t->n_left = lead.n - 1;
    t->low = lead.low;
    t->high = lead.high;
    return true;
}

/* Checks the next bytes of a text. Returns false where it is not UTF-8. */
static bool text_check(struct websocket_text *t, const char *s, size_t len) {
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        uint64_t eight;

        if (t->n_left == 0) {
            for (; i + sizeof(eight) < len; i += sizeof(eight)) { /* most texts are ASCII */
                memcpy(&eight, s + i, sizeof(eight));
                if (eight & UINT64_C(0x8080808080808080))
                    break;
            }
            if (!text_begin(t, (uint8_t)s[i]))
                return false;
            continue;
        }
        if (c < t->low || c > t->high)
            return false;
        t->low = 0x80;
        t->high = 0xBF;
        t->n_left--;
    }
    return true;
}

static bool is_utf8(const char *s, size_t len) {
    struct websocket_text t = {0};

    return text_check(&t, s, len) && t.n_left == 0;
}

static enum websocket_opcode opcode_of(const struct websocket *w) {
    return w->head[0] & 15;
}

static bool is_control(const struct websocket *w) {
    return w->head[0] & 8;
}

/* Returns the length of the frame's header, or of the part that tells it. */
static size_t head_length(const struct websocket *w) {
    if (w->n_head < 2 || !(w->head[1] & MASKED))
        return 2;
    return 6 + websocket_n_size(w->head[1] & 127);
}

/* Returns the length of the payload; UINT64_MAX: it is not written in the shortest form, or has
 * more than 63 bits. */
static uint64_t payload_length(const struct websocket *w) {
    unsigned n = w->head[1] & 127, n_size = websocket_n_size(n);
    uint64_t len = 0;

    if (n_size == 0)
        return n;
    for (unsigned i = 0; i < n_size; i++)
        len = len << 8 | w->head[2 + i];
    uint64_t least = n_size == 2 ? 126u : UINT16_MAX + 1u;
    if (len >= least && len <= INT64_MAX)
        return len;
    return UINT64_MAX;
}

/* Begins the frame whose header is complete. */
static int begin_frame(struct websocket *w, const struct buf *body) {
    enum websocket_opcode opcode = opcode_of(w);
    bool first = opcode == WEBSOCKET_TEXT || opcode == WEBSOCKET_BINARY;
    uint64_t len = payload_length(w);

    if (w->head[0] & RESERVED || !(w->head[1] & MASKED) || len == UINT64_MAX)
        return websocket_fail(w, WEBSOCKET_PROTOCOL);
    if (is_control(w) ? opcode > WEBSOCKET_PONG || !(w->head[0] & FIN) || len > WEBSOCKET_CONTROL
                      : opcode > WEBSOCKET_BINARY || first == w->in_message)
        return websocket_fail(w, WEBSOCKET_PROTOCOL);
    if (opcode == WEBSOCKET_BINARY)
        return websocket_fail(w, WEBSOCKET_NOT_TEXT);
    if (!is_control(w) && len > body->max - body->len)
        return websocket_fail(w, WEBSOCKET_TOO_LARGE);
    w->in_frame = true;
    w->left = len;
    w->at = 0;
    w->n_control = 0;
    if (!first)
        return WEBSOCKET_MORE;
    w->in_message = true;
    w->text = (struct websocket_text){0};
    return WEBSOCKET_BEGUN;
}

/* Removes the mask from @n bytes of the payload, which are the next. */
static void unmask(struct websocket *w, char *data, size_t n) {
    const uint8_t *mask = w->head + w->n_head - 4;

    for (size_t i = 0; i < n; i++)
        data[i] = (char)(data[i] ^ mask[(w->at + i) % 4]);
}

/* Reserves room for the whole of a large message at once, as http.c does for a body. How much
 * follows in further fragments is not known. */
static void websocket_make_room(const struct websocket *w, size_t n, struct buf *body) {
    size_t all = w->head[0] & FIN ? body->len + (size_t)w->left : body->max;

    if (body->len + n > BODY_GROWS_TO && body->cap < all)
        buf_reserve(body, all - body->len);
}

/* Takes up to @len bytes of the frame's payload, and checks their text, so that no message is
 * checked as a whole. Returns how many, -EPROTO or -ENOMEM. */
static ssize_t read_payload(struct websocket *w, const char *data, size_t len, struct buf *body) {
    size_t n = (size_t)MIN(w->left, (uint64_t)len);
    char *to = (char *)w->control + w->n_control;

    if (is_control(w)) {
        memcpy(to, data, n);
        w->n_control = (uint8_t)(w->n_control + n);
    } else {
        websocket_make_room(w, n, body);
        if (n > 0 && buf_add(body, data, n) < 0) {
            w->code = WEBSOCKET_TOO_LARGE;
            return -ENOMEM;
        }
        to = body->data + body->len - n;
    }
    unmask(w, to, n);
    w->at += n;
    w->left -= n;
    if (!is_control(w) && !text_check(&w->text, to, n))
        return websocket_fail(w, WEBSOCKET_BAD_TEXT);
    return (ssize_t)n;
}

/* Returns true if a client may send a close with @code. */
static bool is_close_code(unsigned code) {
    return (code >= 1000 && code <= 1014 && (code < 1004 || code > 1006)) ||
           (code >= 3000 && code <= 4999);
}

static int end_close(struct websocket *w) {
    unsigned code =
        w->n_control < 2 ? WEBSOCKET_NO_CODE : (unsigned)w->control[0] << 8 | w->control[1];

    if (w->n_control == 1 || (w->n_control && !is_close_code(code)))
        return websocket_fail(w, WEBSOCKET_PROTOCOL);
    if (w->n_control && !is_utf8((char *)w->control + 2, w->n_control - 2u))
        return websocket_fail(w, WEBSOCKET_BAD_TEXT);
    w->code = (uint16_t)code;
    websocket_close(w, w->code);
    return WEBSOCKET_CLOSED;
}

/* Handles the frame whose payload is complete. A pong for which there is no room is left out: only
 * the latest ping needs one. */
static int end_frame(struct websocket *w) {
    w->in_frame = false;
    if (opcode_of(w) == WEBSOCKET_CLOSE)
        return end_close(w);
    if (opcode_of(w) == WEBSOCKET_PING && w->reply.len < w->reply.max / 2)
        websocket_reply(w, WEBSOCKET_PONG, w->control, w->n_control);
    if (is_control(w) || !(w->head[0] & FIN))
        return WEBSOCKET_MORE;
    w->in_message = false;
    if (w->text.n_left != 0)
        return websocket_fail(w, WEBSOCKET_BAD_TEXT);
    return WEBSOCKET_MESSAGE;
}

/* Takes the part of a header that has arrived. Returns WEBSOCKET_MORE while it is incomplete. */
static int read_frame_head(struct websocket *w, const char *data, size_t len,
                           const struct buf *body, size_t *used) {
    while (w->n_head < head_length(w)) {
        if (*used == len)
            return WEBSOCKET_MORE;
        w->head[w->n_head++] = (uint8_t)data[(*used)++];
    }
    return begin_frame(w, body);
}

int websocket_feed(struct websocket *w, const char *data, size_t len, bool busy, struct buf *body,
                   size_t *used) {
    int r = WEBSOCKET_MORE;

    *used = 0;
    w->pinged &= len == 0;
    assert(!busy || !w->in_message);
    while (r == WEBSOCKET_MORE && w->code == 0) {
        if (w->in_frame) {
            ssize_t n = read_payload(w, data + *used, len - *used, body);

            if (n < 0)
                return (int)n;
            *used += (size_t)n;
            if (w->left > 0)
                return WEBSOCKET_MORE;
            r = end_frame(w);
            w->n_head = 0;
            continue;
        }
        if (*used == len || (busy && w->n_head == 0 && !(data[*used] & 8)))
            return WEBSOCKET_MORE;
        r = read_frame_head(w, data, len, body, used);
    }
    return r;
}
