/* The folder of `kv-disk`. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/models/kvdisk.h"

Test(kvdisk, a_full_disk_leaves_no_half_key) {
    char folder[] = "/tmp/weft-kvdisk-XXXXXX";
    const struct rlimit full = {8, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
    uint64_t secret[2];
    struct err err = {0};
    int fd = -1;

    cr_assert(mkdtemp(folder) != NULL);
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &full), 0);
    cr_expect_eq(kvdisk_open(folder, true, &fd, secret, &err), -ENOSPC);
    cr_expect(strstr(err.message, "prefixes.key: No space") != NULL, "%s", err.message);
    cr_expect_lt(faccessat(dir, "prefixes.key.new", F_OK, 0), 0);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &room), 0);
    cr_expect_eq(kvdisk_open(folder, true, &fd, secret, &err), 0, "%s", err.message);
    close(fd);
    unlinkat(dir, "prefixes.key", 0);
    unlinkat(dir, "prefixes.kv", 0);
    close(dir);
    rmdir(folder);
}

/* The worker of the daemon before may have the file for a moment. */
Test(kvdisk, a_file_that_is_in_use_is_waited_for) {
    char folder[] = "/tmp/weft-kvdisk-XXXXXX", path[60];
    uint64_t secret[2];
    struct err err = {0};
    int fd, status;

    cr_assert(mkdtemp(folder) != NULL);
    cr_assert_eq(kvdisk_open(folder, true, &fd, secret, &err), 0, "%s", err.message);
    pid_t child = fork(); /* has the lock as long as it lives */
    if (child == 0) {
        usleep(120000);
        _exit(0);
    }
    close(fd);
    fd = -1;
    cr_expect_eq(kvdisk_open(folder, true, &fd, secret, &err), 0, "%s", err.message);
    cr_expect_eq(waitpid(child, &status, 0), child);
    cr_expect_geq(fd, 0);
    close(fd);
    for (const char *const *name = (const char *const[]){"key", "kv", NULL}; *name; name++) {
        snprintf(path, sizeof(path), "%s/prefixes.%s", folder, *name);
        unlink(path);
    }
    rmdir(folder);
}

Test(kvdisk, a_fifo_is_no_key) {
    char folder[] = "/tmp/weft-kvdisk-XXXXXX", key[60];
    uint64_t secret[2];
    struct err err = {0};
    int fd = -1;

    cr_assert(mkdtemp(folder) != NULL);
    snprintf(key, sizeof(key), "%s/prefixes.key", folder);
    cr_assert_eq(mkfifo(key, 0600), 0);
    cr_expect_lt(kvdisk_open(folder, true, &fd, secret, &err), 0);
    cr_expect(strstr(err.message, "prefixes.key"), "%s", err.message);
    unlink(key);
    snprintf(key, sizeof(key), "%s/prefixes.key.new", folder);
    cr_assert_eq(mkfifo(key, 0600), 0);
    err = (struct err){0};
    cr_expect_eq(kvdisk_open(folder, true, &fd, secret, &err), 0, "%s", err.message);
    close(fd);
    snprintf(key, sizeof(key), "%s/prefixes.key", folder);
    unlink(key);
    snprintf(key, sizeof(key), "%s/prefixes.kv", folder);
    unlink(key);
    cr_expect_eq(rmdir(folder), 0);
}

/* Makes the path of a folder that does not exist. */
static void new_folder(char path[64]) {
    snprintf(path, 64, "/tmp/weft-kvdisk-XXXXXX");
    cr_assert(mkdtemp(path) != NULL);
    rmdir(path);
}

static void remove_folder(const char *path) {
    static const char *const names[] = {"prefixes.key", "prefixes.kv"};
    char file[96];

    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        unlink(file);
    }
    cr_expect_eq(rmdir(path), 0, "nothing else was left");
}

static unsigned mode_of(const char *folder, const char *name, long *size) {
    char file[400];
    struct stat st = {0};

    snprintf(file, sizeof(file), "%s/%s", folder, name);
    cr_assert_eq(stat(file, &st), 0, "%s", file);
    *size = (long)st.st_size;
    return st.st_mode & 07777u;
}

Test(kvdisk, the_secret_is_drawn_once_for_a_folder) {
    uint64_t first[2] = {0}, again[2] = {0}, other[2] = {0};
    char folder[64], folder2[64];
    struct err err = {0};
    long size;
    int a, b, c;

    new_folder(folder);
    new_folder(folder2);
    cr_assert_eq(kvdisk_open(folder, false, &a, first, &err), 0, "%s", err.message);
    cr_assert_eq(kvdisk_open(folder, true, &b, again, &err), 0, "%s", err.message);
    cr_assert_eq(kvdisk_open(folder2, false, &c, other, &err), 0, "%s", err.message);
    cr_expect(first[0] == again[0] && first[1] == again[1]);
    cr_expect(first[0] != other[0] && first[1] != other[1]);
    cr_expect(first[0] != 0 && first[1] != 0);
    cr_expect_eq(mode_of(folder, "", &size), 0700);
    cr_expect_eq(mode_of(folder, "prefixes.key", &size), 0600);
    cr_expect_eq(size, 16);
    cr_expect_eq(mode_of(folder, "prefixes.kv", &size), 0600);
    cr_expect_not(kvdisk_lock(a), "the second call has locked the file");
    kvdisk_unlock(b);
    cr_expect(kvdisk_lock(a));
    cr_expect_not(kvdisk_lock(b));
    close(a);
    cr_expect(kvdisk_lock(b), "the lock ends with the file");
    close(b);
    close(c);
    remove_folder(folder);
    remove_folder(folder2);
}

/* Asserts that the folder is refused with @r because of the file @name, for the reason @why. */
static void expect_refusal(const char *folder, int r, const char *name, const char *why) {
    uint64_t secret[2];
    struct err err = {0};
    char text[300];
    int fd = -1;

    cr_expect_eq(kvdisk_open(folder, false, &fd, secret, &err), r, "%s", name);
    snprintf(text, sizeof(text), "kv-disk: %s/%s: %s", folder, name, why);
    cr_expect_str_eq(err.message, text);
    cr_expect_str_eq(err.param, "kv-disk");
    cr_expect_eq(err.status, 0);
    cr_expect_eq(fd, -1);
}

Test(kvdisk, files_that_others_can_read_are_refused) {
    static const char why[] =
        "must belong to this user, and no other user may have access (chmod 600)";
    static const char *const names[] = {"prefixes.kv", "prefixes.key"};
    char folder[64], file[96];
    uint64_t secret[2];
    struct err err = {0};
    int fd;

    new_folder(folder);
    cr_assert_eq(kvdisk_open(folder, false, &fd, secret, &err), 0, "%s", err.message);
    close(fd);
    for (int i = 0; i < 2; i++) {
        static const mode_t modes[] = {0640, 0604, 0610};

        snprintf(file, sizeof(file), "%s/%s", folder, names[i]);
        for (size_t k = 0; k < 3; k++) {
            chmod(file, modes[k]);
            expect_refusal(folder, -EINVAL, names[i], why);
        }
        unlink(file);
        cr_assert_eq(symlink("/dev/null", file), 0);
        expect_refusal(folder, -ELOOP, names[i], strerror(ELOOP));
        unlink(file);
        cr_assert_eq(kvdisk_open(folder, false, &fd, secret, &err), 0, "%s", err.message);
        close(fd);
    }
    cr_assert_eq(truncate(file, 15), 0);
    expect_refusal(folder, -EINVAL, "prefixes.key",
                   "is damaged; remove it, and weftd creates a new one");
    remove_folder(folder);
    expect_refusal("/tmp/weft-none/none", -ENOENT, "", strerror(ENOENT));
    expect_refusal("/dev/null", -ENOTDIR, "", strerror(ENOTDIR));
}

Test(kvdisk, each_further_model_has_a_file) {
    static const struct {
        const char *name, *file;
    } rows[] = {
        {"Qwen3.6-27B_q4:x", "prefixes-Qwen3.6-27B_q4:x.kv"},
        {"a/b c%\xC3\xA9", "prefixes-a%2Fb%20c%25%C3%A9.kv"},
        {"", "prefixes-.kv"},
    };
    char folder[64], file[400], name[300];
    uint64_t secret[2];
    struct err err = {0};
    long size;
    int fd;

    new_folder(folder);
    cr_expect_eq(kvdisk_open_model(folder, "a", &fd, &err), -ENOENT);
    cr_assert_eq(kvdisk_open(folder, false, &fd, secret, &err), 0, "%s", err.message);
    close(fd);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(kvdisk_open_model(folder, rows[i].name, &fd, &err), 0, "%s", err.message);
        close(fd);
        cr_expect_eq(mode_of(folder, rows[i].file, &size), 0600);
        snprintf(file, sizeof(file), "%s/%s", folder, rows[i].file);
        chmod(file, 0644);
        cr_expect_eq(kvdisk_open_model(folder, rows[i].name, &fd, &err), -EINVAL);
        cr_expect(strstr(err.message, rows[i].file) && strstr(err.message, "must belong to this"));
        unlink(file);
    }
    memset(name, 'a', sizeof(name));
    name[226] = 0;
    cr_expect_eq(kvdisk_open_model(folder, name, &fd, &err), -EINVAL);
    cr_expect(strstr(err.message, "aaa: the name is too long") != NULL, "%s", err.message);
    cr_expect_eq(err.status, 0);
    name[225] = 0; /* the longest name */
    name[224] = '/';
    cr_assert_eq(kvdisk_open_model(folder, name, &fd, &err), 0, "%s", err.message);
    close(fd);
    snprintf(file, sizeof(file), "%s/prefixes-%.224s%%2F.kv", folder, name);
    cr_expect_eq(unlink(file), 0);
    remove_folder(folder);
}
