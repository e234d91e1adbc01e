/* KV events: the form of batches, and readers that are slow, stop, or ask for much, beside other
 * readers. */

#include <criterion/criterion.h>
#include <math.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>
#include <zmq.h>

#include "daemon/models/kv_events.h"

#define QUEUE_MAX 1000u /* of daemon/models/kv_events.c */
#define PART_MAX 256u
#define REPLAYS_MAX 4u
#define FRAMES_MAX 16u
#define REPLAY_MAX 10000u
#define REPLAY_BYTES_MAX (32u << 20)
#define SALT_BYTES 256u
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
    for (const char *name = "pqr"; *name; name++) {
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

/* Returns the number of the next message of @socket, whose last frames are number and batch; -2:
 * none has arrived in @wait_ms. */
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
        else if (more)
            cr_expect(n == 0 || n == 4, "the end of a reply's address, or the topic");
        if (len)
            *len = (size_t)n;
    }
    for (int i = 0; i < 8; i++)
        number = (int64_t)((uint64_t)number << 8 | last[i]);
    return number;
}

/* Waits until @socket is subscribed. Returns the number that it got. */
static int64_t meet(struct scene *s, void *socket) {
    int64_t number = -2;

    for (int i = 0; i < 2000 && number == -2; i++) {
        kv_events_notify(s->events, "m", NULL);
        number = next_number(socket, 5, NULL);
    }
    cr_assert_geq(number, 0);
    return number;
}

/* Publishes @n batches, each of which @fast gets. */
static void tell(struct scene *s, void *fast, uint32_t n) {
    for (uint32_t i = 0; i < n;) {
        int64_t number = (int64_t)s->counts->n_published;
        uint32_t part = MIN(n - i, QUEUE_MAX / 2);

        for (uint32_t k = 0; k < part; k++)
            kv_events_notify(s->events, "m", &s->blocks);
        for (uint32_t k = 0; k < part; k++)
            cr_assert_eq(next_number(fast, 10000, NULL), number + k);
        i += part;
    }
}

/* The queue of a reader that has stopped is bounded, whatever is published meanwhile; other readers
 * miss nothing because of it, and it continues when it reads again. */
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
    cr_expect(n < QUEUE_MAX + 300, "%u waited", n); /* and those in the kernel's buffers */
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

/* Reads a replay to its end while the loop turns. Returns the number of its batches, all from @from
 * on. */
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

/* Turns the loop until the requests that were sent have been read. */
static void turn_a_while(struct scene *s) {
    for (int i = 0; i < 50; i++) {
        turn(s);
        usleep(1000);
    }
}

/* A replay of everything takes several iterations of the loop; readers that stop or have gone do
 * not delay others, and a reader for which there is no room yet gets its turn. */
Test(kv_events, a_replay_goes_out_in_parts) {
    enum { N = 2 * QUEUE_MAX };
    struct scene s;
    void *stopped[REPLAYS_MAX - 2], *reader[3];

    begin(&s);
    s.blocks.n_came = 2;
    for (uint32_t i = 0; i < N; i++)
        kv_events_notify(s.events, "m", &s.blocks);
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
        zmq_send(reader[i], "short", 5, 0); /* is not a request */
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

/* A batch in MessagePack, and its content as text: "#n" is an integer of 64 bits. */
struct batch {
    const uint8_t *at, *end;
    char text[16384];
    size_t len;
};

static void PRINTF(2, 3) say(struct batch *b, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    b->len += (size_t)vsnprintf(b->text + b->len, sizeof(b->text) - b->len, fmt, ap);
    va_end(ap);
    cr_assert_lt(b->len, sizeof(b->text));
}

static uint64_t bytes(struct batch *b, int n) {
    uint64_t v = 0;

    cr_assert_leq(n, b->end - b->at);
    while (n-- > 0)
        v = v << 8 | *b->at++;
    return v;
}

static void say_value(struct batch *b);

static void say_array(struct batch *b, uint64_t n) {
    say(b, "[");
    for (uint64_t i = 0; i < n; i++) {
        say(b, "%s", i ? "," : "");
        say_value(b);
    }
    say(b, "]");
}

static void say_string(struct batch *b, uint64_t n) {
    cr_assert_leq((int64_t)n, b->end - b->at);
    say(b, "'%.*s'", (int)n, (const char *)b->at);
    b->at += n;
}

/* Each value has its shortest form, except names of blocks. */
static void say_value(struct batch *b) {
    uint8_t type = (uint8_t)bytes(b, 1);
    uint64_t v;

    if (type < 0x80)
        say(b, "%u", type);
    else if (type >> 4 == 9)
        say_array(b, type & 15);
    else if (type >> 5 == 5)
        say_string(b, type & 31);
    else if (type == 0xC0)
        say(b, "nil");
    else if (type == 0xCB)
        v = bytes(b, 8), say(b, "time");
    else if (type == 0xCD && (v = bytes(b, 2)) > 127)
        say(b, "%u", (unsigned)v);
    else if (type == 0xCE && (v = bytes(b, 4)) > UINT16_MAX)
        say(b, "%u", (unsigned)v);
    else if (type == 0xCF)
        say(b, "#%llu", (unsigned long long)bytes(b, 8));
    else if (type == 0xD2 && (v = bytes(b, 4)) > INT32_MAX)
        say(b, "%d", (int32_t)v);
    else if (type == 0xDA && (v = bytes(b, 2)) > 31)
        say_string(b, v);
    else if (type == 0xDD && (v = bytes(b, 4)) > 15)
        say_array(b, v);
    else
        cr_assert_fail("type %02x", type);
}

/* Publishes @m of model "m" and expects the text @text, with topic "kv@m". */
static void expect(struct scene *s, void *socket, const struct msg_blocks *m, const char *text) {
    static uint8_t frame[1 << 16];
    struct batch b = {.at = frame, .end = frame + sizeof(frame)};
    double stamp;
    int wait_ms = 10000, n;
    uint64_t number = s->counts->n_published;

    kv_events_notify(s->events, "m", m);
    cr_expect_eq(s->counts->n_published, number + 1);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    cr_assert_eq(zmq_recv(socket, frame, sizeof(frame), 0), 4);
    cr_expect_arr_eq(frame, "kv@m", 4);
    cr_assert_eq(zmq_recv(socket, frame, sizeof(frame), 0), 8);
    cr_expect_eq(bytes(&b, 8), number);
    n = zmq_recv(socket, frame, sizeof(frame), 0);
    cr_assert(n > 10 && n <= (int)sizeof(frame));
    b.at = frame + 2;
    number = bytes(&b, 8);
    memcpy(&stamp, &number, sizeof(stamp));
    cr_expect(fabs(stamp - (double)time(NULL)) < 60, "%f", stamp);
    b.at = frame;
    b.end = frame + n;
    say_value(&b);
    cr_expect_eq(b.at, b.end);
    cr_expect_str_eq(b.text, text);
}

static void *subscribed(struct scene *s) {
    void *socket = open_socket(s, ZMQ_SUB, s->pub, 0);

    for (int64_t n = meet(s, socket); n + 1 < (int64_t)s->counts->n_published;)
        n = next_number(socket, 10000, NULL);
    return socket;
}

#define DIGEST "0707070707070707070707070707070707070707070707070707070707070707"

/* docs/reference/kv-events.md */
Test(kv_events, a_batch_has_vllms_form) {
    static const uint64_t gone[] = {7, UINT64_MAX};
    static const int32_t tokens[] = {127, 128, 65535, 65536, INT32_MAX, 0, 1, -1};
    static const char *const tiers[] = {"GPU", "CPU", "DISK"};
    static const char *const kinds[] = {"0,'full_attention'", "0,'mla_attention'",
                                        "1,'sliding_window',300", "1,'mamba'"};
    struct msg_block came[] = {
        {.id = 1}, {.id = 2, .parent = 1}, {.id = 3}, {.id = 4, .parent = 2}};
    struct msg_block_picture pictures[] = {
        {.block = 1, .at = -3}, {.block = 1, .at = 1}, {.block = 3}};
    struct msg_blocks m = {.page_tokens = 2,
                           .n_gone = 2,
                           .n_came = 4,
                           .n_pictures = 3,
                           .gone = gone,
                           .came = came,
                           .tokens = tokens,
                           .pictures = pictures};
    char text[400];
    struct scene s;

    begin(&s);
    void *socket = subscribed(&s);
    for (int i = 0; i < 3; i++)
        memset(pictures[i].digest, 7, sizeof(pictures[i].digest));
    expect(&s, socket, NULL, "[time,[['AllBlocksCleared']],0]");
    expect(&s, socket, &m,
           "[time,[['BlockRemoved',[#7,#18446744073709551615],'GPU',0],"
           "['BlockStored',[#1,#2],nil,[127,128,65535,65536],2,nil,'GPU',nil,"
           "[nil,[['" DIGEST "',-3],['" DIGEST "',1]]],0,'full_attention'],"
           "['BlockStored',[#3],nil,[2147483647,0],2,nil,'GPU',nil,nil,0,'full_attention'],"
           "['BlockStored',[#4],#2,[1,4294967295],2,nil,'GPU',nil,[[['" DIGEST "',0]]],0,"
           "'full_attention']],0]");
    m.n_pictures = m.n_gone = 0;
    m.n_came = 1;
    for (m.tier = 0; m.tier < BLOCK_TIERS; m.tier++)
        for (m.kind = 0; m.kind < BLOCK_KINDS; m.kind++) {
            m.window = m.kind == BLOCKS_WINDOW ? 300 : 0;
            snprintf(text, sizeof(text),
                     "[time,[['BlockStored',[#1],nil,[127,128],2,nil,'%s',nil,nil,%s]],0]",
                     tiers[m.tier], kinds[m.kind]);
            expect(&s, socket, &m, text);
        }
    m = (struct msg_blocks){.kind = BLOCKS_STATE, .tier = BLOCKS_DISK, .n_gone = 1, .gone = gone};
    expect(&s, socket, &m, "[time,[['BlockRemoved',[#7],'DISK',1]],0]");
    zmq_close(socket);
    end(&s);
}

/* Arrays of 16 and more entries have another form. */
Test(kv_events, a_block_has_all_its_tokens) {
    struct scene s;

    begin(&s);
    void *socket = subscribed(&s);
    for (uint32_t n = 14; n < 19; n++) {
        struct msg_block came = {.id = 1};
        struct msg_blocks m = {
            .page_tokens = n, .n_came = 1, .came = &came, .tokens = (int32_t[20]){0}};
        char text[400];

        snprintf(
            text, sizeof(text),
            "[time,[['BlockStored',[#1],nil,[%.*s],%u,nil,'GPU',nil,nil,0,'full_attention']],0]",
            2 * (int)n - 1, "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0", n);
        expect(&s, socket, &m, text);
    }
    zmq_close(socket);
    end(&s);
}

/* Expects @keys for a first block under an isolation key; the block behind it has none. */
static void expect_keys(struct scene *s, void *socket, const uint8_t key[16], const char *keys) {
    struct msg_block came[2] = {{.id = 1}, {.id = 2, .parent = 1}};
    int32_t tokens[] = {3, 4};
    char text[600];

    for (int i = 0; i < 2; i++)
        memcpy(came[i].isolation_key, key, 16);
    snprintf(text, sizeof(text),
             "[time,[['BlockStored',[#1,#2],nil,[3,4],1,nil,'GPU',nil,%s,0,'full_attention']],0]",
             keys);
    expect(s, socket,
           &(struct msg_blocks){.page_tokens = 1, .n_came = 2, .came = came, .tokens = tokens},
           text);
}

/* A salt that is not known any more, or too long, is replaced by the isolation key, so that no
 * other request finds these blocks. */
Test(kv_events, the_first_block_has_the_salt) {
    static const uint32_t lens[] = {1, 31, 32, SALT_BYTES};
    static const uint8_t plain[16] = {1, 2}, first[16] = {[3] = 127, [14] = 5, [15] = 1},
                         second[16] = {[3] = 127, [14] = 6, [15] = 1};
    char salt[SALT_BYTES + 1], keys[400];
    struct scene s;

    begin(&s);
    void *socket = subscribed(&s);
    memset(salt, 's', sizeof(salt));
    expect_keys(&s, socket, plain, "nil");
    expect_keys(&s, socket, first, "[['0000007f000000000000000000000501'],nil]");
    kv_events_salt(s.events, first, (struct str){salt, SALT_BYTES + 1});
    expect_keys(&s, socket, first, "[['0000007f000000000000000000000501'],nil]");
    for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
        kv_events_salt(s.events, first, (struct str){salt, lens[i]});
        snprintf(keys, sizeof(keys), "[['%.*s'],nil]", (int)lens[i], salt);
        expect_keys(&s, socket, first, keys);
    }
    kv_events_salt(s.events, second, (struct str){"x", 1}); /* both keys use the same slot */
    expect_keys(&s, socket, second, "[['x'],nil]");
    expect_keys(&s, socket, first, "[['0000007f000000000000000000000501'],nil]");
    zmq_close(socket);
    end(&s);
}

/* Returns the number of the first batch of a replay, which has *@n batches. */
static int64_t first_replayed(struct scene *s, uint32_t *n) {
    void *socket = open_socket(s, ZMQ_DEALER, s->router, 0);
    int64_t first = -2;

    request(socket, 0);
    for (int i = 0; i < 5000 && first == -2; i++) {
        turn(s);
        first = next_number(socket, 1, NULL);
    }
    *n = read_replay(s, socket, first + 1) + 1;
    zmq_close(socket);
    return first;
}

Test(kv_events, so_many_batches_are_kept) {
    struct scene s;
    uint32_t n;

    begin(&s);
    for (uint32_t i = 0; i < REPLAY_MAX; i++)
        kv_events_notify(s.events, "m", NULL);
    cr_expect_eq(first_replayed(&s, &n), 0);
    cr_expect_eq(n, REPLAY_MAX);
    for (int i = 0; i < 3; i++)
        kv_events_notify(s.events, "m", NULL);
    cr_expect_eq(first_replayed(&s, &n), 3);
    cr_expect_eq(n, REPLAY_MAX);
    end(&s);
}

static void count_timer(uv_handle_t *h, void *n) {
    *(uint32_t *)n += uv_handle_get_type(h) == UV_TIMER && uv_is_active(h);
}

static uint32_t n_timers(struct scene *s) {
    uint32_t n = 0;

    uv_walk(&s->loop, count_timer, &n);
    return n;
}

Test(kv_events, so_many_bytes_are_kept) {
    struct scene s;
    size_t len;
    uint32_t n;

    begin(&s);
    void *socket = subscribed(&s);
    kv_events_notify(s.events, "m", &s.blocks);
    next_number(socket, 10000, &len);
    zmq_close(socket);
    const uint32_t most = (uint32_t)(REPLAY_BYTES_MAX / len);
    for (uint32_t i = 0; i < most + 2; i++)
        kv_events_notify(s.events, "m", &s.blocks);
    cr_expect_eq(first_replayed(&s, &n), (int64_t)s.counts->n_published - most);
    cr_expect_eq(n, most);
    for (int i = 0; i < 5000 && n_timers(&s) > 0; i++) {
        usleep(1000);
        turn(&s);
    }
    cr_expect_eq(n_timers(&s), 0, "nothing is left to send");
    end(&s);
}

/* A message of many frames is no request, nor is what follows its first frames. */
Test(kv_events, messages_of_many_frames_are_dropped_whole) {
    struct scene s;

    begin(&s);
    for (int i = 0; i < 5; i++)
        kv_events_notify(s.events, "m", NULL);
    void *socket = open_socket(&s, ZMQ_DEALER, s.router, 0);
    for (uint32_t n = FRAMES_MAX - 2; n < FRAMES_MAX + 2; n++) {
        for (uint32_t i = 0; i < n; i++)
            zmq_send(socket, "frame", 5, ZMQ_SNDMORE);
        request(socket, 0); /* the last frames of the same message */
    }
    request(socket, 2);
    cr_expect_eq(read_replay(&s, socket, 2), 3);
    cr_expect_eq(next_number(socket, 50, NULL), -2);
    cr_expect_eq(s.counts->n_replayed, 3);
    zmq_close(socket);
    end(&s);
}

Test(kv_events, without_an_address_nothing_is_replayed) {
    char host[64] = "", topic[80], frame[80];
    struct kv_events *plain;
    struct scene s;
    struct err err = {0};
    int wait_ms = 10000;

    begin(&s);
    gethostname(host, sizeof(host) - 1);
    snprintf(topic, sizeof(topic), "kv@%s@m", host);
    snprintf(s.pub, sizeof(s.pub), "ipc://%s/q", s.folder);
    const struct kv_events_opts o = {.loop = &s.loop, .endpoint = s.pub, .replay = "", .topic = ""};
    cr_assert_eq(kv_events_new(&plain, &o, &err), 0, "%s", err.message);
    kv_events_close(s.events);
    turn(&s);
    kv_events_free(s.events);
    cr_expect_eq(uv_loop_alive(&s.loop), 0, "no handle waits for requests");
    s.events = plain;
    s.counts = kv_events_counts(plain);
    void *socket = open_socket(&s, ZMQ_SUB, s.pub, 0);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &(int){5}, sizeof(int));
    int n = -1;
    for (int i = 0; i < 2000 && n < 0; i++) {
        kv_events_notify(plain, "m", NULL);
        n = zmq_recv(socket, frame, sizeof(frame), 0);
    }
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    cr_assert(n > 0 && n < (int)sizeof(frame));
    frame[n] = 0;
    cr_expect_str_eq(frame, topic);
    zmq_close(socket);
    end(&s);
}

/* Returns an address of a port that no one has now; static. */
static const char *free_port(void) {
    static char address[40];
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    close(fd);
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", ntohs(in.sin_port));
    return address;
}

/* Unlike a file, a port can have one socket at a time. */
Test(kv_events, an_address_that_is_in_use_is_tried_again) {
    struct kv_events *next, *wrong = NULL;
    const char *port = free_port();
    struct scene s;
    struct err err = {0};

    begin(&s);
    kv_events_close(s.events);
    turn(&s);
    kv_events_free(s.events);
    struct kv_events_opts o = {.loop = &s.loop, .endpoint = port, .replay = "", .topic = "kv"};
    cr_assert_eq(kv_events_new(&s.events, &o, &err), 0, "%s", err.message);
    cr_expect_eq(kv_events_check(port, "", &err), 0, "it may be the running daemon's");
    cr_expect_lt(kv_events_new(&wrong, &o, &err), 0);
    cr_expect(strstr(err.message, "Address already in use"), "%s", err.message);
    o.endpoint = s.pub;
    o.replay = "tcp://127.0.0.1:x";
    cr_expect_lt(kv_events_new(&wrong, &o, &err), 0);
    cr_expect_str_eq(err.message, "kv-events: tcp://127.0.0.1:x: Invalid argument");
    o.later = true; /* what is wrong with an address is found when it is bound */
    cr_assert_eq(kv_events_new(&wrong, &o, &err), 0);
    kv_events_bind(wrong);
    cr_expect_eq(n_timers(&s), 0, "it will not become right");
    o.endpoint = port;
    o.replay = "";
    cr_assert_eq(kv_events_new(&next, &o, &err), 0);
    kv_events_bind(next);
    cr_expect_eq(n_timers(&s), 1, "tries again");
    kv_events_close(s.events);
    kv_events_close(wrong);
    for (int i = 0; i < 5000 && n_timers(&s) > 0; i++) {
        usleep(1000);
        turn(&s);
    }
    cr_expect_eq(n_timers(&s), 0);
    kv_events_free(s.events);
    kv_events_free(wrong);
    s.events = next;
    s.counts = kv_events_counts(next);
    snprintf(s.pub, sizeof(s.pub), "%s", port);
    void *socket = subscribed(&s);
    expect(&s, socket, NULL, "[time,[['AllBlocksCleared']],0]");
    zmq_close(socket);
    end(&s);
}

/* In an upgrade the previous daemon has the addresses until it closes its sockets. */
Test(kv_events, addresses_are_bound_when_they_are_free) {
    struct kv_events *wrong = NULL, *before;
    struct scene s;
    struct err err = {0};

    begin(&s);
    struct kv_events_opts o = {
        .loop = &s.loop, .endpoint = "tcp://127.0.0.1:x", .replay = "", .topic = "kv"};
    cr_expect_lt(kv_events_new(&wrong, &o, &err), 0);
    cr_expect(strstr(err.message, "tcp://127.0.0.1:x: Invalid argument"), "%s", err.message);
    cr_expect_null(wrong);
    o.endpoint = s.pub;
    o.replay = s.router;
    o.later = true;
    before = s.events;
    cr_assert_eq(kv_events_new(&s.events, &o, &err), 0, "%s", err.message);
    s.counts = kv_events_counts(s.events);
    kv_events_close(before);
    kv_events_notify(before, "m", NULL); /* has no effect any more */
    cr_expect_eq(kv_events_counts(before)->n_published, 0);
    kv_events_bind(s.events);
    void *socket = subscribed(&s);
    expect(&s, socket, NULL, "[time,[['AllBlocksCleared']],0]");
    zmq_close(socket);
    turn(&s);
    kv_events_free(before);
    end(&s);
}

/* --check-config names a wrong address; one that is in use may be the running daemon's. */
Test(kv_events, addresses_can_be_checked) {
    struct scene s;
    struct err err = {0};

    begin(&s);
    cr_expect_eq(kv_events_check(s.pub, s.router, &err), 0, "%s", err.message);
    cr_expect_eq(kv_events_check("ipc:///none/x", "", &err), 0, "%s", err.message);
    cr_expect_lt(kv_events_check("tcp://127.0.0.1:x", "", &err), 0);
    cr_expect_str_eq(err.message, "kv-events: tcp://127.0.0.1:x: Invalid argument");
    cr_expect_lt(kv_events_check(s.pub, "tcp://127.0.0.1:y", &err), 0);
    cr_expect_str_eq(err.message, "kv-events-replay: tcp://127.0.0.1:y: Invalid argument");
    end(&s);
}
