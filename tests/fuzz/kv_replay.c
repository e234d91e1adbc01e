/* Messages to the socket of ZeroMQ over which KV events are sent again. The first two bytes choose
 * the sends that find no room at the peer, or no peer. Then each frame has a byte with its length
 * and whether another one follows, and its content. The functions of this file replace libzmq. */

#include <uv.h>

#include "daemon/models/kv_events.c"
#include "tests/fuzz/fuzz.h"

#define BATCHES 600u /* three parts of a replay */
#define MORE 128u
#define LONG 127u /* length of a frame that stands for LONG_BYTES */
#define LONG_BYTES 300u

static struct kv_events events;
static struct {
    const uint8_t *at, *end;
    /* another frame follows the one read last */
    bool more;
    /* State of the message that is being read, and the requests so far. */
    uint32_t n_frames;
    size_t n_peer, n_last;
    const uint8_t *last;
    uint64_t n_asked, n_requests;
    /* Counts what was sent: frames of the reply that is under way, and ends of replays. */
    uint32_t full, gone, n_sends, frame;
    uint64_t n_ends;
    bool ends;
    int error;
} z;

static int fail(int error) {
    z.error = error;
    return -1;
}

static int last_error(void) {
    return z.error;
}

static uint64_t number_of(const uint8_t *bytes) {
    uint64_t v = 0;

    for (int i = 0; i < 8; i++)
        v = v << 8 | bytes[i];
    return v;
}

/* Counts the message that was read as a request if it is one. */
static void end_message(void) {
    if (z.n_frames == 3 && z.n_peer > 0 && z.n_peer < 256 && z.n_last == 8) {
        z.n_requests++;
        z.n_asked += BATCHES - MIN(number_of(z.last), BATCHES);
    }
    z.n_frames = 0;
}

static int receive(void *socket, void *out, size_t size, int flags) {
    if (z.at == z.end)
        return fail(EAGAIN);
    size_t n = *z.at % MORE == LONG ? LONG_BYTES : *z.at % MORE;
    n = MIN(n, (size_t)(z.end - z.at - 1));
    z.more = *z.at & MORE && z.at + 1 + n < z.end;
    z.last = z.at + 1;
    z.n_last = n;
    z.n_peer = z.n_frames++ == 0 ? n : z.n_peer;
    memcpy(out, z.last, MIN(n, size));
    z.at += 1 + n;
    if (!z.more)
        end_message();
    return (int)n;
}

static int get_option(void *socket, int option, void *out, size_t *size) {
    int more = z.more;

    FUZZ_ASSERT(option == ZMQ_RCVMORE && *size == sizeof(more));
    memcpy(out, &more, sizeof(more));
    return 0;
}

/* Checks the four frames of a reply: peer, an empty one, number and batch. */
static int transmit(void *socket, const void *data, size_t len, int flags) {
    FUZZ_ASSERT(flags == (z.frame == 3 ? ZMQ_DONTWAIT : ZMQ_DONTWAIT | ZMQ_SNDMORE));
    if (z.frame == 0) {
        z.n_sends++;
        if (z.full && z.n_sends % z.full == 0)
            return fail(EAGAIN);
        if (z.gone && z.n_sends % z.gone == 0)
            return fail(EHOSTUNREACH);
        FUZZ_ASSERT(len > 0 && len < 256);
    } else if (z.frame == 2) {
        FUZZ_ASSERT(len == 8);
        z.ends = number_of(data) == UINT64_MAX;
        FUZZ_ASSERT(z.ends || number_of(data) < BATCHES);
        z.n_ends += z.ends;
    } else {
        FUZZ_ASSERT((z.frame == 3 && !z.ends) == (len > 0));
    }
    z.frame = (z.frame + 1) % 4;
    return (int)len;
}

static int ignore(void *socket, const void *data, size_t len, int flags) {
    return (int)len;
}

static void start(void) {
    static uv_loop_t loop;
    struct kv_events *e = &events;

    if (e->opts.loop)
        return;
    FUZZ_ASSERT(uv_loop_init(&loop) == 0);
    e->opts.loop = &loop;
    e->router = e->pub = e;
    e->zmq = (struct zmq){
        .getsockopt = get_option, .send = ignore, .recv = receive, .error = last_error};
    buf_init(&e->out, BATCH_MAX);
    uv_timer_init(&loop, &e->turn);
    for (uint32_t i = 0; i < BATCHES; i++)
        kv_events_notify(e, "m", NULL);
    e->zmq.send = transmit;
}

static bool is_active(void) {
    bool active = z.at < z.end;

    for (uint32_t i = 0; i < REPLAYS_MAX; i++)
        active |= events.replay[i].n_peer > 0;
    return active;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct kv_events *e = &events;

    if (len < 2 || len > 1024)
        return -1;
    start();
    memset(&z, 0, sizeof(z));
    z.full = data[0];
    z.gone = data[1];
    z.at = data + 2;
    z.end = data + len;
    memset(e->replay, 0, sizeof(e->replay));
    e->skips = false;
    e->turn_of = 0;
    e->counts.n_replayed = 0;
    for (int i = 0; i < 1000 && is_active(); i++)
        kv_events_on_turn(&e->turn);
    uv_timer_stop(&e->turn);
    FUZZ_ASSERT(z.frame == 0);
    FUZZ_ASSERT(z.n_ends <= z.n_requests && e->counts.n_replayed <= z.n_asked);
    if (!z.full && !z.gone)
        FUZZ_ASSERT(z.n_ends == z.n_requests && e->counts.n_replayed == z.n_asked);
    return 0;
}
