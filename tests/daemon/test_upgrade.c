/* An upgrade from the side of the old daemon. The next daemon is a shell script. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/upgrade/upgrade.h"
#include "timer_ms.h"

#define SAY                                                                                        \
    R"(say() { printf %s "$1" >&3; })"                                                             \
    "\n"
#define HEAR "hear() { dd bs=500 count=1 <&3 2>/dev/null; }\n"
/* the daemon ignores the number in the message */
#define STARTED                                                                                    \
    SAY HEAR R"(say "started 1 abc")"                                                              \
             "\n"
#define ENDLESS "\nexec sleep 1000"
#define SEND(bytes)                                                                                \
    "exec python3 -c 'import socket, time; s = socket.socket(fileno=3); s.send(" bytes             \
    "); time.sleep(1000)'"

/* An old daemon: its callbacks so far, and its reactions. */
struct scene {
    uv_loop_t loop;
    struct upgrade *u;
    char told[600];
    int pid;
    /* model whose requests are handed over once the next one is ready */
    const char *guests;
    /* ready() releases nothing, opened() nothing */
    bool stays, waits_here;
};

static void PRINTF(2, 3) note(struct scene *s, const char *fmt, ...) {
    size_t n = strlen(s->told);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->told + n, sizeof(s->told) - n, fmt, ap);
    va_end(ap);
}

static void on_opened(void *ctx) {
    struct scene *s = ctx;

    note(s, "opened;");
    upgrade_commit(s->u); /* has no effect yet */
    cr_expect_eq(upgrade_state(s->u), UPGRADE_OPENED);
    cr_expect_not(upgrade_accepts_requests(s->u));
    if (!s->waits_here)
        upgrade_load(s->u);
}

static void on_ready(void *ctx) {
    struct scene *s = ctx;

    note(s, "ready%s;", upgrade_accepts_requests(s->u) ? " for requests" : "");
    upgrade_load(s->u); /* has no effect any more */
    if (s->guests)
        upgrade_send_guests(s->u, s->guests, STDERR_FILENO);
    if (!s->stays)
        upgrade_commit(s->u);
}

static void on_taken(void *ctx, int pid) {
    struct scene *s = ctx;

    note(s, "taken;");
    s->pid = pid;
}

static void on_failed(void *ctx, const char *why) {
    struct scene *s = ctx;

    note(s, "failed: %s", why);
    cr_expect_eq(upgrade_state(s->u), UPGRADE_IDLE);
}

/* Returns the number of open descriptors. */
static uint32_t n_open(void) {
    uint32_t n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void begin(struct scene *s) {
    *s = (struct scene){0};
    uv_loop_init(&s->loop);
    struct upgrade_opts o = {.loop = &s->loop,
                             .ctx = s,
                             .sources = "abc",
                             .opened = on_opened,
                             .ready = on_ready,
                             .taken = on_taken,
                             .failed = on_failed};
    cr_assert_eq(upgrade_new(&s->u, &o), 0);
}

static int start(struct scene *s, const char *script, const struct upgrade_files *f,
                 uint32_t limit_ms, bool waits, struct err *err) {
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};

    *s->told = 0;
    return upgrade_start(s->u, argv, f, limit_ms, waits, err);
}

/* Runs @script as the next daemon until nothing remains to wait for. */
static void run(struct scene *s, const char *script, uint32_t limit_ms, bool waits) {
    struct upgrade_files none = {0};
    struct err err = {0};

    cr_assert_eq(start(s, script, &none, limit_ms, waits, &err), 0, "%s", err.message);
    uv_run(&s->loop, UV_RUN_DEFAULT);
}

static void end(struct scene *s) {
    upgrade_close(s->u);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    upgrade_free(s->u);
    cr_expect_eq(uv_loop_close(&s->loop), 0);
}

Test(upgrade, the_next_daemon_takes_over, .timeout = 60) {
    struct scene s;

    begin(&s);
    run(&s, ":", 60000, false); /* from now on libuv keeps descriptors of its own */
    uint32_t before = n_open();
    run(&s, STARTED "say ready; test \"$(hear)\" = take && say taken; say more", 60000, false);
    cr_expect_str_eq(s.told, "ready for requests;taken;");
    cr_expect_gt(s.pid, 1, "not the number in the message");
    cr_expect_eq(upgrade_state(s.u), UPGRADE_TAKEN);
    cr_expect(upgrade_accepts_requests(s.u));
    cr_expect_eq(n_open(), before + 1, "the next daemon sees the end of this process");
    end(&s);
}

Test(upgrade, it_is_told_that_it_is_the_main_process, .timeout = 60) {
    struct upgrade_files f = {0};
    char heard[8] = "";
    struct scene s;
    struct err err;
    int pair[2];

    begin(&s);
    cr_assert_eq(pipe2(pair, O_CLOEXEC), 0);
    cr_assert_eq(upgrade_add(&f, pair[1], "pipe", NULL), 0);
    cr_assert_eq(start(&s, STARTED "say ready; hear >/dev/null; say taken; hear >&4", &f, 60000,
                       false, &err),
                 0);
    close(pair[1]);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_expect_eq(read(pair[0], heard, sizeof(heard) - 1), 4);
    cr_expect_str_eq(heard, "main");
    close(pair[0]);
    end(&s);
}

Test(upgrade, one_of_other_sources_takes_no_requests, .timeout = 60) {
    struct scene s;

    begin(&s);
    run(&s, SAY HEAR R"(say "started 1 ab"; say ready; hear >/dev/null; say taken)", 60000, false);
    cr_expect_str_eq(s.told, "ready;taken;");
    end(&s);
}

Test(upgrade, one_that_needs_the_device_loads_when_it_is_free, .timeout = 60) {
    struct scene s;

    begin(&s);
    run(&s, STARTED "say opened; test \"$(hear)\" = load && say ready; hear >/dev/null; say taken",
        60000, true);
    cr_expect_str_eq(s.told, "opened;ready for requests;taken;");
    end(&s);
}

Test(upgrade, sockets_of_requests_are_handed_over_before_it_takes, .timeout = 60) {
    struct scene s;

    begin(&s);
    s.guests = "tiny";
    run(&s,
        STARTED R"(say ready; a=$(hear); b=$(hear); say "failed $a,)"
                R"( $b")" ENDLESS,
        60000, false);
    cr_expect_str_eq(s.told, "ready for requests;failed: guests tiny, take");
    end(&s);
}

static void find_limit(uv_handle_t *h, void *ctx) {
    if (uv_handle_get_type(h) == UV_TIMER && uv_is_active(h))
        *(uint64_t *)ctx = timer_ms((uv_timer_t *)h);
}

/* Returns the limit in ms that was set last. */
static uint64_t limit_of(struct scene *s) {
    uint64_t ms = 0;

    uv_walk(&s->loop, find_limit, &ms);
    return ms;
}

/* Runs the loop until the upgrade is in @state, whose limit is @ms. */
static void expect_limit(struct scene *s, enum upgrade_state state, uint64_t ms) {
    while (upgrade_state(s->u) != state)
        uv_run(&s->loop, UV_RUN_ONCE);
    cr_expect_eq(limit_of(s), ms, "%u: %u", state, (uint32_t)limit_of(s));
}

/* Before "started" a process has ten seconds, then load-timeout-ms; the old daemon has twenty to
 * release what the next one needs, or as long as that one loads. */
Test(upgrade, each_state_has_its_limit, .timeout = 60) {
    struct upgrade_files none = {0};
    struct scene s;
    struct err err;

    begin(&s);
    s.stays = true;
    cr_assert_eq(start(&s, STARTED "say ready" ENDLESS, &none, 60000, false, &err), 0);
    expect_limit(&s, UPGRADE_STARTED, 10000);
    while (limit_of(&s) == 10000)
        uv_run(&s.loop, UV_RUN_ONCE);
    if (upgrade_state(s.u) == UPGRADE_STARTED)
        expect_limit(&s, UPGRADE_STARTED, 60000);
    expect_limit(&s, UPGRADE_READY, 20000);
    upgrade_load(s.u);
    expect_limit(&s, UPGRADE_READY, 20000);
    upgrade_commit(s.u);
    expect_limit(&s, UPGRADE_TAKING, 10000);
    upgrade_commit(s.u);
    upgrade_stop(s.u);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    s.waits_here = true;
    cr_assert_eq(start(&s, STARTED "say opened; hear >/dev/null; say ready" ENDLESS, &none, 60000,
                       true, &err),
                 0);
    expect_limit(&s, UPGRADE_OPENED, 20000);
    upgrade_load(s.u);
    expect_limit(&s, UPGRADE_LOADING, 60000);
    expect_limit(&s, UPGRADE_READY, 60000);
    upgrade_stop(s.u);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_assert_eq(start(&s, STARTED "say opened; hear >/dev/null; say ready" ENDLESS, &none, 9000,
                       true, &err),
                 0);
    expect_limit(&s, UPGRADE_OPENED, 20000);
    upgrade_load(s.u);
    expect_limit(&s, UPGRADE_READY, 20000);
    end(&s);
}

static void end_limit(uv_handle_t *h, void *ctx) {
    uv_timer_t *t = (uv_timer_t *)h;

    if (uv_handle_get_type(h) != UV_TIMER || !uv_is_active(h))
        return;
    uv_timer_stop(t);
    t->timer_cb(t);
}

/* Lets the time of the state @state end. */
static void expect_late(const char *script, enum upgrade_state state, bool waits, const char *why) {
    struct upgrade_files none = {0};
    struct scene s;
    struct err err;

    begin(&s);
    s.stays = s.waits_here = true;
    cr_assert_eq(start(&s, script, &none, 60000, waits, &err), 0);
    while (upgrade_state(s.u) != state)
        uv_run(&s.loop, UV_RUN_ONCE);
    if (state == UPGRADE_READY && !waits && strstr(why, "take over")) {
        upgrade_commit(s.u);
        cr_expect_eq(upgrade_state(s.u), UPGRADE_TAKING);
    }
    *s.told = 0;
    uv_walk(&s.loop, end_limit, NULL);
    cr_expect_str_eq(s.told, why);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    end(&s);
}

Test(upgrade, whoever_is_late_is_named, .timeout = 60) {
    expect_late("exec sleep 1000", UPGRADE_STARTED, false,
                "failed: it did not answer within 10 s; is the installed program a weftd that "
                "supports upgrades?");
    expect_late(STARTED "say opened" ENDLESS, UPGRADE_OPENED, true,
                "failed: this daemon could not release what the next one needs in time");
    expect_late(STARTED "say ready" ENDLESS, UPGRADE_READY, false,
                "failed: this daemon could not release what the next one needs in time");
    expect_late(STARTED "say ready" ENDLESS, UPGRADE_READY, false,
                "failed: it was ready but did not take over within 10 s");
}

/* Each unexpected message ends the process, and another upgrade is possible afterwards. */
Test(upgrade, whatever_is_not_expected_fails_it, .timeout = 100) {
    static const char unexpected[] = "failed: it sent an unexpected message";
    static const struct {
        const char *script, *told;
        bool waits;
        uint32_t limit_ms;
    } all[] = {
        {SAY "say hello" ENDLESS, unexpected, false, 0},
        {SAY "say ready" ENDLESS, unexpected, false, 0},
        {SAY "say started" ENDLESS, unexpected, false, 0},
        {STARTED SEND(R"(b"")"), unexpected, false, 0},
        {STARTED SEND(R"(b"\0ready")"), unexpected, false, 0},
        {STARTED R"(say "started 1 abc")" ENDLESS, unexpected, false, 0},
        {STARTED "say opened" ENDLESS, unexpected, false, 0},
        {STARTED "say taken" ENDLESS, unexpected, false, 0},
        {STARTED "say take" ENDLESS, unexpected, true, 0},
        {STARTED "say ready" ENDLESS, unexpected, true, 0},
        {SAY "say opened" ENDLESS, unexpected, false, 0},
        {SAY "say opened" ENDLESS, unexpected, true, 0},
        {STARTED "say 'failed no model'" ENDLESS, "failed: no model", false, 0},
        {STARTED "say 'failed'" ENDLESS, unexpected, false, 0},
        {SAY "say 'started'; say 'started 1 abc'" ENDLESS, unexpected, false, 0},
        {STARTED "say opened; say opened" ENDLESS, "opened;failed: it sent an unexpected message",
         true, 0},
        {":", "failed: it ended before it took over; its last log line may say why", false, 0},
        {STARTED, "failed: it ended before it took over; its last log line may say why", false, 0},
        {SAY R"(say "started 1 other")" ENDLESS,
         "failed: two workers cannot share a device, and a daemon of another version cannot "
         "continue the running requests; restart weftd instead",
         true, 0},
        {STARTED ENDLESS, "failed: it was not ready within load-timeout-ms", false, 100},
        {STARTED "say opened; hear >/dev/null" ENDLESS,
         "opened;failed: it was not ready within load-timeout-ms", true, 1000},
    };
    uint32_t before = 0;
    struct scene s;

    begin(&s);
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        run(&s, all[i].script, all[i].limit_ms ? all[i].limit_ms : 60000, all[i].waits);
        cr_expect_str_eq(s.told, all[i].told, "%zu: %s", i, s.told);
        cr_expect_not(upgrade_accepts_requests(s.u));
        before = before ? before : n_open();
        cr_expect_eq(n_open(), before);
    }
    end(&s);
    begin(&s); /* a daemon that was never upgraded ends as well */
    end(&s);
}

/* A daemon detaches from its parent. The end of the pipe shows that it was killed nevertheless. */
Test(upgrade, a_daemon_in_the_background_is_ended_too, .timeout = 60) {
    struct upgrade_files f = {0};
    struct scene s;
    struct err err;
    int pair[2];
    char byte;

    begin(&s);
    cr_assert_eq(pipe2(pair, O_CLOEXEC), 0);
    cr_assert_eq(upgrade_add(&f, pair[1], "pipe", NULL), 0);
    cr_assert_eq(start(&s,
                       "sh -c '" SAY R"(say "started 1 )"
                       R"(abc"; say more)" ENDLESS "' &",
                       &f, 60000, false, &err),
                 0);
    close(pair[1]);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_expect_str_eq(s.told, "failed: it sent an unexpected message");
    cr_expect_eq(read(pair[0], &byte, 1), 0);
    close(pair[0]);
    end(&s);
}

Test(upgrade, there_is_one_at_a_time_and_it_can_be_stopped, .timeout = 60) {
    struct upgrade_files none = {0};
    struct scene s;
    struct err err;
    char *missing[] = {"/nonexistent/weftd", NULL};

    begin(&s);
    s.stays = true;
    cr_expect_lt(upgrade_start(s.u, missing, &none, 60000, false, &err), 0);
    cr_expect_str_eq(err.message, "/nonexistent/weftd: no such file or directory");
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_assert_eq(start(&s, STARTED "say ready" ENDLESS, &none, 60000, false, &err), 0);
    for (int i = 0; i < 2; i++) {
        cr_expect_lt(start(&s, ":", &none, 60000, false, &err), 0);
        cr_expect(strstr(err.message, "another upgrade is still running"), "%s", err.message);
        while (upgrade_state(s.u) != UPGRADE_READY)
            uv_run(&s.loop, UV_RUN_ONCE);
    }
    upgrade_stop(s.u);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_expect_eq(upgrade_state(s.u), UPGRADE_IDLE);
    cr_expect_str_eq(s.told, "failed: this daemon is ending"); /* start() cleared the rest */
    s.stays = false;
    cr_assert_eq(start(&s, STARTED "say ready" ENDLESS, &none, 60000, false, &err), 0);
    while (upgrade_state(s.u) != UPGRADE_TAKING)
        uv_run(&s.loop, UV_RUN_ONCE);
    upgrade_stop(s.u);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_expect_str_eq(s.told, "ready for requests;failed: this daemon is ending");
    cr_assert_eq(start(&s, STARTED ENDLESS, &none, 60000, false, &err), 0);
    end(&s); /* ends the next daemon, too */
}

/* Variables of the old process do not reach the next one; names do. */
Test(upgrade, descriptors_come_with_their_names, .timeout = 60) {
    static const char *const own[] = {"LISTEN_PID",   "LISTEN_FDS",     "LISTEN_FDNAMES",
                                      "WATCHDOG_PID", UPGRADE_VARIABLE, UPGRADE_WAITS,
                                      UPGRADE_MAIN};
    static const char script[] =
        SAY R"(say "failed $LISTEN_PID$LISTEN_FDS$LISTEN_FDNAMES$WATCHDOG_PID$WEFT_UPGRADE_WAITS,)"
            "$WEFT_UPGRADE_MAIN,$OTHER,$WEFT_UPGRADE,$(cat <&4),$(cat <&5)\"";
    struct upgrade_files f = {0};
    struct scene s;
    struct err err;
    int pair[2];

    begin(&s);
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        setenv(own[i], "old", 1);
    setenv("OTHER", "other", 1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pipe(pair), 0);
        cr_assert_eq(write(pair[1], i ? "b" : "a", 1), 1);
        close(pair[1]);
        cr_assert_eq(upgrade_add(&f, pair[0], i ? "admin" : "http", i ? NULL : "[::1]:80"), 0);
    }
    cr_assert_eq(start(&s, script, &f, 60000, false, &err), 0);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    cr_expect_str_eq(s.told, "failed: ,1,other,http=[::1]:80\nadmin\n,a,b");
    for (uint32_t i = 0; i < f.n; i++)
        close(f.fd[i]);
    end(&s);
}

/* Names that do not fit are refused without a change. */
Test(upgrade, names_and_descriptors_have_a_limit) {
    static struct upgrade_files f;
    static char text[UPGRADE_NAMES_MAX];

    cr_expect_eq(upgrade_add(&f, 7, "http", "a\nb"), -E2BIG);
    cr_expect_eq(f.n, 0);
    for (int i = 0; i < UPGRADE_FDS_MAX; i++)
        cr_assert_eq(upgrade_add(&f, i, "a", NULL), 0);
    cr_expect_eq(upgrade_add(&f, 7, "a", NULL), -E2BIG);
    cr_expect_eq(f.n, UPGRADE_FDS_MAX);
    cr_expect_eq(f.len, 2 * UPGRADE_FDS_MAX);
    for (uint32_t extra = 0; extra < 2; extra++) { /* "a\n", "b=...\n" and the NUL take the rest */
        f = (struct upgrade_files){0};
        cr_assert_eq(upgrade_add(&f, 7, "a", NULL), 0);
        memset(text, 'x', sizeof(text));
        text[UPGRADE_NAMES_MAX - 1 - 2 - 3 + extra] = 0;
        cr_expect_eq(upgrade_add(&f, 8, "b", text), extra ? -E2BIG : 0);
        cr_expect_eq(f.n, extra ? 1 : 2);
        cr_expect_eq(f.len, strlen(f.names));
        cr_expect_eq(f.len, extra ? 2 : UPGRADE_NAMES_MAX - 1);
    }
}
