/* Kept weights: the users of a file, and the calls to the service manager. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/workers/kept.h"

/* Content of a file in this test. */
struct content {
    uint8_t key[ENGINE_KEEP_KEY];
    uint64_t n_bytes;
};

static const uint8_t key_a[ENGINE_KEEP_KEY] = {1, [ENGINE_KEEP_KEY - 1] = 1},
                     key_b[ENGINE_KEEP_KEY] = {1, [ENGINE_KEEP_KEY - 1] = 2};
static char told[400]; /* calls to the service manager */

int engine_keep_read(int fd, uint8_t key[ENGINE_KEEP_KEY], uint64_t *n_bytes) {
    struct content c;

    if (pread(fd, &c, sizeof(c), 0) != sizeof(c))
        return -EINVAL;
    memcpy(key, c.key, sizeof(c.key));
    *n_bytes = c.n_bytes;
    return 0;
}

static void tell(const char *what, const char *name) {
    size_t n = strlen(told);

    snprintf(told + n, sizeof(told) - n, "%s%s;", what, name);
}

static void keep(int fd, const char *name) {
    cr_assert_gt(fd, 2);
    tell("keep ", name);
}

static void forget(const char *name) {
    tell("forget ", name);
}

/* Compares the calls to the service manager since the last check with @what. */
static void expect_told(const char *what) {
    cr_expect_str_eq(told, what);
    *told = 0;
}

static void pack(int fd, const uint8_t key[ENGINE_KEEP_KEY], uint64_t n_bytes) {
    struct content c = {.n_bytes = n_bytes};

    memcpy(c.key, key, sizeof(c.key));
    cr_assert_eq(pwrite(fd, &c, sizeof(c), 0), sizeof(c));
}

static int packed(const uint8_t key[ENGINE_KEEP_KEY], uint64_t n_bytes) {
    int fd = memfd_create("test", MFD_CLOEXEC);

    pack(fd, key, n_bytes);
    return fd;
}

/* Makes a list with files "a" of 10 bytes and "b" of 200, which the service manager passed on. */
static struct kept *inherited(void) {
    static const struct kept_opts o = {.store = keep, .forget = forget};
    struct kept *k;

    cr_assert_eq(kept_new(&k, &o), 0);
    kept_inherit(k, packed(key_a, 10), "a");
    kept_inherit(k, packed(key_b, 200), "b");
    return k;
}

/* Claims @key, which has no file yet, and packs it; writes "what NAME;". */
static struct kept_file *made(struct kept *k, const uint8_t key[ENGINE_KEEP_KEY], char name[64]) {
    struct kept_file *f = kept_claim(k, key);

    cr_assert(f);
    cr_expect_not(kept_confirm(f), "it is empty");
    pack(kept_fd(f), key_b, 7);
    cr_expect_eq(kept_confirm(f), memcmp(key, key_b, sizeof(key_b)) == 0);
    pack(kept_fd(f), key, 7);
    cr_expect(kept_confirm(f));
    snprintf(name, 64, "%.60s", strncmp(told, "keep ", 5) == 0 ? told + 5 : "");
    return f;
}

Test(kept, files_of_the_daemon_before_are_used_or_dropped) {
    struct kept *k = inherited();

    kept_inherit(k, memfd_create("empty", MFD_CLOEXEC), "c");
    expect_told("forget c;");
    cr_expect_eq(kept_unclaimed(k, NULL), 210);
    cr_expect_eq(kept_unclaimed(k, key_a), 200);
    struct kept_file *f = kept_claim(k, key_a), *g = kept_claim(k, key_a);
    cr_expect(f && f == g);
    cr_expect(kept_confirm(f));
    cr_expect_eq(kept_unclaimed(k, NULL), 200);
    kept_drop_unclaimed(k, key_b);
    expect_told("");
    kept_drop_unclaimed(k, key_a);
    expect_told("forget b;");
    cr_expect_eq(kept_unclaimed(k, NULL), 0);
    kept_release(f, false);
    kept_release(NULL, false);
    expect_told("");
    kept_release(f, false);
    expect_told("forget a;");
    kept_free(k);
    kept_free(NULL);
    expect_told("");
}

Test(kept, a_file_is_kept_once_the_weights_are_in_it) {
    static const uint8_t key[ENGINE_KEEP_KEY] = {9};
    struct kept *k = inherited();
    char name[64], all[100];

    struct kept_file *f = made(k, key, name);
    cr_expect_eq(strncmp(name, KEPT_PREFIX, strlen(KEPT_PREFIX)), 0, "%s", name);
    snprintf(all, sizeof(all), "keep %s", name);
    expect_told(all);
    cr_expect(kept_confirm(f));
    expect_told("");
    cr_expect_eq(kept_claim(k, key), f);
    kept_release(f, true); /* the other user continues with it, but there are no new ones */
    expect_told("");
    struct kept_file *g = kept_claim(k, key);
    int fd = kept_fd(g);
    cr_expect(g != f && fd != kept_fd(f));
    cr_expect_eq(fcntl(fd, F_GET_SEALS), 0, "it can be sealed");
    cr_expect(fcntl(fd, F_GETFD) & FD_CLOEXEC, "workers get what is theirs alone");
    kept_release(g, false); /* the file was empty */
    expect_told("");
    cr_expect_eq(fcntl(fd, F_GETFD), -1, "it is closed");
    kept_release(f, false);
    snprintf(all, sizeof(all), "forget %s", name);
    expect_told(all);
    char other[64];
    f = made(k, key, name);
    *told = 0;
    g = made(k, (const uint8_t[ENGINE_KEEP_KEY]){8}, other);
    *told = 0;
    fd = kept_fd(g);
    cr_expect_str_neq(name, other);
    kept_stop_passing(k);
    kept_release(f, false);
    kept_free(k);
    expect_told(""); /* the next start gets them */
    cr_expect_eq(fcntl(fd, F_GETFD), -1);
}

/* Implements the callback of kept_pass(); accepts only one file. */
static int add_one(void *ctx, int fd, const char *name) {
    int *n = ctx;

    if (*n == 1)
        return -E2BIG;
    tell("pass ", name);
    ++*n;
    return 0;
}

Test(kept, an_upgrade_passes_files_on_and_forgets_the_rest) {
    struct kept *k = inherited();
    int n = 0;

    cr_expect_eq(kept_pass(k, add_one, &n), -E2BIG);
    expect_told("pass a;");
    kept_hand_over(k);
    expect_told("forget b;");
    kept_release(kept_claim(k, key_a), false);
    expect_told("");
    kept_free(k);
    k = inherited();
    struct kept_file *f = kept_claim(k, key_a), *g = kept_claim(k, (uint8_t[ENGINE_KEEP_KEY]){9});
    cr_expect_eq(kept_claim(k, key_a), f);
    kept_release(f, true);
    n = 0;
    cr_expect_eq(kept_pass(k, add_one, &n), 0);
    expect_told("pass b;"); /* bad and empty files are not passed */
    kept_hand_over(k);
    expect_told("forget a;");
    kept_release(f, false);
    kept_release(g, false);
    expect_told("");
    kept_free(k);
}

Test(kept, the_next_daemon_tells_all_once_it_is_the_main_process) {
    struct kept *k = inherited();
    char name[64], all[200];

    kept_hold(k);
    struct kept_file *f = made(k, (uint8_t[ENGINE_KEEP_KEY]){9}, name);
    kept_drop_unclaimed(k, key_b);
    expect_told("");
    kept_announce(k);
    cr_expect_eq(
        strncmp(told, "forget a;keep b;keep " KEPT_PREFIX, strlen("forget a;keep b;keep ")), 0,
        "%s", told);
    snprintf(all, sizeof(all), "forget %.60s", told + strlen("forget a;keep b;keep "));
    *told = 0;
    kept_release(f, false);
    expect_told(all);
    kept_free(k);
    expect_told("");
}

Test(kept, all_that_was_dropped_before_is_forgotten_then) {
    struct kept *k = inherited();

    kept_hold(k);
    kept_drop_unclaimed(k, NULL);
    expect_told("");
    kept_announce(k);
    expect_told("forget a;forget b;");
    kept_free(k);
}
