/* The folder of `kv-disk`. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
