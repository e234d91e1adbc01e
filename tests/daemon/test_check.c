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
#include "engine/engine.h"
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

/* Text about the model of these tests. */
static char about_model[1000];

static void note_model(void) {
    int r;
    const char *text = checked(&r), *end = strstr(text, "configuration is valid\n");

    cr_assert(end && strstr(text, "memory: weights 3 MiB + ") == text, "%s", text);
    cr_assert(strstr(text, " MiB + keys and values 8 MiB, a context of 512 tokens\n"), "%s", text);
    snprintf(about_model, sizeof(about_model), "%.*s", (int)(end - text), text);
}

static void begin(void) {
    const struct tiny_model tiny = {.arch = "bert"}; /* has a vocabulary */

    cr_assert_not_null(mkdtemp(folder));
    tiny_model_save(&tiny, in_folder("a.gguf"));
    cr_assert_eq(config_init(&config), 0);
    set("model", in_folder("a.gguf"));
    set("listen", "unix:/tmp/weft-check.sock");
    set("kv-memory", "8M"); /* or it is what the machine has free */
    note_model();
}

static void end(void) {
    unlink(in_folder("a.gguf"));
    unlink(in_folder("file"));
    rmdir(in_folder("empty"));
    rmdir(folder);
    config_deinit(&config);
}

TestSuite(check, .init = begin, .fini = end);

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
        {"fault-dir", "file/none", "file/none: cannot be used: Not a directory"},
        {"kv-disk", "made-at-the-start", ""},
        {"kv-disk", "file", "file: cannot be used: Not a directory"},
    };
    char path[100], why[300];

    mkdir(in_folder("empty"), 0755);
    close(open(in_folder("file"), O_WRONLY | O_CREAT, 0600));
    set("kv-disk-size", "64M");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].name);
        set(cases[i].key, path);
        snprintf(why, sizeof(why), "%s/%s", folder, cases[i].why);
        if (*cases[i].why)
            expect_refused(cases[i].key, why);
        else
            expect_valid("");
        set(cases[i].key, "");
    }
    set("models-dir", "auto");
    expect_valid("");
}

/* Root can use every folder. */
Test(check, folders_have_to_be_writable) {
    static const struct {
        const char *key;
        mode_t mode;
        bool refused;
    } cases[] = {
        {"models", 0500, false},    {"models", 0300, true},     {"models", 0400, true},
        {"fault-dir", 0700, false}, {"fault-dir", 0500, true},  {"fault-dir", 0300, true},
        {"fault-dir", 0600, true},  {"models-dir", 0300, true}, {"models-dir", 0500, false},
    };
    bool was_root = geteuid() == 0;
    char why[300];

    chmod(folder, 0777);
    if (was_root) {
        chmod(in_folder("a.gguf"), 0644);
        cr_assert_eq(setresuid(65534, 65534, 0), 0);
    }
    snprintf(why, sizeof(why), "%s: cannot be used: Permission denied", in_folder("empty"));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        rmdir(in_folder("empty"));
        mkdir(in_folder("empty"), cases[i].mode);
        set(cases[i].key, in_folder("empty"));
        if (cases[i].refused)
            expect_refused(cases[i].key, why);
        else
            expect_valid("");
        set(cases[i].key, "");
    }
    for (int i = 0; i < 3; i++) {
        static const mode_t modes[] = {0300, 0500, 0600};
        char path[120], told[400];

        chmod(in_folder("empty"), modes[i]);
        snprintf(path, sizeof(path), "%s/state", in_folder("empty"));
        snprintf(told, sizeof(told),
                 "weftd: state-file: %s: Permission denied; nothing would be kept over a restart\n",
                 path);
        set("state-file", path);
        expect_valid(i ? told : "");
    }
    set("state-file", "");
    cr_assert_eq(chdir(folder), 0);
    set("fault-dir", "made-at-the-start");
    expect_valid("");
    rmdir(in_folder("empty"));
    if (was_root)
        cr_expect_eq(setresuid(0, 0, 0), 0);
}

static uint64_t room_in(const char *path) {
    struct statvfs fs;

    cr_assert_eq(statvfs(path, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* The file that is there is room, too. Other programs may write meanwhile. */
Test(check, a_disk_that_is_too_small_is_told) {
    char disk[] = "/dev/shm/weft-check-XXXXXX", file[60], told[1200], next[40];
    unsigned long long room;
    const uint64_t has = 16 << 20;
    int r;

    if (!mkdtemp(disk))
        cr_skip_test("there is no /dev/shm");
    snprintf(file, sizeof(file), "%s/prefixes.kv", disk);
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(posix_fallocate(fd, 0, has), 0);
    close(fd);
    set("kv-disk-size", "65536G");
    for (int i = 0; i < 2; i++) {
        set("kv-disk", disk);
        uint64_t before = room_in(disk);
        const char *text = checked(&r);
        uint64_t after = room_in(disk), mib = 1 << 20;
        cr_assert_eq(r, 0, "%s", err.message);
        snprintf(told, sizeof(told), "weftd: kv-disk: %s has room for ", disk);
        cr_assert(strncmp(text, told, strlen(told)) == 0, "%s", text);
        cr_expect_eq(sscanf(text + strlen(told), "%llu MiB", &room), 1);
        snprintf(next, sizeof(next), "%llu", room);
        snprintf(told, sizeof(told),
                 " MiB, less than kv-disk-size, 67108864 MiB\n%sconfiguration is valid\n",
                 about_model);
        cr_expect_str_eq(strstr(text, next) + strlen(next), told);
        uint64_t file_has = i == 0 ? has : 0;
        cr_expect_geq(room, (MIN(before, after) + file_has) / mib);
        cr_expect_leq(room, (MAX(before, after) + file_has) / mib);
        unlink(file);
    }
    rmdir(disk);
}

/* Listens on a port that the system chooses. Returns it; @fd: to be closed. */
static uint16_t listening(int *fd) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)); /* as the daemon's own */
    cr_assert_eq(bind(*fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    cr_assert_eq(listen(*fd, 1), 0);
    cr_assert_eq(getsockname(*fd, (struct sockaddr *)&sa, &len), 0);
    return ntohs(sa.sin_port);
}

/* Closes @fd, which listens on @port, after a connection that the server has closed first: the
 * system keeps such a port for a while, which is no obstacle. */
static void leave_behind(int fd, uint16_t port) {
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(connect(client, (struct sockaddr *)&sa, sizeof(sa)), 0);
    close(accept(fd, NULL, NULL));
    char c;
    cr_expect_eq(read(client, &c, 1), 0);
    close(client);
    close(fd);
}

/* Expects what is told when @address is not free. */
static void expect_taken(const char *address, int error) {
    char told[300];

    snprintf(told, sizeof(told),
             "weftd: listen: %s cannot be used now: %s (ss -ltnp shows who uses it)\n", address,
             strerror(error));
    expect_valid(told);
}

/* The running daemon may have it, so this is no error. */
Test(check, a_port_that_is_in_use_is_told) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "*"};
    char address[120];
    int fd;
    uint16_t port = listening(&fd);

    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        snprintf(address, sizeof(address), "%s:%u", hosts[i], port);
        set("listen", address);
        expect_taken(address, EADDRINUSE);
    }
    snprintf(address, sizeof(address), "127.0.0.2:%u,127.0.0.1:%u", port, port);
    set("listen", address);
    expect_taken(strchr(address, ',') + 1, EADDRINUSE);
    snprintf(address, sizeof(address), "name.example:%u", port);
    set("listen", address);
    expect_valid(""); /* names are not looked up */
    set("listen", "127.0.0.1");
    expect_valid(""); /* the start refuses it */
    leave_behind(fd, port);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    set("listen", address);
    expect_valid("");
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return; /* without IPv6 nothing is told */
    close(fd);
    set("listen", "[::2]:1"); /* no address of this machine */
    expect_taken("[::2]:1", EADDRNOTAVAIL);
    snprintf(address, sizeof(address), "[::2%%%080d]:1", 0); /* a long zone */
    set("listen", address);
    expect_taken(address, EADDRNOTAVAIL);
    set("listen", "::2:1");
    expect_valid("");
}

/* A start serves without them, or they appear with the service. */
Test(check, places_that_are_missing_are_told) {
    static const struct {
        /* why: "": nothing is told; "none": the folder "none" does not exist */
        const char *key, *name, *why;
    } cases[] = {
        {"state-file", "new", ""},
        {"state-file", "none/s", "No such file or directory; nothing would be kept over a restart"},
        {"state-file", "empty", "Is a directory; nothing would be kept over a restart"},
        {"admin-socket", "new", ""},
        {"admin-socket", "none/s", "none"},
        {"admin-socket", "file", "exists and is not a socket"},
        {"listen", "new", ""},
        {"listen", "none/s", "none"},
    };
    char value[100], why[200], told[500];

    mkdir(in_folder("empty"), 0755);
    close(open(in_folder("file"), O_WRONLY | O_CREAT, 0600));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool listens = strcmp(cases[i].key, "listen") == 0;

        snprintf(value, sizeof(value), "%s%s/%s", listens ? "unix:" : "", folder, cases[i].name);
        snprintf(why, sizeof(why), "%s", cases[i].why);
        if (strcmp(why, "none") == 0)
            snprintf(why, sizeof(why), "the folder %s/none does not exist", folder);
        snprintf(told, sizeof(told), "weftd: %s: %s/%s: %s\n", cases[i].key, folder, cases[i].name,
                 why);
        set(cases[i].key, value);
        expect_valid(*why ? told : "");
        set(cases[i].key, listens ? "unix:/tmp/weft-check.sock" : "");
    }
    cr_assert_eq(chdir(folder), 0);
    close(open("auto", O_WRONLY | O_CREAT, 0600)); /* the option names no file */
    set("admin-socket", "auto");
    expect_valid("");
    unlink("auto");
}

Test(check, a_context_beyond_the_models_is_told) {
    set("max-context", "513");
    expect_valid("max-context: 513 is lowered to the model's 512 tokens\n");
    set("max-context", "512");
    expect_valid("");
}

Test(check, memory_that_the_machine_lacks_is_an_error) {
    int r;

    set("backend", "cpu");
    set("kv-memory", "4096G");
    cr_expect_str_eq(checked(&r), "");
    cr_expect_eq(r, -EINVAL);
    cr_expect_str_eq(err.param, "kv-memory");
    cr_expect(strstr(err.message, "kv-memory: does not fit: weights 3 MiB + keys and values "
                                  "4194304 MiB, this machine has ") == err.message,
              "%s", err.message);
    set("backend", "cuda"); /* whose memory is not known here */
    cr_expect_null(strstr(checked(&r), "memory:"));
    char found[500];
    engine_describe_cuda(found, sizeof(found));
    bool unusable = !*found || strstr(found, "(not used: ");
    cr_expect_eq(r, unusable ? -EINVAL : 0);
    if (!unusable)
        return;
    cr_expect_str_eq(err.param, "backend");
    cr_expect_eq(err.status, 0);
    char want[600];
    snprintf(want, sizeof(want), "backend: %.300s",
             *found ? found : "cuda: weft-cuda.so is not installed");
    cr_expect_str_eq(err.message, want);
}

/* Expects that option @key is refused, and how the file in its value is told about. */
static void expect_file(const char *key, int r, const char *why) {
    char want[400];
    int got;
    const char *text = checked(&got);

    snprintf(want, sizeof(want), "%s: %s: %s", key, in_folder("none"), why);
    cr_expect_eq(got, r);
    cr_expect_str_eq(text, "");
    cr_expect_str_eq(err.param, key);
    cr_expect_str_eq(err.message, want, "%s\nis not %s", err.message, want);
}

Test(check, files_of_options_are_read) {
    static const char missing[] = "cannot be read: No such file or directory";
    char readable[1200];
    int r;

    set("tls-certificate", in_folder("none"));
    set("tls-key", in_folder("file"));
    expect_file("tls-certificate", -ENOENT, missing);
#ifdef HAVE_ZMQ
    set("kv-events", "tcp://127.0.0.1:x");
    expect_refused("kv-events", "tcp://127.0.0.1:x: Invalid argument");
#endif
    set("api-keys", in_folder("none"));
    expect_file("api-keys", -ENOENT, missing);
    set("model", in_folder("none"));
    expect_file("model", -ENOENT, "No such file or directory");
    set("model", in_folder("a.gguf"));
    set("tls-certificate", "");
    set("kv-events", "");
    FILE *f = fopen(in_folder("file"), "w");
    cr_assert(f && fputs("name:0123456789abcdef0123456789abcdef\n", f) >= 0 && fclose(f) == 0);
    set("api-keys", in_folder("file"));
    for (int i = 0; i < 2; i++) {
        chmod(in_folder("file"), i ? 0644 : 0640);
        const char *text = checked(&r);
        cr_assert_eq(r, 0, "%s", err.message);
        const char *event = strstr(text, "keys_readable");
        cr_expect_eq(event != NULL, i == 1, "%s", text);
        if (!event)
            continue;
        snprintf(readable, sizeof(readable),
                 R"(keys_readable path="%s" mode=0644 reason="every user can read it: )"
                 R"(chmod o= FILE")"
                 "\n%sconfiguration is valid\n",
                 in_folder("file"), about_model);
        cr_expect_str_eq(event, readable);
    }
}
