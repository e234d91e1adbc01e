/* KV events over sockets that the test makes itself: what ZeroMQ is asked for, in which order, and
 * what follows when it has no room, no memory or no address. */

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>
#include <zmq.h>

#include "base/library.h"
#include "daemon/models/kv_events.h"

#define PART_MAX 256u /* of daemon/models/kv_events.c */
#define PART_BYTES (256u << 10)
#define REPLAYS_MAX 4u
#define REQUESTS_MAX 64u
#define FRAMES_MAX 16u

/* ---- a library of sockets ---- */

enum { PUB, ROUTER, N_SOCKETS }; /* indices of `sockets` */

static char told[20000]; /* calls, each with ";" behind it */
static bool tells;       /* calls of send() and recv(), too */
static int sockets[N_SOCKETS], error, ready_fd;
static const char *fails; /* the call that fails, with its socket or address; "": none does */
static int fails_with;
static bool no_library;
static uint64_t now_ms; /* in place of the loop's time */

/* A message that arrives at the ROUTER socket. */
struct message {
    uint32_t n_frames, n_peer, len;
    uint64_t from;
    char peer;
};
static struct message inbox[200];
static uint32_t n_inbox, at_message, at_frame;
static char no_room;          /* the peer that has none; '*': all */
static uint32_t n_sent;       /* frames of data to peers */
static uint8_t published[10]; /* begin of the last batch */

static void PRINTF(1, 2) tell(const char *fmt, ...) {
    size_t n = strlen(told);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(told + n, sizeof(told) - n, fmt, ap);
    va_end(ap);
}

/* Expects the calls since the last check. */
static void expect_told(const char *what) {
    cr_expect_str_eq(told, what);
    *told = 0;
}

static const char *name_of(const void *socket) {
    return socket == &sockets[PUB] ? "PUB" : "ROUTER";
}

/* Returns true, and sets the error, if the call @what of @whom fails. */
static bool fail(const char *what, const char *whom) {
    char call[100];

    snprintf(call, sizeof(call), "%s %s", what, whom);
    if (strcmp(fails, call) != 0)
        return false;
    error = fails_with;
    return true;
}

static void *ctx_new(void) {
    tell("context;");
    return fail("new", "context") ? NULL : &sockets;
}

static int ctx_term(void *context) {
    cr_expect_eq(context, &sockets);
    tell("term;");
    return 0;
}

static void *socket_new(void *context, int type) {
    cr_expect_eq(context, &sockets);
    cr_expect(type == ZMQ_PUB || type == ZMQ_ROUTER);
    int *s = &sockets[type == ZMQ_PUB ? PUB : ROUTER];
    tell("socket %s;", name_of(s));
    return fail("socket", name_of(s)) ? NULL : s;
}

static int socket_close(void *socket) {
    tell("close %s;", name_of(socket));
    return 0;
}

static int set_option(void *socket, int option, const void *value, size_t size) {
    static const struct {
        int option;
        const char *name;
    } names[] = {{ZMQ_SNDHWM, "SNDHWM"},
                 {ZMQ_LINGER, "LINGER"},
                 {ZMQ_XPUB_NODROP, "NODROP"},
                 {ZMQ_ROUTER_MANDATORY, "MANDATORY"}};
    const char *name = "?";
    int v;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i].option == option)
            name = names[i].name;
    cr_expect_eq(size, sizeof(v));
    memcpy(&v, value, sizeof(v));
    tell("%s %s=%d;", name_of(socket), name, v);
    return 0;
}

static int get_option(void *socket, int option, void *value, size_t *size) {
    cr_expect(socket == &sockets[ROUTER] && *size == sizeof(int));
    cr_expect(option == ZMQ_FD || option == ZMQ_RCVMORE);
    if (fail("get", option == ZMQ_FD ? "FD" : "RCVMORE"))
        return -1;
    int v = option == ZMQ_FD ? ready_fd : at_frame > 0 && at_frame < inbox[at_message].n_frames;
    memcpy(value, &v, sizeof(v));
    return 0;
}

static int bind_to(void *socket, const char *address) {
    tell("bind %s %s;", name_of(socket), address);
    return fail("bind", address) ? -1 : 0;
}

/* Tells a frame to subscribers as "LENGTH", to a peer as "PEER", then "0", "NUMBER" and
 * "(LENGTH)"; "+": it is not the last one. */
static int send_frame(void *socket, const void *data, size_t len, int flags) {
    const char *more = flags & ZMQ_SNDMORE ? "+" : ";";
    const uint8_t *b = data;

    cr_expect(flags & ZMQ_DONTWAIT);
    if (socket == &sockets[PUB]) {
        if (tells)
            tell("%zu%s", len, more);
        if (*more == ';')
            memcpy(published, b, MIN(len, sizeof(published)));
        if (fail("send", "PUB")) {
            fails = fails_with == EAGAIN ? "" : fails; /* the next one goes out */
            return -1;
        }
        return (int)len;
    }
    bool is_peer = *more == '+' && len > 0 && len != 8;
    if (is_peer && (no_room == '*' || no_room == b[0])) {
        error = fails_with;
        return -1;
    }
    n_sent += *more == ';';
    if (!tells)
        return (int)len;
    if (is_peer)
        tell("%c%zu%s", b[0], len, more);
    else if (*more == '+' && len == 8)
        tell("%d%s", b[0] == 255 ? -1 : b[6] << 8 | b[7], more);
    else
        tell(*more == '+' ? "%zu%s" : "(%zu)%s", len, more);
    return (int)len;
}

/* Begins the next message, or goes on with the one whose frames are being read. */
static int receive(void *socket, void *out, size_t size, int flags) {
    const struct message *m = &inbox[at_message];
    uint8_t frame[300] = {0};
    size_t len = 0;

    cr_expect(socket == &sockets[ROUTER] && flags == ZMQ_DONTWAIT);
    if (at_frame == m->n_frames && at_message < n_inbox) {
        m = &inbox[++at_message];
        at_frame = 0;
    }
    if (at_message >= n_inbox)
        return -1;
    if (at_frame == 0) {
        len = m->n_peer;
        memset(frame, m->peer, len);
    } else if (at_frame + 1 == m->n_frames) {
        len = m->len;
        for (int i = 0; i < 8; i++)
            frame[i] = (uint8_t)(m->from >> (56 - 8 * i));
    }
    at_frame++;
    memcpy(out, frame, MIN(len, size));
    return (int)len;
}

static int last_error(void) {
    return error;
}

static const char *text_of(int e) {
    cr_expect_eq(e, error);
    return strerror(e);
}

/* Replaces the function that opens the library. */
void *library_open(const char *const *file, size_t n_files, const struct library_call *call,
                   size_t n_calls, const char *param, const char *what, struct err *err) {
    static const struct {
        const char *name;
        void (*f)(void);
    } own[] = {
#define OWN(name, f) {name, (void (*)(void))f}
        OWN("zmq_ctx_new", ctx_new),       OWN("zmq_ctx_term", ctx_term),
        OWN("zmq_socket", socket_new),     OWN("zmq_close", socket_close),
        OWN("zmq_setsockopt", set_option), OWN("zmq_getsockopt", get_option),
        OWN("zmq_bind", bind_to),          OWN("zmq_send", send_frame),
        OWN("zmq_recv", receive),          OWN("zmq_errno", last_error),
        OWN("zmq_strerror", text_of),
    };

    cr_assert_eq(n_files, 1);
    cr_expect_str_eq(file[0], "libzmq.so.5");
    cr_expect_str_eq(param, "kv-events");
    cr_assert_eq(n_calls, ARRAY_SIZE(own));
    for (size_t i = 0; i < n_calls; i++) {
        cr_expect_str_eq(call[i].name, own[i].name);
        cr_expect_not(call[i].optional);
        memcpy(call[i].at, &own[i].f, sizeof(own[i].f));
    }
    if (!no_library)
        return &sockets;
    err_set(err, 0, param, "%s: none", what);
    return NULL;
}

/* Replaces the time of day. */
int clock_gettime(clockid_t clock, struct timespec *out) {
    *out = (struct timespec){.tv_sec = 1000, .tv_nsec = 250000000};
    if (clock == CLOCK_REALTIME)
        return 0;
    return (int)syscall(SYS_clock_gettime, clock, out);
}

/* Replaces the loop's time. */
uint64_t uv_now(const uv_loop_t *loop) {
    return now_ms;
}

static int timer_ms; /* for which the last timer was set */

/* Notes for how long a timer is set, which the loop's own time would show with an error. */
int uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat) {
    int (*start)(uv_timer_t *, uv_timer_cb, uint64_t, uint64_t);

    *(void **)&start = dlsym(RTLD_NEXT, "uv_timer_start");
    cr_expect_eq(repeat, 0);
    timer_ms = (int)timeout;
    return start(t, cb, timeout, repeat);
}

/* ---- the suite ---- */

static uv_loop_t loop;
static struct kv_events *events;
static struct kv_events_opts opts;
static struct err err;

static void begin(void) {
    uv_loop_init(&loop);
    ready_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    fails = "";
    opts = (struct kv_events_opts){
        .loop = &loop, .endpoint = "tcp://p", .replay = "tcp://r", .topic = "kv"};
}

static void open_events(void) {
    cr_assert_eq(kv_events_new(&events, &opts, &err), 0, "%s", err.message);
    *told = 0;
}

static void end(void) {
    kv_events_close(events);
    kv_events_close(events);
    uv_run(&loop, UV_RUN_DEFAULT);
    events = kv_events_free(events);
    cr_expect_null(events);
    cr_expect_eq(uv_loop_close(&loop), 0);
    close(ready_fd);
}

TestSuite(kv_sockets, .init = begin, .fini = end);

#define OPENED                                                                                     \
    "context;socket PUB;socket ROUTER;PUB SNDHWM=1000;PUB LINGER=0;PUB NODROP=1;"                  \
    "ROUTER SNDHWM=1000;ROUTER LINGER=0;ROUTER MANDATORY=1;"
#define CLOSED "close ROUTER;close PUB;term;"

Test(kv_sockets, they_are_opened_with_their_limits) {
    cr_assert_eq(kv_events_new(&events, &opts, &err), 0);
    expect_told(OPENED "bind PUB tcp://p;bind ROUTER tcp://r;");
    cr_expect_eq(uv_loop_alive(&loop), 1, "the descriptor is watched");
    kv_events_close(events);
    expect_told(CLOSED);
    kv_events_notify(events, "m", NULL);
    kv_events_close(events);
    expect_told("");
    uv_run(&loop, UV_RUN_DEFAULT);
    kv_events_free(events);
    opts.replay = "";
    cr_assert_eq(kv_events_new(&events, &opts, &err), 0);
    expect_told("context;socket PUB;PUB SNDHWM=1000;PUB LINGER=0;PUB NODROP=1;bind PUB tcp://p;");
    cr_expect_eq(uv_loop_alive(&loop), 0);
    kv_events_close(events);
    expect_told("close PUB;term;");
    cr_expect_null(kv_events_counts(NULL));
    cr_expect_null(kv_events_free(NULL));
    kv_events_close(NULL);
}

/* The sockets that were opened are closed, whatever fails. */
Test(kv_sockets, what_fails_leaves_nothing_open) {
    static const struct {
        const char *call, *message, *told;
        int error, result;
    } cases[] = {
        {"new context", "", "context;", ENOMEM, -ENOMEM},
        {"socket PUB", "", "context;socket PUB;term;", EMFILE, -ENOMEM},
        {"socket ROUTER", "", "context;socket PUB;socket ROUTER;close PUB;term;", EMFILE, -ENOMEM},
        {"bind tcp://p", "kv-events: tcp://p: Address already in use",
         OPENED "bind PUB tcp://p;" CLOSED, EADDRINUSE, -EINVAL},
        {"bind tcp://r", "kv-events: tcp://r: Invalid argument",
         OPENED "bind PUB tcp://p;bind ROUTER tcp://r;" CLOSED, EINVAL, -EINVAL},
        {"get FD", "", OPENED "bind PUB tcp://p;bind ROUTER tcp://r;" CLOSED, EINVAL, -EIO},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        err = (struct err){0};
        fails = cases[i].call;
        fails_with = cases[i].error;
        cr_expect_eq(kv_events_new(&events, &opts, &err), cases[i].result, "%s", cases[i].call);
        cr_expect_null(events);
        cr_expect_str_eq(err.message, cases[i].message);
        cr_expect_eq(err.status, 0);
        cr_expect_str_eq(err.param, *cases[i].message ? "kv-events" : "");
        expect_told(cases[i].told);
    }
    fails = "";
    int fd = ready_fd;
    ready_fd = -1; /* cannot be watched */
    cr_expect_eq(kv_events_new(&events, &opts, &err), -EIO);
    ready_fd = fd;
    expect_told(OPENED "bind PUB tcp://p;bind ROUTER tcp://r;" CLOSED);
    no_library = true;
    cr_expect_eq(kv_events_new(&events, &opts, &err), -ENOENT);
    cr_expect_str_eq(err.message, "kv-events: needs the package libzmq5: none");
    cr_expect_eq(kv_events_check("", "", &err), -ENOENT);
    expect_told("");
}

static void find_timer(uv_handle_t *h, void *due) {
    if (uv_handle_get_type(h) == UV_TIMER && uv_is_active(h))
        *(int *)due = (int)uv_timer_get_due_in((uv_timer_t *)h);
}

/* Returns the time to the timer in ms; -1: there is none. */
static int due_in(void) {
    int due = -1;

    uv_walk(&loop, find_timer, &due);
    return due;
}

/* Returns the time for which the timer was set; -1: there is none. */
static int next_timer(void) {
    return due_in() < 0 ? -1 : timer_ms;
}

/* Waits for the timer, if there is one, and lets the sockets be read. */
static void turn(void) {
    for (uv_update_time(&loop); due_in() > 0; uv_update_time(&loop))
        usleep(200);
    uv_run(&loop, UV_RUN_NOWAIT);
}

/* Tells the loop that messages have arrived. */
static void arrive(void) {
    cr_assert_eq(eventfd_write(ready_fd, 1), 0);
    uv_run(&loop, UV_RUN_NOWAIT);
    eventfd_t n;
    cr_assert_eq(eventfd_read(ready_fd, &n), 0);
}

Test(kv_sockets, an_address_in_use_is_tried_every_50_ms) {
    opts.later = true;
    open_events();
    fails = "bind tcp://p";
    fails_with = EADDRINUSE;
    kv_events_bind(events);
    expect_told("bind PUB tcp://p;");
    cr_expect_eq(next_timer(), 50);
    fails = "bind tcp://r";
    turn();
    expect_told("bind PUB tcp://p;bind ROUTER tcp://r;");
    cr_expect_eq(next_timer(), 50);
    fails_with = EACCES;
    turn();
    expect_told("bind ROUTER tcp://r;");
    cr_expect_eq(next_timer(), -1, "it will not become right");
    fails = "";
    kv_events_bind(events);
    expect_told("bind ROUTER tcp://r;");
    kv_events_bind(events);
    expect_told("");
    cr_expect_eq(next_timer(), -1);
}

/* An address is tried with a socket of its own; that of another daemon may be in use. */
Test(kv_sockets, addresses_are_tried) {
    static const struct {
        const char *endpoint, *replay, *fails, *told, *message, *param;
        int error, result;
    } cases[] = {
        {"tcp://p", "tcp://r", "",
         "socket PUB;bind PUB tcp://p;close PUB;"
         "socket PUB;bind PUB tcp://r;close PUB;",
         "", "", 0, 0},
        {"ipc://p", "", "", "", "", "", 0, 0},
        {"ipc:/p", "", "", "socket PUB;bind PUB ipc:/p;close PUB;", "", "", 0, 0},
        {"tcp://p", "tcp://r", "bind tcp://p", "socket PUB;bind PUB tcp://p;close PUB;",
         "kv-events: tcp://p: Invalid argument", "kv-events", EINVAL, -EINVAL},
        {"tcp://p", "tcp://r", "bind tcp://r",
         "socket PUB;bind PUB tcp://p;close PUB;socket PUB;bind PUB tcp://r;close PUB;",
         "kv-events-replay: tcp://r: Permission denied", "kv-events-replay", EACCES, -EINVAL},
        {"tcp://p", "", "bind tcp://p", "socket PUB;bind PUB tcp://p;close PUB;", "", "",
         EADDRINUSE, 0},
        {"tcp://p", "", "socket PUB", "socket PUB;", "", "", EMFILE, -ENOMEM},
    };
    char want[300];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        err = (struct err){0};
        fails = cases[i].fails;
        fails_with = cases[i].error;
        cr_expect_eq(kv_events_check(cases[i].endpoint, cases[i].replay, &err), cases[i].result,
                     "%zu", i);
        cr_expect_str_eq(err.message, cases[i].message);
        cr_expect_str_eq(err.param, cases[i].param);
        cr_expect_eq(err.status, 0);
        snprintf(want, sizeof(want), "context;%sterm;", cases[i].told);
        expect_told(want);
    }
    fails = "new context";
    cr_expect_eq(kv_events_check("tcp://p", "", &err), -ENOMEM);
    expect_told("context;");
}

/* Publishes @n batches of one block that is gone; returns the length of one. */
static size_t publish(uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        kv_events_notify(events, "m", NULL);
    return 1 + 9 + 1 + 1 + 1 + 16 + 1; /* "AllBlocksCleared" in an array of an array */
}

/* A frame without room is sent to the others, after which a missed subscriber is noticed again. */
Test(kv_sockets, a_batch_has_three_frames) {
    char name[300];

    open_events();
    tells = true;
    size_t len = publish(1);
    char want[100];
    snprintf(want, sizeof(want), "4+8+%zu;", len);
    expect_told(want);
    /* [1000.25, ...: an array of 3, and the 8 bytes of a number. */
    static const uint8_t head[10] = {0x93, 0xCB, 0x40, 0x8F, 0x42};
    cr_expect_eq(memcmp(published, head, sizeof(head)), 0);
    for (size_t n = 250; n < 261; n += 10) { /* the longest topic has 127 + 256 bytes */
        memset(name, 'n', sizeof(name));
        name[n] = 0;
        kv_events_notify(events, name, NULL);
        snprintf(want, sizeof(want), "%zu+8+%zu;", n + 3, len);
        expect_told(want);
    }
    fails = "send PUB";
    fails_with = EAGAIN;
    publish(1);
    snprintf(want, sizeof(want), "4+PUB NODROP=0;4+PUB NODROP=1;8+%zu;", len);
    expect_told(want);
    cr_expect_eq(kv_events_counts(events)->n_overruns, 1);
    fails = "send PUB";
    fails_with = EHOSTUNREACH;
    publish(1);
    snprintf(want, sizeof(want), "4+8+%zu;", len);
    expect_told(want);
    cr_expect_eq(kv_events_counts(events)->n_overruns, 1);
    cr_expect_eq(kv_events_counts(events)->n_published, 5);
    fails = "";
    kv_events_close(events);
    uv_run(&loop, UV_RUN_DEFAULT);
    kv_events_free(events);
    char topic[200];
    memset(topic, 't', sizeof(topic));
    topic[199] = 0;
    opts.topic = topic;
    open_events();
    memset(name, 'n', sizeof(name));
    name[299] = 0;
    kv_events_notify(events, name, NULL);
    snprintf(want, sizeof(want), "%d+8+%zu;", 128 + 256 - 1, len);
    expect_told(want);
    tells = false;
}

/* Puts a message of @n_frames frames from @peer into the inbox. */
static void ask(char peer, uint32_t n_peer, uint32_t n_frames, uint32_t len, uint64_t from) {
    cr_assert_lt(n_inbox, ARRAY_SIZE(inbox));
    inbox[n_inbox++] = (struct message){
        .n_frames = n_frames, .n_peer = n_peer, .len = len, .from = from, .peer = peer};
}

/* Only [peer, empty, number] is a request. */
Test(kv_sockets, what_is_a_request) {
    static const struct {
        uint32_t n_peer, n_frames, len;
        bool is;
    } cases[] = {
        {5, 3, 8, true},
        {5, 2, 8, false},
        {5, 4, 8, false},
        {5, 1, 8, false},
        {5, 3, 7, false},
        {5, 3, 9, false},
        {0, 3, 8, false},
        {1, 3, 8, true},
        {255, 3, 8, true},
        {256, 3, 8, false},
        {5, FRAMES_MAX - 1, 8, false},
        {5, FRAMES_MAX, 8, false},
    };

    open_events();
    publish(3);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char want[100] = "";

        tells = false;
        *told = 0;
        ask('a', cases[i].n_peer, cases[i].n_frames, cases[i].len, 2);
        arrive();
        cr_expect_eq(next_timer(), cases[i].is ? 1 : -1, "%zu", i);
        tells = true;
        turn();
        if (cases[i].is)
            snprintf(want, sizeof(want), "a%u+0+2+(30);a%u+0+-1+(0);", cases[i].n_peer,
                     cases[i].n_peer);
        expect_told(want);
        cr_expect_eq(next_timer(), -1);
    }
    cr_expect_eq(kv_events_counts(events)->n_replayed, 3);
    tells = false;
}

/* More frames than are read at once are read at the next turns, and are no request. */
Test(kv_sockets, the_rest_of_a_long_message_is_dropped) {
    open_events();
    publish(1);
    ask('a', 5, FRAMES_MAX + 2, 8, 0); /* the last three frames look like a request */
    ask('b', 5, 2 * FRAMES_MAX + 1, 8, 0);
    ask('c', 5, 3, 8, 0);
    tells = true;
    arrive();
    cr_expect_eq(next_timer(), 1);
    expect_told("");
    turn();
    expect_told("c5+0+0+(30);c5+0+-1+(0);");
    cr_expect_eq(next_timer(), -1);
    tells = false;
}

/* Others have their turn after so many messages. */
Test(kv_sockets, so_many_requests_are_read_at_a_time) {
    open_events();
    for (uint32_t i = 0; i < REQUESTS_MAX + 1; i++)
        ask('a', 5, 2, 8, 0);
    arrive();
    cr_expect_eq(at_message, REQUESTS_MAX - 1);
    cr_expect_eq(next_timer(), 1);
    turn();
    cr_expect_eq(at_message, REQUESTS_MAX + 1);
    cr_expect_eq(next_timer(), -1);
    for (uint32_t i = 0; i < REQUESTS_MAX - 1; i++)
        ask('a', 5, 2, 8, 0);
    arrive();
    cr_expect_eq(next_timer(), -1, "no further one has come");
}

/* A fifth peer waits until one of four has all it asked for. */
Test(kv_sockets, so_many_peers_are_served_at_a_time) {
    open_events();
    publish(2);
    for (char peer = 'a'; peer <= 'e'; peer++)
        ask(peer, 1, 3, 8, 1);
    tells = true;
    arrive();
    cr_expect_eq(at_message, REPLAYS_MAX - 1);
    expect_told("");
    for (const char *peer = "abcde"; *peer; peer++) {
        char want[40];

        cr_expect_eq(next_timer(), 1);
        turn();
        snprintf(want, sizeof(want), "%c1+0+1+(30);%c1+0+-1+(0);", *peer, *peer);
        expect_told(want);
    }
    cr_expect_eq(next_timer(), -1);
    tells = false;
}

/* A replay is sent in parts of so many batches, by turns with others. */
Test(kv_sockets, a_part_has_so_many_batches) {
    open_events();
    publish(2 * PART_MAX);
    ask('a', 1, 3, 8, 0);
    ask('b', 1, 3, 8, 2 * PART_MAX - 1);
    arrive();
    cr_expect_eq(n_sent, 0);
    turn();
    cr_expect_eq(n_sent, PART_MAX);
    cr_expect_eq(kv_events_counts(events)->n_replayed, PART_MAX);
    tells = true;
    turn();
    expect_told("b1+0+511+(30);b1+0+-1+(0);");
    tells = false;
    turn();
    cr_expect_eq(n_sent, 2 * PART_MAX + 3, "as many again, and the end");
    cr_expect_eq(next_timer(), -1);
    ask('c', 1, 3, 8, 2 * PART_MAX + 7); /* none of these exists yet */
    tells = true;
    arrive();
    turn();
    expect_told("c1+0+-1+(0);");
    tells = false;
}

Test(kv_sockets, a_part_has_so_many_bytes) {
    static int32_t tokens[100000];
    struct msg_block came = {.id = 1};
    const struct msg_blocks m = {
        .page_tokens = PART_BYTES / 5 + 20, .n_came = 1, .came = &came, .tokens = tokens};

    open_events();
    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
        tokens[i] = 100000; /* 5 bytes each */
    for (int i = 0; i < 3; i++)
        kv_events_notify(events, "m", &m);
    ask('a', 1, 3, 8, 0);
    arrive();
    for (uint32_t i = 1; i <= 3; i++) {
        cr_expect_eq(next_timer(), 1);
        turn();
        cr_expect_eq(n_sent, i < 3 ? i : 4, "one alone is more than a part");
    }
    cr_expect_eq(next_timer(), -1);
}

/* A peer without room is tried every 5 ms for 10 s; one that has left is forgotten at once. */
Test(kv_sockets, a_peer_that_takes_nothing_is_dropped_in_time) {
    open_events();
    publish(2);
    now_ms = 1000;
    no_room = 'a';
    fails_with = EAGAIN;
    ask('a', 1, 3, 8, 0);
    arrive();
    turn();
    cr_expect_eq(next_timer(), 5);
    now_ms = 1000 + 9999;
    turn();
    cr_expect_eq(next_timer(), 5);
    no_room = 0;
    tells = true;
    turn();
    expect_told("a1+0+0+(30);a1+0+1+(30);a1+0+-1+(0);");
    cr_expect_eq(next_timer(), -1);
    no_room = 'a';
    ask('a', 1, 3, 8, 0);
    ask('b', 1, 3, 8, 1);
    arrive();
    turn();
    expect_told("b1+0+1+(30);b1+0+-1+(0);"); /* its place is behind that of the last one */
    cr_expect_eq(next_timer(), 1);
    turn();
    cr_expect_eq(next_timer(), 5);
    now_ms += 10000;
    turn();
    cr_expect_eq(next_timer(), -1, "it has taken nothing for too long");
    fails_with = EHOSTUNREACH;
    ask('a', 1, 3, 8, 0);
    arrive();
    turn();
    cr_expect_eq(next_timer(), -1, "it has left");
    no_room = 0;
    turn();
    expect_told("");
    tells = false;
}
