/* The listening sockets of the front: its own, the service manager's, and those of the previous
 * daemon. The functions below replace the admin interface. */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/front/listeners.h"
#include "daemon/upgrade/takeover.h"
#include "tests/api/world.h"

static struct world w;
static struct listeners l;
static struct config config;
static char folder[] = "/tmp/weft-listeners-XXXXXX", did[200];
static int passed_fd[UPGRADE_FDS_MAX], n_passed;
static const char *passed_name[UPGRADE_FDS_MAX];
static bool pending; /* the previous daemon still serves */

int takeover_files(int fds[UPGRADE_FDS_MAX], const char *names[UPGRADE_FDS_MAX]) {
    memcpy(fds, passed_fd, sizeof(passed_fd));
    memcpy(names, passed_name, sizeof(passed_name));
    return n_passed;
}

bool takeover_is_pending(void) {
    return pending;
}

void kept_inherit(struct kept *k, int fd, const char *name) {
    snprintf(did + strlen(did), sizeof(did) - strlen(did), "keep %s;", name);
}

int admin_listen_unix(struct admin *a, const char *path, struct err *err) {
    snprintf(did + strlen(did), sizeof(did) - strlen(did), "listen %s;", strrchr(path, '/'));
    return 0;
}

int admin_listen_fd(struct admin *a, int fd, struct err *err) {
    snprintf(did + strlen(did), sizeof(did) - strlen(did), "listen on %d;", fd);
    return 0;
}

int admin_last_fd(const struct admin *a) {
    return STDERR_FILENO;
}

void admin_hand_over(struct admin *a) {
    strcat(did, "hand over;");
}

void admin_own_paths(struct admin *a) {
    strcat(did, "own;");
}

static char *in_folder(const char *name) {
    static char text[4][100];
    static int i;

    snprintf(text[++i % 4], sizeof(text[0]), "%s/%s", folder, name);
    return text[i % 4];
}

static void set(const char *key, const char *value) {
    struct err err = {0};

    cr_assert_eq(config_set(&config, key, value, &err), 0, "%s", err.message);
}

static void begin(void) {
    cr_assert(mkdtemp(folder) != NULL);
    cr_assert_eq(config_init(&config), 0);
    set("admin-socket", in_folder("admin"));
    world_init(&w);
    world_start(&w);
    l.config = &config;
    l.api = w.api;
}

static void end(void) {
    world_stop(&w);
    config_deinit(&config);
    cr_expect_eq(rmdir(folder), 0);
}

TestSuite(listeners, .init = begin, .fini = end);

/* Returns a listening socket at @path; NULL: on a free port, which is stored in *@port. */
static int bound(const char *path, int *port) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    int fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path ? path : "");
    cr_assert_eq(path ? bind(fd, (struct sockaddr *)&at, sizeof(at))
                      : bind(fd, (struct sockaddr *)&in, sizeof(in)),
                 0);
    cr_assert_eq(listen(fd, 8), 0);
    if (!path) {
        getsockname(fd, (struct sockaddr *)&in, &len);
        *port = ntohs(in.sin_port);
    }
    return fd;
}

/* Lets the previous daemon pass @fd under @name, which is copied. */
static void pass(int fd, const char *name) {
    passed_fd[n_passed] = fd;
    passed_name[n_passed++] = strdup(name);
}

static const char *passed_on(void) {
    static struct upgrade_files f;

    f = (struct upgrade_files){0};
    cr_assert_eq(listeners_pass(&l, &f), 0);
    return f.names;
}

Test(listeners, the_addresses_of_the_options_are_bound) {
    struct err err = {0};
    char text[300];
    int port = 0;

    snprintf(text, sizeof(text), "127.0.0.1:0,unix:%s,[::1]:0", in_folder("http"));
    set("listen", text);
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    cr_expect_eq(sscanf(l.url, "http://127.0.0.1:%d", &port), 1);
    cr_expect(port > 0 && !strstr(l.url, "unix"), "%s", l.url);
    cr_expect_str_eq(did, "listen /admin;");
    snprintf(text, sizeof(text), "http=127.0.0.1:0\nhttp=unix:%s\nhttp=[::1]:0\nadmin=%s\n",
             in_folder("http"), in_folder("admin"));
    cr_expect_str_eq(passed_on(), text);
    cr_expect_not(listeners_managed(&l, false) || listeners_managed(&l, true));
    cr_expect_eq(access(in_folder("http"), F_OK), 0);
    listeners_own_paths(&l);
    cr_expect_str_eq(did, "listen /admin;own;");
    listeners_hand_over(&l); /* the file belongs to the next daemon */
    cr_expect_str_eq(did, "listen /admin;own;hand over;");
    api_close(w.api);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    cr_expect_eq(access(in_folder("http"), F_OK), 0);
    unlink(in_folder("http"));
    unlink(w.path);
}

Test(listeners, the_first_address_names_the_service) {
    struct err err = {0};
    char text[300];

    snprintf(text, sizeof(text), "unix:%s,127.0.0.1:0", in_folder("http"));
    set("listen", text);
    set("admin-socket", "");
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    *strchr(text, ',') = 0;
    cr_expect_str_eq(l.url, text);
    cr_expect_str_eq(did, "", "there is no admin socket");
}

/* Returns the path of an admin socket that the daemon chose, in the folders that XDG_RUNTIME_DIR
 * and HOME name. */
static const char *chosen_with(const char *runtime, const char *home, const char *listen) {
    struct err err = {0};

    runtime ? setenv("XDG_RUNTIME_DIR", runtime, 1) : unsetenv("XDG_RUNTIME_DIR");
    setenv("HOME", home, 1);
    unsetenv("XDG_STATE_HOME");
    set("admin-socket", "auto");
    set("listen", listen);
    l.n = 0;
    l.url[0] = did[0] = 0;
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    return l.chosen;
}

Test(listeners, a_daemon_started_by_hand_chooses_its_admin_socket) {
    char path[200];

    const char *chosen = chosen_with(folder, "/nonexistent", "127.0.0.1:0");
    snprintf(path, sizeof(path), "%s/weft%s.sock", folder, strrchr(l.url, ':'));
    *strrchr(path, ':') = '/';
    cr_expect_str_eq(chosen, path);
    cr_expect(strstr(passed_on(), path), "the next daemon gets it");
    cr_expect_eq(access(in_folder("weft"), F_OK), 0);
    rmdir(in_folder("weft"));

    chosen = chosen_with(NULL, folder, "127.0.0.1:0");
    cr_expect(strstr(chosen, "/.local/state/weft/"), "%s", chosen);
    rmdir(in_folder(".local/state/weft"));
    rmdir(in_folder(".local/state"));
    rmdir(in_folder(".local"));

    chosen = chosen_with("/dev/null", "/dev/null", "127.0.0.1:0");
    cr_expect_str_eq(chosen, "");
    cr_expect_str_eq(did, "", "it serves without one");
    cr_expect_eq(l.n, 1);
}

/* A path has no port that could name the admin socket. */
Test(listeners, a_daemon_without_a_port_names_its_admin_socket_by_its_number) {
    struct err err = {0};
    char text[300];

    setenv("XDG_RUNTIME_DIR", folder, 1);
    set("admin-socket", "auto");
    snprintf(text, sizeof(text), "unix:%s", in_folder("http"));
    set("listen", text);
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    snprintf(text, sizeof(text), "%s/weft/pid-%d.sock", folder, (int)getpid());
    cr_expect_str_eq(l.chosen, text);
    snprintf(text, sizeof(text), "listen /pid-%d.sock;", (int)getpid());
    cr_expect_str_eq(did, text);
    unlink(in_folder("http"));
    rmdir(in_folder("weft"));
}

/* Returns the length of the path of the admin socket that is chosen where it would have @len bytes,
 * @name of them for its name; 0: none is chosen. */
static size_t chosen_of(const char *listen, size_t len, size_t name) {
    char runtime[200];
    int rest = (int)(len - strlen(folder) - strlen("//weft/") - name);

    int n = snprintf(runtime, sizeof(runtime), "%s/%0*d", folder, rest, 0);
    size_t chosen = strlen(chosen_with(runtime, "/dev/null", listen));
    cr_expect_eq(*did != 0, chosen > 0);
    snprintf(runtime + n, sizeof(runtime) - (size_t)n, "/weft");
    rmdir(runtime);
    runtime[n] = 0;
    rmdir(runtime);
    return chosen;
}

/* The path of a socket has at most 107 bytes. */
Test(listeners, an_admin_socket_has_a_path_that_fits) {
    char listen[2][120];
    size_t by_port = strlen("/12345.sock") - 1, by_pid = 0;

    by_pid = (size_t)snprintf(listen[0], sizeof(listen[0]), "pid-%d.sock", (int)getpid());
    cr_expect_eq(chosen_of("127.0.0.1:0", 107, by_port), 107);
    cr_expect_eq(chosen_of("127.0.0.1:0", 108, by_port), 0);
    for (size_t i = 0; i < 2; i++) {
        snprintf(listen[i], sizeof(listen[i]), "unix:%s", in_folder(i ? "b" : "a"));
        cr_expect_eq(chosen_of(listen[i], 107 + i, by_pid), i ? 0 : 107);
        unlink(listen[i] + strlen("unix:"));
    }
}

/* The daemon keeps the admin socket that the previous one chose, or had by its options. */
Test(listeners, a_chosen_admin_socket_is_handed_on) {
    struct err err = {0};
    char name[200];
    int admin = bound(in_folder("old.sock"), NULL);

    snprintf(name, sizeof(name), "admin=%s", in_folder("old.sock"));
    pass(bound(NULL, &(int){0}), "http=127.0.0.1:1");
    pass(bound(NULL, &(int){0}), "http=127.0.0.1:2");
    pass(admin, name);
    pending = true;
    set("admin-socket", "auto");
    set("listen", "127.0.0.1:0");
    setenv("XDG_RUNTIME_DIR", folder, 1);
    cr_assert_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    cr_expect_str_eq(l.chosen, "");
    cr_expect(strstr(passed_on(), name), "%s", passed_on());
    pending = false;
    unlink(in_folder("old.sock"));
}

/* Expects that listeners_open() refuses option @key with the whole @message. */
static void expect_refused(const char *key, const char *message) {
    struct err err = {.status = 9};

    cr_expect_eq(listeners_open(&l, &err), -EINVAL);
    cr_expect_str_eq(err.message, message, "%s\nis not %s", err.message, message);
    cr_expect_eq(err.status, 0);
    cr_expect_str_eq(err.param, key);
}

Test(listeners, what_cannot_be_bound_is_refused) {
    char text[300], message[500];

    snprintf(text, sizeof(text), "unix:%s", in_folder("none/http"));
    snprintf(message, sizeof(message), "listen: %s: the folder %s does not exist",
             in_folder("none/http"), in_folder("none"));
    set("listen", text);
    expect_refused("listen", message);
    set("listen", "127.0.0.1:0");
    set("admin-socket", in_folder("none/admin"));
    snprintf(message, sizeof(message), "admin-socket: %s: the folder %s does not exist",
             in_folder("none/admin"), in_folder("none"));
    expect_refused("admin-socket", message);
    cr_expect_str_eq(did, "");
    set("admin-socket", "");
    set("tls-certificate", "/cert.pem");
    static const char no_tls[] =
        "tls-certificate: listen has no tls: address, and no inherited socket is named tls";
    expect_refused("tls-certificate", no_tls);
    l.n = 0;
    pass(bound(NULL, &(int){0}), "http=tls:127.0.0.1:1"); /* the options have it no more */
    listeners_inherit(&l, NULL, &(struct err){0});
    cr_expect_eq(l.n, 1);
    expect_refused("tls-certificate", no_tls);
}

Test(listeners, a_socket_of_the_service_manager_may_have_tls) {
    struct err err = {0};

    set("tls-certificate", "/cert.pem");
    set("admin-socket", "");
    pass(bound(NULL, &(int){0}), "tls");
    pass(bound(NULL, &(int){0}), "http");
    cr_assert_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_expect(l.sockets[0].tls && !l.sockets[1].tls);
    cr_expect_eq(listeners_open(&l, &err), 0, "%s", err.message);
    cr_expect_str_eq(passed_on(), "tls\nhttp\n");
    cr_expect_str_eq(l.url, "inherited sockets");
    cr_expect_str_eq(did, "");
}

Test(listeners, an_address_has_a_host_and_a_port) {
    static const char *const bad[] = {
        "localhost", ":80", "a:", "a:8x", "a:-1", "a:65536", "a:4294967376", "a:-4294967296",
    };
    char longest[300], message[400];
    struct err err = {0};

    for (size_t i = 0; i <= ARRAY_SIZE(bad); i++) {
        snprintf(longest, sizeof(longest), "%0256d:0", 0);
        set("listen", i < ARRAY_SIZE(bad) ? bad[i] : longest);
        snprintf(message, sizeof(message), R"(listen: must be ADDRESS:PORT or unix:PATH, not "%s")",
                 *config.listen);
        expect_refused("listen", message);
    }
    snprintf(longest, sizeof(longest), "%0255d:0", 0);
    set("listen", longest);
    cr_expect_lt(listeners_open(&l, &err), 0);
    cr_expect_null(strstr(err.message, "must be ADDRESS:PORT"), "%s", err.message);
    set("listen", "[::2]:65535"); /* no address of this machine */
    cr_expect_lt(listeners_open(&l, &err), 0);
    cr_expect(strstr(err.message, "listen: [::2]:65535: ") == err.message, "%s", err.message);
    cr_expect_eq(l.n, 0);
}

Test(listeners, sockets_of_the_service_manager_come_first) {
    struct err err = {0};
    char text[100];
    int port, http = bound(NULL, &port), admin = bound(in_folder("m"), NULL);

    pass(http, "http");
    pass(admin, "admin");
    set("listen", "127.0.0.1:0");
    cr_assert_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_expect(listeners_managed(&l, false) && listeners_managed(&l, true));
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    cr_expect_str_eq(l.url, "inherited sockets");
    snprintf(text, sizeof(text), "listen on %d;", admin);
    cr_expect_str_eq(did, text, "the admin socket answers before the model is loaded");
    cr_assert_eq(listeners_open_given(&l, &err), 0, "%s", err.message);
    cr_expect_str_eq(did, text, "once");
    cr_expect_str_eq(passed_on(), "http\nadmin\n");
    listeners_own_paths(&l);
    cr_expect_str_eq(did, text, "the files are the service manager's");
    cr_expect_eq(access(in_folder("m"), F_OK), 0);
    unlink(in_folder("m"));
}

/* A socket that the previous daemon bound is used if its address is still in the options. Other
 * sockets are closed, and their files removed, once that daemon has ended. */
Test(listeners, sockets_of_the_previous_daemon_are_kept) {
    struct err err = {0};
    char listen[300], text[500], name[200];
    int port, http = bound(NULL, &port), unix_fd = bound(in_folder("u"), NULL);
    int old = bound(in_folder("old"), NULL), admin = bound(in_folder("admin"), NULL);
    int old_admin = bound(in_folder("a2"), NULL), old_port = bound(NULL, &(int){0});

    snprintf(listen, sizeof(listen), "127.0.0.1:0,unix:%s", in_folder("u"));
    set("listen", listen);
    pass(http, "http=127.0.0.1:0");
    snprintf(name, sizeof(name), "http=unix:%s", in_folder("u"));
    pass(unix_fd, name);
    snprintf(name, sizeof(name), "http=unix:%s", in_folder("old"));
    pass(old, name);
    pass(old_port, "http=127.0.0.1:1");
    snprintf(name, sizeof(name), "admin=%s", in_folder("admin"));
    pass(admin, name);
    snprintf(name, sizeof(name), "admin=%s", in_folder("a2"));
    pass(old_admin, name);
    pending = true;
    cr_assert_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(listeners_open(&l, &err), 0, "%s", err.message);
    snprintf(text, sizeof(text), "http://127.0.0.1:%d", port);
    cr_expect_str_eq(l.url, text);
    cr_expect_str_eq(did, "", "the previous daemon listens there");
    pending = false;
    cr_assert_eq(listeners_open_given(&l, &err), 0, "%s", err.message);
    snprintf(text, sizeof(text), "listen on %d;", admin);
    cr_expect_str_eq(did, text);
    snprintf(text, sizeof(text), "http=127.0.0.1:0\nhttp=unix:%s\nadmin=%s\n", in_folder("u"),
             in_folder("admin"));
    cr_expect_str_eq(passed_on(), text);
    listeners_own_paths(&l);
    cr_expect_lt(access(in_folder("old"), F_OK), 0);
    cr_expect_lt(access(in_folder("a2"), F_OK), 0);
    cr_expect_eq(access(in_folder("u"), F_OK), 0);
    cr_expect_lt(close(old), 0, "it is closed");
    cr_expect_lt(close(old_port), 0);
    cr_expect_str_eq(passed_on(), text);
    unlink(in_folder("admin"));
    api_close(w.api);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    cr_expect_lt(access(in_folder("u"), F_OK), 0, "it is this daemon's");
}

Test(listeners, kept_weights_are_no_sockets) {
    struct err err = {0};

    pass(STDERR_FILENO, "weights-1");
    cr_assert_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_expect_str_eq(did, "keep weights-1;");
    cr_expect_eq(l.n, 0);
}

Test(listeners, what_is_no_socket_is_refused) {
    struct err err = {0};

    pass(bound(NULL, &(int){0}), "http");
    pass(STDERR_FILENO, "http=a:1");
    cr_expect_eq(listeners_inherit(&l, NULL, &err), -EINVAL);
    cr_expect_str_eq(err.message, "descriptor 2 (http=a:1) of the service manager is not a "
                                  "listening stream socket: a socket unit needs ListenStream= "
                                  "and Accept=no");
    cr_expect_str_eq(err.param, "");
}

Test(listeners, a_daemon_has_at_most_eighty_sockets) {
    struct err err = {0};
    int fd = bound(NULL, &(int){0});

    for (int i = 0; i < SERVICE_FDS_MAX; i++)
        pass(fd, i % 2 ? "http=a:1" : "tlsx=tls:b:1");
    cr_expect_eq(listeners_inherit(&l, NULL, &err), 0, "%s", err.message);
    cr_expect_eq(l.n, SERVICE_FDS_MAX);
    cr_expect(l.sockets[0].tls && !l.sockets[1].tls);
    cr_expect_str_eq(l.sockets[0].address, "tls:b:1");
    cr_expect_str_eq(l.sockets[1].address, "a:1");
    set("listen", "127.0.0.1:0"); /* one more */
    cr_expect_eq(listeners_open(&l, &err), -EMFILE);
    pass(fd, "http");
    l.n = 0;
    cr_expect_eq(listeners_inherit(&l, NULL, &err), -EINVAL);
    cr_expect_str_eq(err.message, "more than 80 descriptors were passed");
    cr_expect_eq(l.n, 0);
}
