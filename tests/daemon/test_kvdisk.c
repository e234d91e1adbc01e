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
    snprintf(key, sizeof(key), "%s/prefixes.kv", folder);
    unlink(key);
    cr_expect_eq(rmdir(folder), 0);
}
