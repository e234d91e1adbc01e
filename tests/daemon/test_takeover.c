/* An upgrade from the side of the new daemon: a process that leaves its parent, as takeover_begin()
 * makes it do. The test sends the messages of the old daemon. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/upgrade/takeover.h"

static uv_loop_t loop;
static bool over;
static const char *fails; /* the reason why the new daemon cannot take over, or NULL */

/* Reports to the test, which reads stdout to its end. */
static void PRINTF(1, 2) note(const char *fmt, ...) {
    char text[600];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cr_assert_eq(write(STDOUT_FILENO, text, (size_t)n), n);
}

static void on_load(void *ctx) {
    note("load;");
    takeover_ready();
}

static void on_commit(void *ctx) {
    note("take;");
    takeover_failed("too late"); /* says nothing any more */
    takeover_taken();
    note("%s", takeover_has_old() && !takeover_is_pending() ? "" : "wrong state;");
}

static void on_main(void *ctx) {
    note("main;");
}

static void on_guests(void *ctx, const char *name, int fd) {
    note("guests %s%s;", name, fcntl(fd, F_GETFD) & FD_CLOEXEC ? "" : " open");
    close(fd);
}

static void on_gone(void *ctx) {
    const char *wrong = "";

    if (takeover_is_pending())
        wrong = " before";
    if (takeover_has_old())
        wrong = " wrong state";
    note("gone%s;", wrong);
    over = true;
}

static uint32_t n_open(void) {
    uint32_t n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Runs as the new daemon until the old one has ended. */
static void live(void) {
    const struct takeover_opts o = {
        .loop = &loop,
        .load = on_load,
        .commit = on_commit,
        .main = on_main,
        .guests = on_guests,
        .gone = on_gone,
    };
    const char *names[UPGRADE_FDS_MAX];
    int fds[UPGRADE_FDS_MAX];

    takeover_begin("abc");
    note("%s", fcntl(UPGRADE_FD, F_GETFD) & FD_CLOEXEC ? "" : "the channel is open;");
    note("%s", takeover_is_pending() && !takeover_has_old() ? "" : "not pending;");
    for (int i = 0, n = takeover_files(fds, names); i < n; i++)
        note("%d %s%s;", fds[i], names[i], fcntl(fds[i], F_GETFD) & FD_CLOEXEC ? "" : " open");
    note("%s", getenv(UPGRADE_VARIABLE) || getenv(UPGRADE_WAITS) || getenv(UPGRADE_MAIN)
                   ? "variables;"
                   : "");
    uv_loop_init(&loop);
    cr_assert_eq(takeover_start(&o), 0);
    close(STDIN_FILENO); /* the next descriptor has the number 0, which is as good as any */
    uint32_t before = n_open();
    if (fails)
        takeover_failed(fails);
    else if (takeover_waits())
        takeover_opened();
    else
        takeover_ready();
    while (!over)
        uv_run(&loop, UV_RUN_ONCE);
    note("%s", n_open() == before ? "" : "a descriptor is left;");
    takeover_close();
    uv_run(&loop, UV_RUN_DEFAULT);
    note("%s", uv_loop_close(&loop) == 0 ? "end;" : "handles are left;");
}

struct message {
    const char *text;
    int n_fds;
};

static void tell(int channel, const struct message *what) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN((size_t)what->n_fds * sizeof(int)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {(void *)(uintptr_t)what->text, strlen(what->text)};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

    if (what->n_fds > 0) {
        memcpy(CMSG_DATA(&control.head), (int[]){STDERR_FILENO, STDERR_FILENO}, 2 * sizeof(int));
        m.msg_control = &control;
        m.msg_controllen = control.head.cmsg_len;
    }
    cr_assert_geq(sendmsg(channel, &m, MSG_NOSIGNAL), 0);
}

/* Runs a new daemon that gets @names, the messages @tells, and another variable unless it is NULL;
 * it must do @did, and answer @said. */
static void run(const char *names, const char *variable, const struct message *tells,
                const char *did, const char *said) {
    char text[2000] = "", answer[700] = "";
    int pair[2], out[2], status;
    ssize_t n;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    for (; tells->text; tells++)
        tell(pair[0], tells);
    shutdown(pair[0], SHUT_WR);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv(UPGRADE_VARIABLE, names, 1);
        if (variable)
            setenv(variable, "1", 1);
        dup2(out[1], STDOUT_FILENO);
        dup2(pair[1], UPGRADE_FD);
        for (int fd = UPGRADE_FD + 1; fd < 256; fd++)
            close(fd);
        for (const char *s = names; (s = strchr(s, '\n')); s++)
            cr_assert_gt(dup(STDERR_FILENO), UPGRADE_FD);
        live();
        _exit(0);
    }
    close(pair[1]);
    close(out[1]);
    cr_expect(waitpid(pid, &status, 0) == pid && status == 0, "its parent detaches");
    for (size_t at = 0; (n = read(out[0], text + at, sizeof(text) - 1 - at)) > 0;)
        at += (size_t)n;
    char *last = strstr(text, "end;");
    cr_assert(last && !last[4], "%s", text);
    *last = 0;
    cr_expect_str_eq(text, did);
    for (size_t at = 0; (n = recv(pair[0], answer + at, sizeof(answer) - 2 - at, 0)) != 0;) {
        cr_assert(n > 0 || errno == ECONNRESET); /* the daemon left messages unread */
        at += (size_t)MAX(n, 0);
        if (n > 0)
            answer[at++] = ';';
    }
    const char *behind = strchr(answer, ' ');
    cr_assert(strncmp(answer, "started ", 8) == 0 && atoi(behind) > 1, "%s", answer);
    cr_expect_neq(atoi(behind), pid, "the child is the daemon");
    cr_expect_str_eq(strchr(behind + 1, ' '), said);
    close(pair[0]);
    close(out[0]);
}

Test(takeover, the_new_daemon_takes_over, .timeout = 30) {
    static const struct message tells[] = {{"guests early", 1}, {"take", 0}, {"main", 0},
                                           {"guests a b", 1},   {"take", 0}, {0}};

    run("http=[::1]:80\nadmin\n", UPGRADE_MAIN, tells,
        "4 http=[::1]:80;5 admin;guests early;take;main;guests a b;gone;", " abc;ready;taken;");
}

Test(takeover, an_old_daemon_of_version_0_1_0_makes_it_the_main_process_first, .timeout = 30) {
    static const struct message tells[] = {{"take", 0}, {0}};

    run("", NULL, tells, "main;take;gone;", " abc;ready;taken;");
}

Test(takeover, it_becomes_the_main_process_once, .timeout = 30) {
    static const struct message early[] = {{"take", 0}, {"main", 0}, {0}};
    static const struct message twice[] = {{"take", 0}, {"main", 0}, {"main", 0}, {0}};

    run("", NULL, early, "main;take;gone;", " abc;ready;taken;");
    run("", UPGRADE_MAIN, twice, "take;main;gone;", " abc;ready;taken;");
}

Test(takeover, one_that_waits_for_the_device_loads_when_told, .timeout = 30) {
    static const struct message tells[] = {{"load", 0}, {"load", 0}, {0}};

    run("", UPGRADE_WAITS, tells, "load;gone before;", " abc;opened;ready;");
}

/* Any other message ends the upgrade, and a descriptor that came with it is closed. */
Test(takeover, whatever_is_not_expected_ends_it, .timeout = 60) {
    static const struct message all[][3] = {
        {{"load", 0}, {"take", 0}}, {{"taken", 0}, {"take", 0}}, {{"guests a", 0}, {"take", 0}},
        {{"", 0}, {"take", 0}},     {{"", 1}, {"take", 0}},      {{"guest a", 1}, {"take", 0}},
        {{"main", 0}, {"take", 0}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        run("http\n", NULL, all[i], "4 http;gone before;", " abc;ready;");
}

/* A descriptor comes with the requests of a model, and with no other message. */
Test(takeover, descriptors_that_are_not_expected_are_closed, .timeout = 30) {
    static const struct message tells[] = {{"guests a", 2}, {"take", 1}, {0}};

    run("", UPGRADE_MAIN, tells, "guests a;take;gone;", " abc;ready;taken;");
}

/* The old daemon is told the reason of an end before the takeover, cut at 472 characters. */
Test(takeover, one_that_cannot_take_over_says_why, .timeout = 30) {
    static const struct message tells[] = {{"x", 0}, {0}};
    char why[600], said[600];

    fails = "no model";
    run("", UPGRADE_MAIN, tells, "gone before;", " abc;failed no model;");
    memset(why, 'x', sizeof(why));
    why[sizeof(why) - 1] = 0;
    fails = why;
    snprintf(said, sizeof(said), " abc;failed %.472s;", why);
    run("", UPGRADE_MAIN, tells, "gone before;", said);
}

/* Names beyond those that an old daemon passes are none. */
Test(takeover, names_have_a_limit, .timeout = 30) {
    static char long_names[UPGRADE_NAMES_MAX + 1], many[2 * UPGRADE_FDS_MAX + 3];
    const char *names[UPGRADE_FDS_MAX];
    int fds[UPGRADE_FDS_MAX];

    memset(long_names, 'a', UPGRADE_NAMES_MAX);
    setenv(UPGRADE_VARIABLE, long_names, 1);
    takeover_begin("abc");
    cr_expect_not(takeover_is_pending());
    cr_expect(getenv(UPGRADE_VARIABLE) != NULL);
    long_names[UPGRADE_NAMES_MAX - 1] = 0;
    setenv(UPGRADE_VARIABLE, long_names, 1);
    int pair[2], status = -1;
    char text[60] = "";
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pair[1], UPGRADE_FD);
        for (uint32_t i = 0; i < UPGRADE_FDS_MAX + 1; i++)
            strcat(many, "a\n");
        setenv(UPGRADE_VARIABLE, many, 1);
        takeover_begin("abc");
        int n = takeover_files(fds, names);
        bool right = n == UPGRADE_FDS_MAX && fds[n - 1] == UPGRADE_FD + UPGRADE_FDS_MAX &&
                     strcmp(names[n - 1], "a") == 0;
        snprintf(text, sizeof(text), "%d", right ? 1 : -n);
        send(UPGRADE_FD, text, strlen(text), 0);
        _exit(0);
    }
    cr_expect(waitpid(pid, &status, 0) == pid && status == 0);
    cr_expect_gt(recv(pair[0], text, sizeof(text) - 1, 0), 0);
    memset(text, 0, sizeof(text));
    cr_expect_gt(recv(pair[0], text, sizeof(text) - 1, 0), 0);
    cr_expect_str_eq(text, "1");
    pid = fork();
    if (pid == 0) {
        dup2(pair[1], UPGRADE_FD);
        takeover_begin("abc");
        _exit(0);
    }
    cr_expect(waitpid(pid, &status, 0) == pid && status == 0);
    memset(text, 0, sizeof(text));
    cr_expect_gt(recv(pair[0], text, sizeof(text) - 1, 0), 0);
    cr_expect_eq(strncmp(text, "started ", 8), 0, "names as long as an old daemon passes");
    close(pair[0]);
    close(pair[1]);
}

Test(takeover, without_an_upgrade_nothing_happens) {
    const char *names[UPGRADE_FDS_MAX];
    const struct takeover_opts none = {0};
    int fds[UPGRADE_FDS_MAX];

    unsetenv(UPGRADE_VARIABLE);
    takeover_begin("abc");
    cr_expect_eq(takeover_files(fds, names), 0);
    cr_expect_eq(takeover_start(&none), 0);
    cr_expect_not(takeover_waits() || takeover_is_pending() || takeover_has_old());
    takeover_failed("why");
    takeover_ready();
    takeover_close();
}
