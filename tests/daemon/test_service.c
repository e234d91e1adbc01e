/* The protocol of the service manager, which the test implements. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "daemon/front/service.h"

#define FIRST_FD 3 /* first descriptor that a service manager passes */

/* Returns a socket of @type bound to @path, which listens if @backlog > 0. */
static int bound(const char *at, int type, int backlog) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", at);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    if (backlog)
        cr_assert_eq(listen(fd, backlog), 0);
    return fd;
}

static char folder[] = "/tmp/weft-service-XXXXXX", path[80];

/* Expects the whole reason why no socket can be made at `path`; "": it can. */
static void expect_path(const char *key, const char *reason) {
    struct err err = {.status = 9};

    cr_expect_eq(service_check_path(key, path, &err), *reason ? -EINVAL : 0, "%s", path);
    cr_expect_str_eq(err.message, reason, "%s\nis not %s", err.message, reason);
    if (!*reason)
        return;
    cr_expect_str_eq(err.param, key);
    cr_expect_eq(err.status, 0);
}

Test(service, a_socket_needs_a_folder_and_no_file_in_its_place) {
    char reason[300];

    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/none/a.sock", folder);
    snprintf(reason, sizeof(reason), "listen: %s: the folder %s/none does not exist", path, folder);
    expect_path("listen", reason);
    strcpy(path, "/weft-none.sock");
    expect_path("listen", "");
    strcpy(path, "weft-none.sock");
    expect_path("listen", "");
    snprintf(path, sizeof(path), "%s/a.sock", folder);
    expect_path("listen", "");
    close(bound(path, SOCK_STREAM, 0));
    expect_path("listen", ""); /* that of a process that has ended */
    unlink(path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    snprintf(reason, sizeof(reason), "admin-socket: %s: exists and is not a socket", path);
    expect_path("admin-socket", reason);
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/b.sock");
    expect_path("listen", ""); /* the start tells why it cannot be bound */
    path[strlen(path) - strlen("/b.sock")] = 0;
    unlink(path);
    cr_assert_eq(symlink("/dev/null", path), 0); /* bind() would not follow it either */
    expect_path("admin-socket", reason);
    unlink(path);
    rmdir(folder);
}

#ifdef HAVE_SYSTEMD

/* ---- passed descriptors ---- */

/* Passes @n copies of @fd under @names, followed by those of @more; calls service_inherited() in a
 * child, which writes the result to *@out. Returns what the call returned. */
struct got {
    int r;
    struct service_fd fds[SERVICE_FDS_MAX];
    struct err err;
    /* the variables were still in the environment */
    bool again;
};

static void inherit(const char *names, const int *fds, int n, struct got *out) {
    char number[20], pid[20];
    int pair[2], status;

    cr_assert_eq(pipe(pair), 0);
    pid_t child = fork();
    if (child == 0) {
        static struct got got;
        int top = FIRST_FD + n + 10, here = fcntl(pair[1], F_DUPFD, top);

        for (int i = 0; i < n; i++) /* not among the numbers of passed descriptors */
            dup2(fcntl(fds[i], F_DUPFD, top + n), top + n + i + 1);
        for (int i = 0; i < n; i++)
            dup2(top + n + i + 1, FIRST_FD + i);
        snprintf(number, sizeof(number), "%d", n);
        snprintf(pid, sizeof(pid), "%d", (int)getpid());
        setenv("LISTEN_FDS", number, 1);
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDNAMES", names, 1);
        got.r = service_inherited(got.fds, &got.err);
        got.again = getenv("LISTEN_FDS") != NULL;
        for (const char *at = (const char *)&got, *end = at + sizeof(got); at < end;)
            at += write(here, at, (size_t)(end - at));
        _exit(0);
    }
    close(pair[1]);
    char *at = (char *)out;
    size_t left = sizeof(*out);
    for (ssize_t k; left > 0 && (k = read(pair[0], at, left)) > 0; at += k)
        left -= (size_t)k;
    cr_assert_eq(left, 0);
    close(pair[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
}

/* Makes four sockets: listening, not listening, of datagrams, and of packets. */
static void sockets(int fds[4]) {
    cr_assert(mkdtemp(folder) != NULL);
    static const int types[] = {SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%d", folder, i);
        fds[i] = bound(path, types[i], i % 3 == 0);
        unlink(path);
    }
    rmdir(folder);
}

Test(service, what_is_passed_is_sorted_by_its_name) {
    static struct got g;
    int s[4], fds[5];

    sockets(s);
    fds[0] = fds[1] = fds[2] = fds[4] = s[0];
    fds[3] = s[1]; /* kept: not a listening socket */
    inherit("http:admin:adminx:" KEPT_PREFIX "12:admin=/a", fds, 5, &g);
    cr_assert_eq(g.r, 5, "%s", g.err.message);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(g.fds[i].fd, FIRST_FD + i);
        cr_expect_eq(g.fds[i].admin, i == 1);
        cr_expect_eq(g.fds[i].kept, i == 3);
        cr_expect(g.fds[i].address == NULL, "no daemon bound it");
    }
    cr_expect_str_eq(g.fds[2].name, "adminx");
    cr_expect_str_eq(g.fds[3].name, KEPT_PREFIX "12");
    cr_expect_str_eq(g.fds[4].name, "admin=/a");
    cr_expect_not(g.again, "a worker does not take them for its own");
    cr_expect_eq(service_inherited(g.fds, &g.err), 0, "no service manager");
    for (int i = 0; i < 4; i++)
        close(s[i]);
}

Test(service, what_cannot_be_used_is_refused) {
    static const char text[] =
        "descriptor 4 (web) of the service manager is not a listening stream socket: a socket "
        "unit needs ListenStream= and Accept=no";
    static struct got g;
    int s[4], fds[SERVICE_FDS_MAX + 1];

    sockets(s);
    for (int i = 1; i < 4; i++) {
        fds[0] = s[0];
        fds[1] = s[i];
        inherit("http:web", fds, 2, &g);
        cr_expect_eq(g.r, -EINVAL);
        cr_expect_str_eq(g.err.message, text);
        cr_expect_eq(g.err.status, 0);
    }
    inherit("", fds, 0, &g);
    cr_expect_eq(g.r, -EINVAL);
    cr_expect_str_eq(g.err.message,
                     "LISTEN_FDS and LISTEN_FDNAMES are not valid: Invalid argument");
    cr_expect_eq(g.err.status, 0);
    for (int i = 0; i <= SERVICE_FDS_MAX; i++)
        fds[i] = s[0];
    char names[3 * SERVICE_FDS_MAX + 3];
    for (int i = 0; i <= SERVICE_FDS_MAX; i++)
        memcpy(names + (size_t)2 * i, "a:", 3);
    names[2 * SERVICE_FDS_MAX + 1] = 0;
    inherit(names, fds, SERVICE_FDS_MAX + 1, &g);
    cr_expect_eq(g.r, -EINVAL);
    cr_expect_str_eq(g.err.message, "more than 80 descriptors were passed");
    cr_expect_eq(g.err.status, 0);
    names[2 * SERVICE_FDS_MAX - 1] = 0;
    inherit(names, fds, SERVICE_FDS_MAX, &g);
    cr_expect_eq(g.r, SERVICE_FDS_MAX, "%s", g.err.message);
    for (int i = 0; i < 4; i++)
        close(s[i]);
}

/* ---- notifications ---- */

static int manager; /* socket of the service manager */
static char manager_path[80];

static void listen_to_service(void) {
    snprintf(manager_path, sizeof(manager_path), "/tmp/weft-service-%d.sock", (int)getpid());
    unlink(manager_path);
    manager = bound(manager_path, SOCK_DGRAM, 0);
    setenv("NOTIFY_SOCKET", manager_path, 1);
}

static void stop_listening(void) {
    unsetenv("NOTIFY_SOCKET");
    close(manager);
    unlink(manager_path);
}

/* Returns the next message, or "", and the number of files with it. */
static const char *told(int *n_files) {
    static char text[1000];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {text, sizeof(text) - 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(manager, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *n_files = 0;
    for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < k; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
            close(fd);
        }
        *n_files = (int)k;
    }
    text[MAX(n, 0)] = 0;
    return text;
}

static void expect_told(const char *text, int files) {
    int n;

    cr_expect_str_eq(told(&n), text);
    cr_expect_eq(n, files, "%s", text);
}

Test(service, the_manager_is_told) {
    long long usec, before = clock_now(clock_monotonic()) / 1000;
    int n;

    listen_to_service();
    service_ready();
    expect_told("READY=1", 0);
    service_stopping();
    expect_told("STOPPING=1", 0);
    service_status("2 models");
    expect_told("STATUS=2 models", 0);
    service_store_fd(manager, KEPT_PREFIX "7");
    expect_told("FDSTORE=1\nFDNAME=" KEPT_PREFIX "7\nFDPOLL=0", 1);
    static const char longest[] = KEPT_PREFIX "9012345678901234567890123456789";
    cr_assert_eq(sizeof(longest), KEPT_NAME_MAX);
    service_store_fd(manager, longest);
    expect_told("FDSTORE=1\nFDNAME=" KEPT_PREFIX "9012345678901234567890123456789\nFDPOLL=0", 1);
    service_forget(KEPT_PREFIX "7");
    expect_told("FDSTOREREMOVE=1\nFDNAME=" KEPT_PREFIX "7", 0);
    service_reloading();
    cr_assert_eq(sscanf(told(&n), "RELOADING=1\nMONOTONIC_USEC=%lld", &usec), 1);
    cr_expect(usec >= before && usec <= clock_now(clock_monotonic()) / 1000, "%lld", usec);
    stop_listening();
}

Test(service, only_the_main_process_says_anything) {
    char main_pid[40];

    listen_to_service();
    service_hold();
    service_ready();
    service_status("a");
    service_store_fd(manager, KEPT_PREFIX "7");
    expect_told("", 0);
    service_release();
    service_ready();
    expect_told("READY=1", 0);
    snprintf(main_pid, sizeof(main_pid), "MAINPID=%d", (int)getpid());
    service_hand_over(getpid());
    service_ready();
    expect_told(main_pid, 0);
    expect_told("", 0);
    service_release();
    stop_listening();
}

/* Finds the timer that does not keep its loop alive. */
static void find_watchdog(uv_handle_t *h, void *found) {
    if (h->type == UV_TIMER && !uv_has_ref(h) && !uv_is_closing(h))
        *(uv_timer_t **)found = (uv_timer_t *)h;
}

/* Starts the watchdog of @loop. Returns its timer, NULL if it has none. */
static uv_timer_t *watchdog_of(uv_loop_t *loop) {
    uv_timer_t *timer = NULL;

    service_watchdog_start(loop);
    uv_walk(loop, find_watchdog, &timer);
    return timer;
}

Test(service, the_watchdog_hears_of_the_loop_in_half_its_time) {
    uv_loop_t loop;
    uv_timer_t other;

    listen_to_service();
    uv_loop_init(&loop);
    uv_timer_init(&loop, &other); /* keeps the loop alive */
    uv_timer_start(&other, (uv_timer_cb)abort, 10000000, 0);
    unsetenv("WATCHDOG_USEC");
    cr_expect_null(watchdog_of(&loop));
    uv_run(&loop, UV_RUN_NOWAIT);
    expect_told("", 0);
    service_watchdog_stop();
    setenv("WATCHDOG_USEC", "30000000", 1);
    for (int i = 0; i < 2; i++) {
        uv_timer_t *timer = watchdog_of(&loop);
        cr_assert_not_null(timer);
        cr_expect_eq(uv_timer_get_due_in(timer), 0);
        cr_expect_eq(uv_timer_get_repeat(timer), 15000);
        uv_run(&loop, UV_RUN_NOWAIT);
        expect_told("WATCHDOG=1", 0);
        uv_run(&loop, UV_RUN_NOWAIT);
        expect_told("", 0);
        timer->timer_cb(timer);
        expect_told("WATCHDOG=1", 0);
        service_watchdog_stop();
        cr_expect(uv_is_closing((uv_handle_t *)timer));
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert_not_null(watchdog_of(&loop));
    uv_close((uv_handle_t *)&other, NULL);
    uv_run(&loop, UV_RUN_DEFAULT); /* the watchdog alone does not keep the loop running */
    service_watchdog_stop();
    service_watchdog_stop();
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_expect_eq(uv_loop_close(&loop), 0);
    unsetenv("WATCHDOG_USEC");
    stop_listening();
}

#endif
