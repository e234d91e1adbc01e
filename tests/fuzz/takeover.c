/* Messages of an old daemon to the one that replaces it, and the names of the descriptors that it
 * hands over. The first byte chooses how they arrive; lines of the input up to an empty one are
 * names, each further one is a message. */

#include <unistd.h>
#include <uv.h>

#include "daemon/upgrade/upgrade.h"

static int channel; /* end of the channel of this daemon */

#undef UPGRADE_FD
#define UPGRADE_FD channel
#define fork() 0
#include "daemon/upgrade/takeover.c"
#undef fork
#include "tests/fuzz/fuzz.h"

enum { WAITS = 1, PASSES = 2, PASSES_TWO = 4, MAIN = 8, HELD = 16 };

static uv_loop_t loop;
static unsigned flags;
static int n_loads, n_mains, n_takes, n_gone;

static void on_load(void *ctx) {
    FUZZ_ASSERT(flags & WAITS && n_loads++ == 0 && n_gone == 0 && !takeover_waits());
    takeover_ready();
}

static void on_main(void *ctx) {
    FUZZ_ASSERT(n_mains++ == 0 && n_gone == 0 && n_takes == (flags & MAIN ? 1 : 0));
}

static void on_commit(void *ctx) {
    FUZZ_ASSERT(n_takes++ == 0 && n_gone == 0 && !takeover_is_pending());
    takeover_taken();
    FUZZ_ASSERT(takeover_has_old());
}

static void on_guests(void *ctx, const char *name, int fd) {
    FUZZ_ASSERT(flags & (PASSES | PASSES_TWO) && n_gone == 0 && strlen(name) < UPGRADE_MESSAGE_MAX);
    FUZZ_ASSERT(close(fd) == 0);
}

static void on_gone(void *ctx) {
    FUZZ_ASSERT(n_gone++ == 0);
    FUZZ_ASSERT(takeover_is_pending() == (n_takes == 0) && !takeover_has_old());
}

static void begin(const char *names) {
    const struct takeover_opts o = {
        .loop = &loop,
        .load = on_load,
        .main = on_main,
        .commit = on_commit,
        .guests = on_guests,
        .gone = on_gone,
    };
    const char *got[UPGRADE_FDS_MAX];
    int fds[UPGRADE_FDS_MAX];

    if (!loop.data)
        FUZZ_ASSERT(uv_loop_init(&loop) == 0);
    loop.data = &loop;
    memset(&t, 0, sizeof(t));
    n_loads = n_mains = n_takes = n_gone = 0;
    setenv(UPGRADE_VARIABLE, names, 1);
    unsetenv(UPGRADE_WAITS);
    if (flags & WAITS)
        setenv(UPGRADE_WAITS, "1", 1);
    unsetenv(UPGRADE_MAIN);
    if (flags & MAIN)
        setenv(UPGRADE_MAIN, "1", 1);
    takeover_begin("abc");
    FUZZ_ASSERT(takeover_is_pending() == (strlen(names) < UPGRADE_NAMES_MAX));
    for (int i = 0, n = takeover_files(fds, got); i < n; i++)
        FUZZ_ASSERT(!strchr(got[i], '\n') && fds[i] == channel + 1 + i);
    FUZZ_ASSERT(takeover_start(&o) == 0);
    if (takeover_waits())
        takeover_opened();
    else
        takeover_ready();
}

/* Sends a message, with copies of a descriptor as the flags say. Returns false if that is not
 * possible any more. */
static bool tell(int old, const uint8_t *text, size_t len) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {(void *)(uintptr_t)text, len};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    int fds[2] = {STDERR_FILENO, STDERR_FILENO};

    if (flags & (PASSES | PASSES_TWO)) {
        control.head.cmsg_len = CMSG_LEN((flags & PASSES_TWO ? 2 : 1) * sizeof(int));
        memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
        m.msg_control = &control;
        m.msg_controllen = control.head.cmsg_len;
    }
    return sendmsg(old, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* Returns the lowest free descriptor, which shows that none was left open. */
static int lowest_free(void) {
    int fd = dup(STDERR_FILENO);

    close(fd);
    return fd;
}

/* Returns the length of the line at @data. */
static size_t line(const uint8_t *data, size_t len) {
    const uint8_t *end = len ? memchr(data, '\n', len) : NULL;

    return end ? (size_t)(end - data) : len;
}

/* Ends the old daemon, whose end of the channel is @old. HELD: a child of it lives a little longer,
 * which is no end of the channel. */
static void hang_up(int old) {
    int n = n_gone;

    if (flags & HELD) {
        int child = dup(old);

        close(old);
        if (t.polls)
            uv_run(&loop, UV_RUN_NOWAIT);
        FUZZ_ASSERT(n_gone == n);
        old = child;
    }
    fuzz_hang_up(old, channel);
    if (t.polls)
        uv_run(&loop, UV_RUN_NOWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    int pair[2], free_fd;
    size_t at = 1, n;

    if (len < 1 || len > 16 << 10)
        return -1;
    flags = data[0];
    FUZZ_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    channel = pair[0];
    while (at < len && (n = line(data + at, len - at)) > 0)
        at += n + 1;
    CLEANUP(freep) char *names = fuzz_text(data + 1, MIN(at, len) - 1);
    begin(names);
    free_fd = lowest_free();
    for (at++; at < len && !n_gone && t.state != TAKEOVER_NONE; at += n + 1) {
        n = line(data + at, len - at);
        if (!tell(pair[1], data + at, n))
            break;
        uv_run(&loop, UV_RUN_NOWAIT);
        FUZZ_ASSERT(lowest_free() == free_fd);
    }
    hang_up(pair[1]);
    FUZZ_ASSERT(n_gone == (strlen(names) < UPGRADE_NAMES_MAX ? 1 : 0));
    takeover_close();
    uv_run(&loop, UV_RUN_DEFAULT);
    close(pair[0]);
    return 0;
}
