/*
 * libzmq is opened when it is needed, and not linked: most daemons publish nothing, and it depends
 * on a dozen libraries. zmq_send() on a PUB socket puts a message into the queue of each subscriber
 * and returns; a thread of ZeroMQ sends it.
 */

#include "daemon/models/kv_events.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/library.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/util.h"

#ifdef HAVE_ZMQ
#include <zmq.h>

#define SALTS_MAX 1024u              /* most salts that are remembered */
#define SALT_BYTES 256u              /* most bytes of a salt */
#define REPLAY_MAX 10000             /* most batches stored for subscribers that missed some */
#define REPLAY_BYTES_MAX (32u << 20) /* most bytes of these batches */
#define QUEUE_MAX 1000               /* most batches that wait for one subscriber, or replay */
#define BATCH_MAX (4u << 20)         /* reserved at the start, so that no batch is cut off */
#define REPLAYS_MAX 4u          /* most replays at a time; further requests wait in the socket */
#define REQUESTS_MAX 64         /* most requests read in an iteration */
#define FRAMES_MAX 16           /* most frames of a message read at once; a request has 3 */
#define PART_MAX 256u           /* most batches of a part of a replay */
#define PART_BYTES (256u << 10) /* bytes at which a part of a replay ends */
#define STALL_MS 10000          /* time after which a replay ends whose peer takes nothing */
#define TURN_MS 1   /* time to the next part; with 0 libuv may run it in the same iteration */
#define WAIT_MS 5   /* time between two tries to send to a peer without room */
#define RETRY_MS 50 /* time between two tries to bind an address */

/* Functions of libzmq in use, by name. */
struct zmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *);
    void *(*socket)(void *, int);
    int (*close)(void *);
    int (*setsockopt)(void *, int, const void *, size_t);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*bind)(void *, const char *);
    int (*send)(void *, const void *, size_t, int);
    int (*recv)(void *, void *, size_t, int);
    int (*error)(void);
    const char *(*strerror)(int);
};

struct batch {
    uint64_t number;
    size_t len;
    char *data;
};

/* A peer that receives past batches, from number @next on. n_peer 0: the slot is free. */
struct replay {
    uint8_t peer[255];
    uint8_t n_peer;
    uint64_t next, sent_ms;
};

/* The salt by which routers know an isolation key. Keys that share a slot replace each other. len
 * 0: none. */
struct salt {
    uint8_t key[16];
    uint32_t len;
    char text[SALT_BYTES];
};

/* past: a ring of batches with consecutive numbers, of which `first` is the oldest; n_bytes, their
 * size, is at most REPLAY_BYTES_MAX. closed: the sockets are NULL, and nothing is published any
 * more. */
struct kv_events {
    struct kv_events_opts opts;
    struct zmq zmq;
    /* router: NULL without a replay address, and once closed */
    void *context, *pub, *router;
    bool pub_bound, router_bound, closed;
    /* the message being read has more frames than a request; the rest is dropped */
    bool skips;
    uv_timer_t retry;
    /* watches the router; polls: it is in use */
    uv_poll_t poll;
    bool polls;
    /* active while a replay exists */
    uv_timer_t turn;
    struct replay replay[REPLAYS_MAX];
    /* index of the peer that gets the next replayed batch */
    uint32_t turn_of;
    struct api_kv_counts counts;
    struct batch past[REPLAY_MAX];
    uint32_t first, n_past;
    size_t n_bytes;
    char topic[128];
    struct salt salts[SALTS_MAX];
    struct buf out;
};

static int kv_events_load(struct zmq *z, struct err *err) {
    static const char *const name = "libzmq.so.5";
    const struct library_call wanted[] = {
        {"zmq_ctx_new", &z->ctx_new, false},
        {"zmq_ctx_term", &z->ctx_term, false},
        {"zmq_socket", &z->socket, false},
        {"zmq_close", &z->close, false},
        {"zmq_setsockopt", &z->setsockopt, false},
        {"zmq_getsockopt", &z->getsockopt, false},
        {"zmq_bind", &z->bind, false},
        {"zmq_send", &z->send, false},
        {"zmq_recv", &z->recv, false},
        {"zmq_errno", &z->error, false},
        {"zmq_strerror", &z->strerror, false},
    };

    if (!library_open(&name, 1, wanted, ARRAY_SIZE(wanted), "kv-events",
                      "kv-events: needs the package libzmq5", err))
        return -ENOENT;
    return 0;
}

/* ---- MessagePack: the types that a batch needs ---- */

static void put_bytes(struct buf *out, uint8_t type, uint64_t value, uint32_t n_bytes) {
    uint8_t bytes[9] = {type};

    for (uint32_t i = 0; i < n_bytes; i++)
        bytes[1 + i] = (uint8_t)(value >> 8 * (n_bytes - 1 - i));
    buf_add(out, bytes, 1 + n_bytes);
}

static void put_uint(struct buf *out, uint32_t v) {
    if (v < 128)
        put_bytes(out, (uint8_t)v, 0, 0);
    else if (v <= UINT16_MAX)
        put_bytes(out, 0xCD, v, 2);
    else
        put_bytes(out, 0xCE, v, 4);
}

/* Puts the name of a block, an integer of 64 bits, since llm-d takes no other. */
static void put_name(struct buf *out, uint64_t name) {
    put_bytes(out, 0xCF, name, 8);
}

static void put_nil(struct buf *out) {
    put_bytes(out, 0xC0, 0, 0);
}

static void put_array(struct buf *out, uint32_t n) {
    if (n < 16)
        put_bytes(out, (uint8_t)(0x90 | n), 0, 0);
    else
        put_bytes(out, 0xDD, n, 4);
}

static void put_int(struct buf *out, int32_t v) {
    if (v >= 0)
        put_uint(out, (uint32_t)v);
    else
        put_bytes(out, 0xD2, (uint32_t)v, 4);
}

static void kv_events_put_str(struct buf *out, const char *text, size_t n) {
    assert(n <= UINT16_MAX);
    if (n < 32)
        put_bytes(out, (uint8_t)(0xA0 | n), 0, 0);
    else
        put_bytes(out, 0xDA, n, 2);
    buf_add(out, text, n);
}

static void kv_events_put_text(struct buf *out, const char *text) {
    kv_events_put_str(out, text, strlen(text));
}

static void kv_events_put_hex(struct buf *out, const uint8_t *bytes, uint32_t n) {
    char text[65];

    assert(2 * n < sizeof(text));
    hex_write(text, bytes, n);
    kv_events_put_str(out, text, (size_t)2 * n);
}

static void put_float(struct buf *out, double v) {
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    put_bytes(out, 0xCB, bits, 8);
}

/* ---- salts ---- */

static struct salt *kv_events_slot(struct kv_events *e, const uint8_t key[16]) {
    uint32_t h;

    memcpy(&h, key, sizeof(h));
    return &e->salts[h % SALTS_MAX];
}

void kv_events_salt(void *ctx, const uint8_t isolation_key[16], struct str salt) {
    struct kv_events *e = ctx;
    struct salt *s = kv_events_slot(e, isolation_key);

    if (salt.len > SALT_BYTES)
        return;
    memcpy(s->key, isolation_key, sizeof(s->key));
    memcpy(s->text, salt.data, salt.len);
    s->len = (uint32_t)salt.len;
}

/* Puts the salt of an isolation key. If the salt is forgotten, puts the key itself, so that routers
 * do not take a request for one that would find these blocks. */
static void put_salt(struct kv_events *e, const uint8_t key[16]) {
    const struct salt *s = kv_events_slot(e, key);

    if (s->len > 0 && memcmp(s->key, key, sizeof(s->key)) == 0)
        kv_events_put_str(&e->out, s->text, s->len);
    else
        kv_events_put_hex(&e->out, key, 16);
}

/* ---- events ---- */

static const char *const medium_of[BLOCK_TIERS] = {
    [BLOCKS_DEVICE] =
        "GPU", /* also of the processor's backend: the medium where blocks are computed */
    [BLOCKS_HOST] = "CPU",
    [BLOCKS_DISK] = "DISK",
};
static const char *const kind_of[BLOCK_KINDS] = {
    [BLOCKS_FULL] = "full_attention",
    [BLOCKS_LATENT] = "mla_attention",
    [BLOCKS_WINDOW] = "sliding_window",
    [BLOCKS_STATE] = "mamba",
};

/* Returns the number of the group of layers that blocks of @m belong to. */
static uint32_t kv_events_group(const struct msg_blocks *m) {
    return m->kind == BLOCKS_WINDOW || m->kind == BLOCKS_STATE;
}

/* Returns the number of blocks from @i on that follow each other and so share one event. */
static uint32_t run_at(const struct msg_blocks *m, uint32_t i) {
    uint32_t n = 1;

    while (i + n < m->n_came && m->came[i + n].parent == m->came[i + n - 1].id)
        n++;
    return n;
}

static bool is_salted(const struct msg_block *b) {
    return b->parent == 0 && b->isolation_key[15] & ISOLATION_SALTED;
}

/* Returns the index of the first picture of block @block or a later one. */
static uint32_t picture_at(const struct msg_blocks *m, uint32_t block) {
    uint32_t k = 0;

    while (k < m->n_pictures && m->pictures[k].block < block)
        k++;
    return k;
}

/* Writes the extra keys of blocks [i, i + n), from which their names follow besides tokens, in
 * vLLM's order: the pictures of each block as [digest, place of the first row in the block], and
 * the salt of a first block. */
static void put_extra_keys(struct kv_events *e, const struct msg_blocks *m, uint32_t i,
                           uint32_t n) {
    uint32_t p = picture_at(m, i);

    if (picture_at(m, i + n) == p && !is_salted(&m->came[i])) {
        put_nil(&e->out);
        return;
    }
    put_array(&e->out, n);
    for (uint32_t k = i; k < i + n; k++) {
        uint32_t end = picture_at(m, k + 1), n_keys = end - p + is_salted(&m->came[k]);

        if (n_keys == 0) {
            put_nil(&e->out);
            continue;
        }
        put_array(&e->out, n_keys);
        for (; p < end; p++) {
            put_array(&e->out, 2);
            kv_events_put_hex(&e->out, m->pictures[p].digest, sizeof(m->pictures[p].digest));
            put_int(&e->out, m->pictures[p].at);
        }
        if (is_salted(&m->came[k]))
            put_salt(e, m->came[k].isolation_key);
    }
}

static void put_stored(struct kv_events *e, const struct msg_blocks *m, uint32_t i, uint32_t n) {
    struct buf *out = &e->out;

    put_array(out, m->window ? 12 : 11);
    kv_events_put_text(out, "BlockStored");
    put_array(out, n);
    for (uint32_t k = 0; k < n; k++)
        put_name(out, m->came[i + k].id);
    if (m->came[i].parent)
        put_name(out, m->came[i].parent);
    else
        put_nil(out);
    put_array(out, n * m->page_tokens);
    for (uint32_t k = 0; k < n * m->page_tokens; k++)
        put_uint(out, (uint32_t)m->tokens[i * m->page_tokens + k]);
    put_uint(out, m->page_tokens);
    put_nil(out); /* there is no adapter */
    kv_events_put_text(out, medium_of[m->tier]);
    put_nil(out); /* and no name of one */
    put_extra_keys(e, m, i, n);
    put_uint(out, kv_events_group(m));
    kv_events_put_text(out, kind_of[m->kind]);
    if (m->window)
        put_uint(out, m->window);
}

static void put_removed(struct buf *out, const struct msg_blocks *m) {
    put_array(out, 4);
    kv_events_put_text(out, "BlockRemoved");
    put_array(out, m->n_gone);
    for (uint32_t i = 0; i < m->n_gone; i++)
        put_name(out, m->gone[i]);
    kv_events_put_text(out, medium_of[m->tier]);
    put_uint(out, kv_events_group(m));
}

/* Puts [time in seconds, [event, ...], rank 0]; each event is an array that begins with its
 * name. */
static void put_batch(struct kv_events *e, const struct msg_blocks *m) {
    struct buf *out = &e->out;
    struct timespec now;
    uint32_t n = m ? m->n_gone > 0 : 1;

    clock_gettime(CLOCK_REALTIME, &now);
    for (uint32_t i = 0; m && i < m->n_came; i += run_at(m, i))
        n++;
    put_array(out, 3);
    put_float(out, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    put_array(out, n);
    if (!m) {
        put_array(out, 1);
        kv_events_put_text(out, "AllBlocksCleared");
    } else if (m->n_gone > 0) {
        put_removed(out, m);
    }
    for (uint32_t i = 0, k; m && i < m->n_came; i += k) {
        k = run_at(m, i);
        put_stored(e, m, i, k);
    }
    put_uint(out, 0);
}

/* ---- sockets ---- */

/* Writes a number as vLLM sends it: 8 bytes, big-endian. */
static void kv_events_put_number(uint8_t out[8], uint64_t v) {
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> (56 - 8 * i));
}

static void drop_oldest(struct kv_events *e) {
    struct batch *b = &e->past[e->first];

    assert(e->n_past > 0 && e->n_bytes >= b->len);
    e->n_bytes -= b->len;
    free(b->data);
    e->first = (e->first + 1) % REPLAY_MAX;
    e->n_past--;
}

/* Keeps the content of `out` as batch @number, and drops as few old batches as necessary; without
 * memory drops all, which a peer sees by the first number of its replay. */
static void kv_events_retain(struct kv_events *e, uint64_t number) {
    char *data = e->router ? malloc(e->out.len) : NULL;

    /* kept batches have no gaps */
    while (e->n_past && !data)
        drop_oldest(e);
    if (!data)
        return;
    while (e->n_past == REPLAY_MAX || (e->n_past && e->n_bytes + e->out.len > REPLAY_BYTES_MAX))
        drop_oldest(e);
    assert(e->n_past == 0 || e->past[(e->first + e->n_past - 1) % REPLAY_MAX].number + 1 == number);
    memcpy(data, e->out.data, e->out.len);
    e->past[(e->first + e->n_past++) % REPLAY_MAX] = (struct batch){number, e->out.len, data};
    e->n_bytes += e->out.len;
}

/* Sends one of the three frames of a batch. The first frame detects a subscriber without room
 * (ZMQ_XPUB_NODROP) and is then sent to the others only. ZeroMQ skips that subscriber until it has
 * read half of its queue, and does not report the missed batches. */
static void kv_events_publish(struct kv_events *e, const void *data, size_t len, int flags) {
    int no = 0, yes = 1;

    if (e->zmq.send(e->pub, data, len, flags | ZMQ_DONTWAIT) >= 0 || e->zmq.error() != EAGAIN)
        return;
    e->zmq.setsockopt(e->pub, ZMQ_XPUB_NODROP, &no, sizeof(no));
    e->zmq.send(e->pub, data, len, flags | ZMQ_DONTWAIT);
    e->zmq.setsockopt(e->pub, ZMQ_XPUB_NODROP, &yes, sizeof(yes));
    e->counts.n_overruns++;
}

void kv_events_notify(struct kv_events *e, const char *model, const struct msg_blocks *m) {
    char topic[sizeof(e->topic) + 256];
    uint8_t number[8];

    if (e->closed)
        return;
    buf_clear(&e->out);
    put_batch(e, m);
    kv_events_put_number(number, e->counts.n_published);
    int n = snprintf(topic, sizeof(topic), "%s@%s", e->topic, model);
    kv_events_publish(e, topic, MIN((size_t)n, sizeof(topic) - 1), ZMQ_SNDMORE);
    kv_events_publish(e, number, sizeof(number), ZMQ_SNDMORE);
    kv_events_publish(e, e->out.data, e->out.len, 0);
    kv_events_retain(e, e->counts.n_published++);
}

const struct api_kv_counts *kv_events_counts(const struct kv_events *e) {
    if (!e)
        return NULL;
    return &e->counts;
}

/* ---- replays ---- */

/* Sends one reply to the peer of @r: an empty frame, the number, the batch. Returns 0; -EAGAIN: the
 * peer has no room; -EHOSTUNREACH: it has left. */
static int kv_events_reply(struct kv_events *e, const struct replay *r, uint64_t number,
                           const void *data, size_t len) {
    uint8_t bytes[8];

    kv_events_put_number(bytes, number);
    if (e->zmq.send(e->router, r->peer, r->n_peer, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        if (e->zmq.error() == EAGAIN)
            return -EAGAIN;
        return -EHOSTUNREACH;
    }
    e->zmq.send(e->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    e->zmq.send(e->router, bytes, sizeof(bytes), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    e->zmq.send(e->router, data, len, ZMQ_DONTWAIT);
    return 0;
}

/* Sends the next part of @r: batches, and after the last one an empty one with number -1, which
 * ends the replay. Returns as kv_events_reply(). */
static int kv_events_send_part(struct kv_events *e, struct replay *r) {
    uint64_t oldest = e->n_past ? e->past[e->first].number : e->counts.n_published;
    size_t n_bytes = 0;
    int result;

    r->next = MAX(r->next, oldest);
    for (uint32_t i = 0; r->next < e->counts.n_published; i++, r->next++) {
        const struct batch *b = &e->past[(e->first + r->next - oldest) % REPLAY_MAX];

        if (i == PART_MAX || n_bytes >= PART_BYTES)
            return 0;
        assert(b->number == r->next);
        if ((result = kv_events_reply(e, r, b->number, b->data, b->len)) < 0)
            return result;
        r->sent_ms = uv_now(e->opts.loop);
        n_bytes += b->len;
        e->counts.n_replayed++;
    }
    result = kv_events_reply(e, r, UINT64_MAX, "", 0);
    if (result == 0)
        r->n_peer = 0;
    return result;
}

static struct replay *free_replay(struct kv_events *e) {
    for (uint32_t i = 0; i < REPLAYS_MAX; i++)
        if (!e->replay[i].n_peer)
            return &e->replay[i];
    return NULL;
}

/* Returns whether the message that is being read has another frame. */
static bool has_more(struct kv_events *e) {
    int more = 0;
    size_t size = sizeof(more);

    return e->zmq.getsockopt(e->router, ZMQ_RCVMORE, &more, &size) == 0 && more;
}

/* Reads one message; a request, [peer, empty, number], becomes the replay @r. Returns false if
 * there is no message. */
static bool kv_events_read_request(struct kv_events *e, struct replay *r) {
    uint8_t frame[16];
    int n_frames = 1, n_peer = 0, len = 0;
    uint64_t from = 0;
    bool skipped = e->skips;

    if (!skipped && (n_peer = e->zmq.recv(e->router, r->peer, sizeof(r->peer), ZMQ_DONTWAIT)) < 0)
        return false;
    for (; n_frames < FRAMES_MAX && has_more(e); n_frames++)
        len = e->zmq.recv(e->router, frame, sizeof(frame), ZMQ_DONTWAIT);
    e->skips = has_more(e);
    if (skipped || n_frames != 3 || len != 8 || n_peer == 0 || n_peer > (int)sizeof(r->peer))
        return true;
    for (int i = 0; i < 8; i++)
        from = from << 8 | frame[i];
    r->n_peer = (uint8_t)n_peer;
    r->next = from;
    r->sent_ms = uv_now(e->opts.loop);
    return true;
}

/* Sends a part of one replay, then reads requests while there is room for more. The descriptor of a
 * ZeroMQ socket signals only changes, which a send consumes too; so reading continues, if necessary
 * in the next iteration, until it finds no request. */
static void kv_events_on_turn(uv_timer_t *t) {
    struct kv_events *e = CONTAINER_OF(t, struct kv_events, turn);
    struct replay *r = NULL;
    bool active = false, waits = false;
    int n = 0;

    api_mark_loop("KV events");
    for (uint32_t i = 0; i < REPLAYS_MAX && !active; i++) {
        r = &e->replay[(e->turn_of + i) % REPLAYS_MAX];
        active = r->n_peer > 0;
    }
    if (active) {
        int result = kv_events_send_part(e, r);

        e->turn_of = (uint32_t)(r - e->replay + 1) % REPLAYS_MAX;
        waits = result == -EAGAIN && uv_now(e->opts.loop) - r->sent_ms < STALL_MS;
        if (result < 0 && !waits)
            r->n_peer = 0;
    }
    while (n < REQUESTS_MAX && (r = free_replay(e)) && kv_events_read_request(e, r))
        n++;
    active = n == REQUESTS_MAX;
    for (uint32_t i = 0; i < REPLAYS_MAX; i++)
        active |= e->replay[i].n_peer > 0;
    if (active)
        uv_timer_start(t, kv_events_on_turn, waits ? WAIT_MS : TURN_MS, 0);
}

static void on_router(uv_poll_t *poll, int status, int events) {
    struct kv_events *e = CONTAINER_OF(poll, struct kv_events, poll);

    api_mark_loop("KV events");
    if (!uv_is_active((uv_handle_t *)&e->turn))
        kv_events_on_turn(&e->turn);
}

/* Binds the addresses that are not bound yet. Returns 0, or -1 with the reason in zmq_errno(). */
static int kv_events_bind_all(struct kv_events *e) {
    if (!e->pub_bound && e->zmq.bind(e->pub, e->opts.endpoint) < 0)
        return -1;
    e->pub_bound = true;
    if (e->router && !e->router_bound && e->zmq.bind(e->router, e->opts.replay) < 0)
        return -1;
    e->router_bound = true;
    return 0;
}

static void on_retry(uv_timer_t *t) {
    struct kv_events *e = CONTAINER_OF(t, struct kv_events, retry);

    api_mark_loop("KV events");
    if (kv_events_bind_all(e) == 0)
        return;
    if (e->zmq.error() != EADDRINUSE)
        log_event(WLOG_ERROR, "kv_events", "error=%s", quoted(e->zmq.strerror(e->zmq.error())).s);
    else
        uv_timer_start(t, on_retry, RETRY_MS, 0);
}

void kv_events_bind(struct kv_events *e) {
    on_retry(&e->retry);
}

/* Closes the sockets that are open. */
static void close_sockets(struct kv_events *e) {
    if (e->router)
        e->zmq.close(e->router);
    if (e->pub)
        e->zmq.close(e->pub);
    if (e->context)
        e->zmq.ctx_term(e->context);
    e->router = e->pub = NULL;
}

/* Opens the sockets. Returns 0, or -errno, after which close_sockets() closes the opened ones. */
static int open_sockets(struct kv_events *e) {
    int queue = QUEUE_MAX, one = 1, zero = 0;

    e->context = e->zmq.ctx_new();
    e->pub = e->context ? e->zmq.socket(e->context, ZMQ_PUB) : NULL;
    if (e->pub && *e->opts.replay)
        e->router = e->zmq.socket(e->context, ZMQ_ROUTER);
    if (!e->pub || (*e->opts.replay && !e->router))
        return -ENOMEM;
    e->zmq.setsockopt(e->pub, ZMQ_SNDHWM, &queue, sizeof(queue));
    e->zmq.setsockopt(e->pub, ZMQ_LINGER, &zero, sizeof(zero));
    e->zmq.setsockopt(e->pub, ZMQ_XPUB_NODROP, &one, sizeof(one));
    if (!e->router)
        return 0;
    e->zmq.setsockopt(e->router, ZMQ_SNDHWM, &queue, sizeof(queue));
    e->zmq.setsockopt(e->router, ZMQ_LINGER, &zero, sizeof(zero));
    e->zmq.setsockopt(e->router, ZMQ_ROUTER_MANDATORY, &one, sizeof(one));
    return 0;
}

/* Watches the ROUTER socket, if there is one. */
static int kv_events_watch(struct kv_events *e) {
    int fd;
    size_t size = sizeof(fd);

    if (!e->router)
        return 0;
    if (e->zmq.getsockopt(e->router, ZMQ_FD, &fd, &size) < 0)
        return -EIO;
    if (uv_poll_init(e->opts.loop, &e->poll, fd) < 0)
        return -EIO;
    e->polls = true;
    uv_poll_start(&e->poll, UV_READABLE, on_router);
    return 0;
}

static void choose_topic(struct kv_events *e) {
    char host[64] = "";

    gethostname(host, sizeof(host) - 1);
    if (*e->opts.topic)
        snprintf(e->topic, sizeof(e->topic), "%s", e->opts.topic);
    else
        snprintf(e->topic, sizeof(e->topic), "kv@%s", host);
}

/* Opens the sockets of @e. A handle is made last, because only the loop can close it. */
static int kv_events_open(struct kv_events *e, struct err *err) {
    TRY(buf_reserve(&e->out, BATCH_MAX));
    TRY(kv_events_load(&e->zmq, err));
    TRY(open_sockets(e));
    if (!e->opts.later && kv_events_bind_all(e) < 0)
        return err_set(err, 0, "kv-events", "kv-events: %s: %s",
                       e->pub_bound ? e->opts.replay : e->opts.endpoint,
                       e->zmq.strerror(e->zmq.error()));
    return kv_events_watch(e);
}

int kv_events_new(struct kv_events **out, const struct kv_events_opts *o, struct err *err) {
    struct kv_events *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->opts = *o;
    buf_init(&e->out, BATCH_MAX);
    int r = kv_events_open(e, err);
    if (r < 0) {
        close_sockets(e);
        buf_deinit(&e->out);
        free(e);
        return r;
    }
    choose_topic(e);
    uv_timer_init(o->loop, &e->retry);
    uv_timer_init(o->loop, &e->turn);
    *out = e;
    return 0;
}

/* Checks that @e could bind @address, which another daemon may have now. A file of ipc:// is not
 * bound, because ZeroMQ would take it from the daemon that serves. */
static int try_address(const struct kv_events *e, const char *key, const char *address,
                       struct err *err) {
    void *s;
    int r = 0;

    if (!*address || strncmp(address, "ipc://", 6) == 0)
        return 0;
    if (!(s = e->zmq.socket(e->context, ZMQ_PUB)))
        return -ENOMEM;
    if (e->zmq.bind(s, address) < 0 && e->zmq.error() != EADDRINUSE)
        r = err_set(err, 0, key, "%s: %s: %s", key, address, e->zmq.strerror(e->zmq.error()));
    e->zmq.close(s);
    return r;
}

static int try_addresses(struct kv_events *e, const char *endpoint, const char *replay,
                         struct err *err) {
    TRY(try_address(e, "kv-events", endpoint, err));
    return try_address(e, "kv-events-replay", replay, err);
}

int kv_events_check(const char *endpoint, const char *replay, struct err *err) {
    CLEANUP(freep) struct kv_events *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    TRY(kv_events_load(&e->zmq, err));
    if (!(e->context = e->zmq.ctx_new()))
        return -ENOMEM;
    int r = try_addresses(e, endpoint, replay, err);
    close_sockets(e);
    return r;
}

void kv_events_close(struct kv_events *e) {
    if (!e || e->closed)
        return;
    e->closed = true;
    if (e->polls)
        uv_close((uv_handle_t *)&e->poll, NULL);
    uv_close((uv_handle_t *)&e->retry, NULL);
    uv_close((uv_handle_t *)&e->turn, NULL);
    close_sockets(e);
}

struct kv_events *kv_events_free(struct kv_events *e) {
    if (!e)
        return NULL;
    assert(e->closed);
    while (e->n_past > 0)
        drop_oldest(e);
    buf_deinit(&e->out);
    free(e);
    return NULL;
}

#else

int kv_events_new(struct kv_events **out, const struct kv_events_opts *o, struct err *err) {
    return err_set(err, 0, "kv-events", "kv-events: this weftd was built without ZeroMQ");
}

int kv_events_check(const char *endpoint, const char *replay, struct err *err) {
    return kv_events_new(NULL, NULL, err);
}

void kv_events_bind(struct kv_events *e) {}

void kv_events_salt(void *ctx, const uint8_t isolation_key[16], struct str salt) {}

void kv_events_notify(struct kv_events *e, const char *model, const struct msg_blocks *m) {}

const struct api_kv_counts *kv_events_counts(const struct kv_events *e) {
    return NULL;
}

void kv_events_close(struct kv_events *e) {}

struct kv_events *kv_events_free(struct kv_events *e) {
    return e;
}

#endif
