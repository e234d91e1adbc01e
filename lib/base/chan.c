#include "base/chan.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loop_bytes.h"

#define READ_CHUNK (64u << 10)

/* Header in front of every payload. */
struct header {
    uint32_t len;
    uint16_t type, zero;
};

/* Returns @len rounded up to 8 bytes, to which payloads are padded, so that every header and
 * payload is aligned in the buffers. */
static size_t chan_padded(uint32_t len) {
    return round_up(len, 8);
}

void chan_init(struct chan *c, int fd, uint32_t max_frame, size_t max_queued) {
    assert(max_queued >=
           chan_padded(max_frame) +
               sizeof(struct header)); /* a frame of the largest size fits into the queue */
    *c = (struct chan){.fd = fd, .max_frame = max_frame};
    buf_init(&c->in, (size_t)max_frame + sizeof(struct header) + 8 + READ_CHUNK);
    buf_init(&c->out, max_queued);
}

void chan_deinit(struct chan *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->dead = -EPIPE;
    buf_deinit(&c->in);
    buf_deinit(&c->out);
}

/* Ends the channel with its first error, which every later call returns. A peer that closes its
 * socket with frames unread is reported as ECONNRESET, otherwise as EPIPE: both mean closed. */
static int die(struct chan *c, int error) {
    assert(error < 0);
    if (!c->dead)
        c->dead = error == -ECONNRESET ? -EPIPE : error;
    return c->dead;
}

/* Removes what was sent from `out`. */
static void out_compact(struct chan *c) {
    buf_consume(&c->out, c->sent);
    c->sent = 0;
}

int chan_send(struct chan *c, uint16_t type, const void *data, uint32_t len) {
    static const char zeros[8];
    struct header h = {len, type, 0};

    assert(len <= c->max_frame);
    if (c->dead)
        return c->dead;
    size_t pad = chan_padded(len) - len;
    if (sizeof(h) + len + pad > c->out.max - c->out.len)
        out_compact(c);
    int r = buf_reserve(&c->out, sizeof(h) + len + pad);
    if (r == -EMSGSIZE)
        return CHAN_FULL;
    if (r < 0)
        return r;
    buf_add(&c->out, &h, sizeof(h)); /* cannot fail: the room is reserved */
    buf_add(&c->out, data, len);
    buf_add(&c->out, zeros, pad);
    assert(c->out.len <= c->out.max);
    return chan_flush(c);
}

int chan_flush(struct chan *c) {
    size_t done = c->sent;

    while (!c->dead && done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + done, MIN(c->out.len - done, LOOP_BYTES_MAX),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        loop_bytes(n > 0 ? (size_t)n : 0);
        if (n > 0)
            done += (size_t)n;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            die(c, -errno);
    }
    c->sent = done;
    size_t rest = c->out.len - done;
    /* Each byte is moved once at most, and a large rest waits until more of it is sent. */
    if (rest <= done && rest <= LOOP_BYTES_MAX)
        out_compact(c);
    return c->dead;
}

bool chan_wants_write(const struct chan *c) {
    return !c->dead && c->out.len > c->sent;
}

/* Reads the header of the frame at c->consumed. Returns 0: the whole frame is there; CHAN_EMPTY:
 * more bytes are needed; -EPROTO: the header is damaged. */
static int chan_peek(struct chan *c, struct header *h) {
    size_t have = c->in.len - c->consumed;

    assert(c->consumed <= c->in.len && c->consumed % 8 == 0);

    if (have < sizeof(*h))
        return CHAN_EMPTY;
    memcpy(h, c->in.data + c->consumed, sizeof(*h));
    if (h->len > c->max_frame || h->zero)
        return die(c, -EPROTO);
    if (have < sizeof(*h) + chan_padded(h->len))
        return CHAN_EMPTY;
    return 0;
}

int chan_recv(struct chan *c, struct chan_frame *out) {
    struct header h;

    for (;;) {
        int r = chan_peek(c, &h);

        if (r == 0)
            break;
        if (r < 0)
            return r;
        if (c->dead) /* the code above has returned the frames that came before the end */
            return c->dead;
        buf_consume(&c->in, c->consumed);
        c->consumed = 0;
        r = buf_reserve(&c->in, READ_CHUNK);
        if (r < 0)
            return die(c, r);
        ssize_t n = recv(c->fd, c->in.data + c->in.len, READ_CHUNK, MSG_DONTWAIT);
        if (n == 0)
            return die(c, -EPIPE);
        if (n < 0 && errno == EAGAIN)
            return CHAN_EMPTY;
        if (n < 0 && errno != EINTR)
            return die(c, -errno);
        if (n > 0)
            c->in.len += (size_t)n;
    }
    assert(c->consumed + sizeof(h) + chan_padded(h.len) <= c->in.len);
    *out = (struct chan_frame){h.type, h.len, c->in.data + c->consumed + sizeof(h)};
    c->consumed += sizeof(h) + chan_padded(h.len);
    return 0;
}

int chan_wait(struct chan *c, int timeout_ms) {
    return chan_wait_or(c, -1, timeout_ms);
}

int chan_wait_or(struct chan *c, int other, int timeout_ms) {
    chan_flush(c);
    if (c->dead)
        return c->dead;
    struct pollfd p[] = {
        {c->fd, (short)(POLLIN | (chan_wants_write(c) ? POLLOUT : 0)), 0},
        {other, POLLIN, 0}, /* poll() ignores a negative descriptor */
    };
    if (poll(p, 2, timeout_ms) < 0 && errno != EINTR)
        return die(c, -errno);
    return chan_flush(c);
}
