/* KV events: readers that are slow, stopped, or ask for a lot, and those beside them. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>
#include "daemon/models/kv_events.h"

#define QUEUE_MAX 1000u /* of daemon/models/kv_events.c */
#define PART_MAX 256u
#define REPLAYS_MAX 4u
#define PAGE 64u
#define N_CAME 60u /* 20 KB for a batch */

struct scene {
    uv_loop_t loop;
    struct kv_events *events;
    const struct api_kv_counts *counts;
    void *context;
    char folder[32], pub[64], router[64];
    struct msg_block came[N_CAME];
    int32_t tokens[N_CAME * PAGE];
    struct msg_blocks blocks;
};

static void begin(struct scene *s) {
    struct err err;

    memset(s, 0, sizeof(*s));
    strcpy(s->folder, "/tmp/weft-kv-XXXXXX");
    cr_assert(mkdtemp(s->folder));
    snprintf(s->pub, sizeof(s->pub), "ipc://%s/p", s->folder);
    snprintf(s->router, sizeof(s->router), "ipc://%s/r", s->folder);
    uv_loop_init(&s->loop);
    const struct kv_events_opts o = {
        .loop = &s->loop, .endpoint = s->pub, .replay = s->router, .topic = "kv"};
    cr_assert_eq(kv_events_new(&s->events, &o, &err), 0, "%s", err.message);
    s->counts = kv_events_counts(s->events);
    s->context = zmq_ctx_new();
    for (uint32_t i = 0; i < N_CAME; i++)
        s->came[i].id = UINT64_MAX - i;
    for (uint32_t i = 0; i < N_CAME * PAGE; i++)
        s->tokens[i] = 100000 + (int32_t)i;
    s->blocks = (struct msg_blocks){
        .page_tokens = PAGE, .n_came = N_CAME, .came = s->came, .tokens = s->tokens};
}

static void turn(struct scene *s) {
    uv_run(&s->loop, UV_RUN_NOWAIT);
}

static void end(struct scene *s) {
    char path[80];

    zmq_ctx_term(s->context);
    kv_events_close(s->events);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    kv_events_free(s->events);
    cr_expect_eq(uv_loop_close(&s->loop), 0);
    for (const char *name = "pr"; *name; name++) {
        snprintf(path, sizeof(path), "%s/%c", s->folder, *name);
        unlink(path);
    }
    rmdir(s->folder);
}

static void *open_socket(struct scene *s, int type, const char *address, int limit) {
    void *socket = zmq_socket(s->context, type);
    int zero = 0;

    cr_assert(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_RCVHWM, &limit, sizeof(limit));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    cr_assert_eq(zmq_connect(socket, address), 0);
    return socket;
}

/* The number of the next message of @socket, whose last frames are number and batch; -2: none has
 * come in @wait_ms. */
static int64_t next_number(void *socket, int wait_ms, size_t *len) {
    static char frame[1 << 16];
    uint8_t last[8] = {0};
    int64_t number = 0;
    int more = 1, n;
    size_t size = sizeof(more);

    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    while (more) {
        if ((n = zmq_recv(socket, frame, sizeof(frame), 0)) < 0)
            return -2;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
        if (more && n == 8)
            memcpy(last, frame, 8);
        if (len)
            *len = (size_t)n;
    }
    for (int i = 0; i < 8; i++)
        number = (int64_t)((uint64_t)number << 8 | last[i]);
    return number;
}

/* Until @socket is subscribed. The number that it got. */
static int64_t meet(struct scene *s, void *socket) {
    int64_t number = -2;

    for (int i = 0; i < 2000 && number == -2; i++) {
        kv_events_tell(s->events, "m", NULL);
        number = next_number(socket, 5, NULL);
    }
    cr_assert_geq(number, 0);
    return number;
}

/* Tells @n batches, each of which @fast gets. */
static void tell(struct scene *s, void *fast, uint32_t n) {
    for (uint32_t i = 0; i < n;) {
        int64_t number = (int64_t)s->counts->n_published;
        uint32_t part = MIN(n - i, QUEUE_MAX / 2);

        for (uint32_t k = 0; k < part; k++)
            kv_events_tell(s->events, "m", &s->blocks);
        for (uint32_t k = 0; k < part; k++)
            cr_assert_eq(next_number(fast, 10000, NULL), number + k);
        i += part;
    }
}

/* What waits for one that has stopped reading is bounded, whatever is told meanwhile; others miss
 * nothing by it, and it goes on where it reads again. */
Test(kv_events, a_subscriber_that_stops_costs_a_queue_and_no_one_else_anything) {
    struct scene s;
    uint32_t n = 0;

    begin(&s);
    void *fast = open_socket(&s, ZMQ_SUB, s.pub, 0), *slow = open_socket(&s, ZMQ_SUB, s.pub, 1);
    int64_t last = meet(&s, slow);
    for (int64_t first = meet(&s, fast); first + 1 < (int64_t)s.counts->n_published; first++)
        next_number(fast, 10000, NULL);
    while (next_number(slow, 100, NULL) != -2)
        ;
    cr_assert_eq(s.counts->n_overruns, 0);
    tell(&s, fast, 3 * QUEUE_MAX);
    cr_expect_eq(s.counts->n_overruns, 1);
    for (int64_t number; (number = next_number(slow, 300, NULL)) != -2; n++) {
        cr_assert_gt(number, last);
        last = number;
    }
    cr_expect(n < QUEUE_MAX + 300, "%u waited", n); /* and what the kernel has */
    tell(&s, fast, 1);
    cr_expect_eq(next_number(slow, 10000, NULL), (int64_t)s.counts->n_published - 1);
    cr_expect_eq(s.counts->n_overruns, 1);
    zmq_close(fast);
    zmq_close(slow);
    end(&s);
}

static void request(void *socket, uint64_t from) {
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(from >> (56 - 8 * i));
    zmq_send(socket, "", 0, ZMQ_SNDMORE);
    zmq_send(socket, bytes, 8, 0);
}

/* Reads a replay to its end while the loop turns: how many batches it had, all from @from on. */
static uint32_t read_replay(struct scene *s, void *socket, int64_t from) {
    uint32_t n = 0, n_turns = 0;
    size_t len;

    for (;;) {
        uint64_t before = s->counts->n_replayed;
        int64_t number = next_number(socket, 1, &len);

        if (number == -2) {
            cr_assert_lt(n_turns++, 20000u);
            turn(s);
            cr_assert_leq(s->counts->n_replayed - before, PART_MAX);
            continue;
        }
        if (number == -1)
            return n;
        cr_assert_eq(number, from + n);
        n++;
    }
}

/* Turns until the requests that were sent have been read. */
static void turn_a_while(struct scene *s) {
    for (int i = 0; i < 50; i++) {
        turn(s);
        usleep(1000);
    }
}

/* A replay of all that is kept takes several iterations of the loop; readers that stop, or are
 * gone, hold up no other, and one for whom there is no room yet has its turn. */
Test(kv_events, a_replay_goes_out_in_parts) {
    enum { N = 2 * QUEUE_MAX };
    struct scene s;
    void *stopped[REPLAYS_MAX - 2], *reader[3];

    begin(&s);
    s.blocks.n_came = 2;
    for (uint32_t i = 0; i < N; i++)
        kv_events_tell(s.events, "m", &s.blocks);
    void *gone = open_socket(&s, ZMQ_DEALER, s.router, 1);
    request(gone, 0);
    for (uint32_t i = 0; i < ARRAY_SIZE(stopped); i++) {
        stopped[i] = open_socket(&s, ZMQ_DEALER, s.router, 1);
        request(stopped[i], 0);
    }
    turn_a_while(&s);
    zmq_close(gone);
    for (uint32_t i = 0; i < ARRAY_SIZE(reader); i++) {
        reader[i] = open_socket(&s, ZMQ_DEALER, s.router, 0);
        zmq_send(reader[i], "", 0, ZMQ_SNDMORE);
        zmq_send(reader[i], "short", 5, 0); /* is no request */
        request(reader[i], 100 * i);
    }
    for (uint32_t i = 0; i < ARRAY_SIZE(reader); i++)
        cr_expect_eq(read_replay(&s, reader[i], 100 * i), N - 100 * i);
    request(reader[0], 2 * N);
    cr_expect_eq(read_replay(&s, reader[0], 0), 0);
    cr_expect_eq(read_replay(&s, stopped[0], 0), N);
    for (uint32_t i = 0; i < ARRAY_SIZE(stopped); i++)
        zmq_close(stopped[i]);
    for (uint32_t i = 0; i < ARRAY_SIZE(reader); i++)
        zmq_close(reader[i]);
    end(&s);
}
