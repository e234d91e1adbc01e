/* Messages of a started program to the daemon that it replaces, one in each line of the input. The
 * first byte chooses whether the program waits for the device, and which steps the daemon takes at
 * once. No process is started or killed. */

#include <signal.h>
#include <unistd.h>
#include <uv.h>

static int start_nothing(uv_loop_t *loop, uv_process_t *p, const uv_process_options_t *o);
static int kill_nothing(pid_t pid, int sig);

#define uv_spawn start_nothing
#define kill kill_nothing
#include "daemon/upgrade/upgrade.c"
#undef kill
#undef uv_spawn
#include "tests/fuzz/fuzz.h"

enum { WAITS = 1, LOADS = 2, TAKES = 4, GUESTS = 8 };

static uv_loop_t loop;
static struct upgrade *u;
static int next; /* the program's end of the channel */
static unsigned flags;
static int n_opened, n_ready, n_taken, n_failed, killed;

static int start_nothing(uv_loop_t *l, uv_process_t *p, const uv_process_options_t *o) {
    next = dup(o->stdio[UPGRADE_FD].data.fd);
    FUZZ_ASSERT(next >= 0);
    return 0;
}

static int kill_nothing(pid_t pid, int sig) {
    FUZZ_ASSERT(pid > 1 && sig == SIGKILL && n_taken == 0 && !killed);
    killed = pid;
    return 0;
}

static void on_opened(void *ctx) {
    FUZZ_ASSERT(flags & WAITS && n_opened++ == 0 && n_ready == 0);
    if (flags & LOADS)
        upgrade_load(u);
}

static void on_ready(void *ctx) {
    FUZZ_ASSERT(n_ready++ == 0 && n_opened == (flags & WAITS ? 1 : 0));
    if (flags & GUESTS && upgrade_accepts_requests(u))
        upgrade_send_guests(u, "model", STDERR_FILENO);
    if (flags & TAKES)
        upgrade_commit(u);
}

static void on_taken(void *ctx, int pid) {
    FUZZ_ASSERT(pid > 1 && n_ready == 1 && n_taken++ == 0 && n_failed == 0);
}

static void on_failed(void *ctx, const char *why) {
    FUZZ_ASSERT(n_failed++ == 0 && n_taken == 0);
    FUZZ_ASSERT(upgrade_state(u) == UPGRADE_IDLE);
}

static void begin(void) {
    static const struct upgrade_files none;
    char program[] = "weftd", *argv[] = {program, NULL};
    struct upgrade_opts o = {.loop = &loop,
                             .sources = "abc",
                             .opened = on_opened,
                             .ready = on_ready,
                             .taken = on_taken,
                             .failed = on_failed};
    struct err err = {0};

    if (!loop.data)
        FUZZ_ASSERT(uv_loop_init(&loop) == 0);
    loop.data = &loop;
    n_opened = n_ready = n_taken = n_failed = killed = 0;
    FUZZ_ASSERT(upgrade_new(&u, &o) == 0);
    FUZZ_ASSERT(upgrade_start(u, argv, &none, 60000, flags & WAITS, &err) == 0);
    u->process_open = false;
}

/* Closes the program's end; both ends if the daemon has been replaced. */
static void end(void) {
    int channel = u->channel;

    fuzz_hang_up(next, channel);
    uv_run(&loop, UV_RUN_NOWAIT);
    FUZZ_ASSERT(n_taken + n_failed == 1);
    upgrade_close(u);
    uv_run(&loop, UV_RUN_DEFAULT);
    if (n_taken)
        close(channel);
    u = upgrade_free(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    int reported = 0;

    if (len < 1 || len > 4096)
        return -1;
    flags = data[0];
    begin();
    for (size_t at = 1, n; at < len; at += n + 1) {
        const uint8_t *line_end = memchr(data + at, '\n', len - at);

        n = line_end ? (size_t)(line_end - data) - at : len - at;
        if (send(next, data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
        reported = u->pid;
        uv_run(&loop, UV_RUN_NOWAIT);
        reported = u->pid ? u->pid : reported;
        if (n_failed) /* the program still exists, so it must be ended */
            FUZZ_ASSERT(killed == reported);
        if (n_failed || n_taken)
            break;
    }
    end();
    return 0;
}
