/* Tests of --check-config, which checks files, folders, ports and memory as a start does. */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/front/check.h"
#include "tests/support/tiny_model.h"

static char folder[] = "/tmp/weft-check-XXXXXX";
static struct config config;
static struct err err;

static char *in_folder(const char *name) {
    static char path[100];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void set(const char *key, const char *value) {
    cr_assert_eq(config_set(&config, key, value, &err), 0, "%s", err.message);
}

static void begin(void) {
    const struct tiny_model tiny = {.arch = "bert"}; /* has a vocabulary */

    cr_assert_not_null(mkdtemp(folder));
    tiny_model_save(&tiny, in_folder("a.gguf"));
    cr_assert_eq(config_init(&config), 0);
    set("model", in_folder("a.gguf"));
    set("listen", "unix:/tmp/weft-check.sock");
}

static void end(void) {
    unlink(in_folder("a.gguf"));
    unlink(in_folder("file"));
    rmdir(in_folder("empty"));
    rmdir(folder);
    config_deinit(&config);
}

TestSuite(check, .init = begin, .fini = end);

/* Returns what the check writes to stdout and stderr; static. @r: its result. */
static const char *checked(int *r) {
    static char text[2000];
    int fd[] = {STDOUT_FILENO, STDERR_FILENO}, saved[2];
    int out = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND, 0600);

    cr_assert_geq(out, 0);
    fflush(stdout);
    for (size_t i = 0; i < 2; i++) {
        saved[i] = dup(fd[i]);
        cr_assert_geq(dup2(out, fd[i]), 0);
    }
    err = (struct err){0};
    *r = check_start(&config, &err);
    fflush(stdout);
    for (size_t i = 0; i < 2; i++) {
        dup2(saved[i], fd[i]);
        close(saved[i]);
    }
    ssize_t n = pread(out, text, sizeof(text) - 1, 0);
    text[MAX(n, 0)] = 0;
    close(out);
    return text;
}

/* What is written about the model of these tests. */
static char about_model[1000];

/* Expects a configuration that is valid, and of which @told, whole lines or "", is told. */
static void expect_valid(const char *told) {
    char want[2000];
    int r;
    const char *text = checked(&r);

    cr_expect_eq(r, 0, "%s", err.message);
    snprintf(want, sizeof(want), "%s%sconfiguration is valid\n", told, about_model);
    cr_expect_str_eq(text, want, "%s\nis not %s", text, want);
}

static void expect_refused(const char *key, const char *why) {
    char want[600];
    int r;
    const char *text = checked(&r);

    snprintf(want, sizeof(want), "%s: %s", key, why);
    cr_expect_eq(r, -EINVAL);
    cr_expect_str_eq(text, "");
    cr_expect_str_eq(err.param, key);
    cr_expect_eq(err.status, 0);
    cr_expect_str_eq(err.message, want, "%s\nis not %s", err.message, want);
}

Test(check, folders_are_there_or_can_be_made) {
    static const struct {
        /* why: "" if the folder can be used */
        const char *key, *name, *why;
    } cases[] = {
        {"models", "empty", ""},
        {"models", "none", "none: cannot be used: No such file or directory"},
        {"models-dir", "empty", ""},
        {"models-dir", "file", "file: cannot be used: Not a directory"},
        {"models-dir", "none", "none: cannot be used: No such file or directory"},
        {"fault-dir", "empty", ""},
        {"fault-dir", "made-at-the-start", ""},
        {"fault-dir", "none/none", "none: cannot be used: No such file or directory"},
        {"fault-dir", "file/none", "cannot be used: Not a directory"},
        {"kv-disk", "made-at-the-start", ""},
        {"kv-disk", "file", "file: cannot be used: Not a directory"},
    };
    char path[100];

    mkdir(in_folder("empty"), 0755);
    close(open(in_folder("file"), O_WRONLY | O_CREAT, 0600));
    set("kv-disk-size", "64M");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].name);
        set(cases[i].key, path);
        if (*cases[i].why)
            expect_refused(cases[i].key, cases[i].why);
        else
            expect_valid(NULL);
        set(cases[i].key, "");
    }
    set("models-dir", "auto");
    expect_valid(NULL);
}

Test(check, a_disk_that_is_too_small_is_told) {
    set("kv-disk", in_folder("made-at-the-start"));
    struct statvfs fs;
    unsigned long long room = 0;
    int r;

    set("kv-disk-size", "65536G");
    expect_valid("less than kv-disk-size, 67108864 MiB");
    const char *told = strstr(checked(&r), "has room for ");
    cr_assert(told && statvfs(folder, &fs) == 0);
    cr_expect_eq(sscanf(told, "has room for %llu MiB", &room), 1);
    cr_expect(room > 0 && room << 20 <= (uint64_t)fs.f_blocks * fs.f_frsize, "%llu MiB", room);
}

/* Listens on a port that the system chooses. Returns it; @fd: to be closed. */
static uint16_t listening(int *fd) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(*fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    cr_assert_eq(listen(*fd, 1), 0);
    cr_assert_eq(getsockname(*fd, (struct sockaddr *)&sa, &len), 0);
    return ntohs(sa.sin_port);
}

/* The running daemon may have it, so this is no error. */
Test(check, a_port_that_is_in_use_is_told) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "*"};
    char address[60], told[100];
    int fd;
    uint16_t port = listening(&fd);

    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        snprintf(address, sizeof(address), "%s:%u", hosts[i], port);
        snprintf(told, sizeof(told), "weftd: listen: %s cannot be used now: %s", address,
                 strerror(EADDRINUSE));
        set("listen", address);
        expect_valid(told);
    }
    snprintf(address, sizeof(address), "127.0.0.1:1,127.0.0.1:%u", port);
    set("listen", address);
    snprintf(told, sizeof(told), "weftd: listen: 127.0.0.1:%u cannot be used now: ", port);
    expect_valid(told);
    snprintf(address, sizeof(address), "name.example:%u", port);
    set("listen", address);
    expect_valid(NULL); /* names are not looked up */
    close(fd);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    set("listen", address);
    expect_valid(NULL);
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return; /* without IPv6 nothing is told */
    close(fd);
    set("listen", "[::2]:1"); /* no address of this machine */
    expect_valid("weftd: listen: [::2]:1 cannot be used now: ");
}

/* A start serves without them, or they appear with the service. */
Test(check, places_that_are_missing_are_told) {
    static const struct {
        const char *key, *name, *told;
    } cases[] = {
        {"state-file", "new", NULL},
        {"state-file", "none/s",
         "none/s: No such file or directory; nothing would be kept over a restart\n"},
        {"state-file", "empty", "empty: Is a directory; nothing would be kept over a restart\n"},
        {"admin-socket", "new", NULL},
        {"admin-socket", "none/s", "none/s: the folder"},
        {"admin-socket", "file", "file: exists and is not a socket\n"},
        {"listen", "new", NULL},
        {"listen", "none/s", "none/s: the folder"},
    };
    char value[100], told[200];

    mkdir(in_folder("empty"), 0755);
    close(open(in_folder("file"), O_WRONLY | O_CREAT, 0600));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool listens = strcmp(cases[i].key, "listen") == 0;

        snprintf(value, sizeof(value), "%s%s/%s", listens ? "unix:" : "", folder, cases[i].name);
        snprintf(told, sizeof(told), "weftd: %s: %s/%s", cases[i].key, folder,
                 cases[i].told ? cases[i].told : "");
        set(cases[i].key, value);
        expect_valid(cases[i].told ? told : NULL);
        set(cases[i].key, listens ? "unix:/tmp/weft-check.sock" : "");
    }
    set("admin-socket", "auto");
    expect_valid(NULL);
}

Test(check, a_context_beyond_the_models_is_told) {
    int r;

    set("max-context", "513");
    cr_expect(strstr(checked(&r), "max-context: 513 is lowered to the model's 512 tokens\n"));
    cr_expect_eq(r, 0);
    set("max-context", "512");
    cr_expect_null(strstr(checked(&r), "lowered"));
}

Test(check, memory_that_the_machine_lacks_is_an_error) {
    set("backend", "cpu");
    set("kv-memory", "4096G");
    expect_refused("kv-memory", "does not fit");
    set("backend", "cuda"); /* whose memory is not known here */
    int r;
    cr_expect_null(strstr(checked(&r), "memory:"));
    cr_expect(r == 0 || strstr(err.message, "weft-cuda.so"), "%s", err.message);
}

Test(check, files_of_options_are_read) {
    set("api-keys", in_folder("none"));
    expect_refused("api-keys", "No such file or directory");
    set("api-keys", "");
    set("tls-certificate", in_folder("none"));
    expect_refused("tls-certificate", "none");
    set("tls-certificate", "");
#ifdef HAVE_ZMQ
    set("kv-events", "tcp://127.0.0.1:x");
    expect_refused("kv-events", "Invalid argument");
    set("kv-events", "");
#endif
    set("model", in_folder("none.gguf"));
    expect_refused("model", "No such file or directory");
}
