/* The file of a model's experts: the models that have one, and the counts that are kept. */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/workers/expert_file.h"
#include "tests/support/gguf_writer.h"

#define MINUTE INT64_C(60000000000)

static char folder[] = "/tmp/weft-expert-file-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

static void end(void) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void begin(void) {
    cr_assert(mkdtemp(folder) != NULL);
    setenv("STATE_DIRECTORY", folder, 1);
}

TestSuite(expert_file, .init = begin, .fini = end);

static struct gguf *model_with(uint32_t n_experts) {
    struct gguf_writer w;
    struct gguf *g;
    struct err err;
    char path[80];

    snprintf(path, sizeof(path), "%s/model", folder);
    gw_init(&w);
    gw_string(&w, "general.architecture", "made-up");
    if (n_experts > 0)
        gw_u32(&w, "made-up.expert_count", n_experts);
    gw_tensor(&w, "t", 0, 1, &(uint64_t){32}, NULL);
    gw_save(&w, path);
    gw_deinit(&w);
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.message);
    unlink(path);
    return g;
}

/* Returns the number of picks kept for @f; -1: nothing is kept. */
static int kept(const struct expert_file *f) {
    int v = -1, fd = open(f->path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && read(fd, &v, sizeof(v)) != sizeof(v))
        v = -2;
    close(fd);
    return v;
}

static int open_of(struct expert_file *f, const struct gguf *model) {
    uint8_t print[16];

    gguf_fingerprint(model, print);
    expert_file_set(f, print, expert_file_read(print));
    return f->fd;
}

/* Waits until the copies that were begun have ended. */
static void wait_for_copies(void) {
    cr_assert_eq(uv_run(uv_default_loop(), UV_RUN_DEFAULT), 0);
}

static void write_counts(const struct expert_file *f, int v) {
    cr_assert_eq(pwrite(f->fd, &v, sizeof(v), 0), sizeof(v));
}

/* A model without experts has a file too, since a device may leave its FFNs to the host. */
Test(expert_file, each_model_has_its_own) {
    struct gguf *dense = model_with(0), *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()};
    int v = 0;

    cr_expect_gt(open_of(&f, dense), 0);
    write_counts(&f, 1);
    cr_expect_gt(open_of(&f, experts), 0);
    cr_expect_eq(pread(f.fd, &v, sizeof(v), 0), 0);
    expert_file_close(&f);
    gguf_free(dense);
    gguf_free(experts);
}

/* Without descriptors the worker starts without the file, as the caller sees by its descriptor. */
Test(expert_file, without_descriptors_there_is_none) {
    struct gguf *experts = model_with(8);
    struct rlimit few, all;
    struct expert_file f = {.loop = uv_default_loop()};

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
    few = all;
    few.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    cr_expect_eq(open_of(&f, experts), 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &all), 0);
    cr_expect_gt(open_of(&f, experts), 0);
    expert_file_close(&f);
    gguf_free(experts);
}

/* While the worker lives, new counts are saved every ten minutes. The next daemon has them. */
Test(expert_file, counts_are_kept_while_a_worker_lives) {
    struct gguf *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()}, next = f;
    int64_t now = 100 * MINUTE;
    int v = 0;

    open_of(&f, experts);
    expert_file_save_due(&f, 0, now);
    wait_for_copies();
    cr_expect_eq(kept(&f), -1);
    write_counts(&f, 1);
    expert_file_save_due(&f, 100, now);
    wait_for_copies();
    cr_expect_eq(kept(&f), 1);
    write_counts(&f, 2);
    expert_file_save_due(&f, 200, now + 9 * MINUTE);
    wait_for_copies();
    cr_expect_eq(kept(&f), 1);
    expert_file_save_due(&f, 200, now + 10 * MINUTE);
    wait_for_copies();
    cr_expect_eq(kept(&f), 2);
    write_counts(&f, 3);
    expert_file_save_due(&f, 200, now + 30 * MINUTE); /* no pick was counted */
    wait_for_copies();
    cr_expect_eq(kept(&f), 2);
    open_of(&next, experts);
    cr_assert_eq(pread(next.fd, &v, sizeof(v), 0), sizeof(v));
    cr_expect_eq(v, 2);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){2, 2}), 0);
    expert_file_save(&f); /* the disk is full: the kept file stays, and nothing of the new one */
    wait_for_copies();
    cr_expect_eq(kept(&f), 2);
    expert_file_close(&f);
    expert_file_close(&next);
    gguf_free(experts);
}

/* One copy is written at a time; counts that arrive meanwhile are copied after it. A file that is
 * closed first keeps what was begun. */
Test(expert_file, copies_follow_each_other) {
    struct gguf *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()};

    open_of(&f, experts);
    write_counts(&f, 1);
    expert_file_save(&f);
    expert_file_save(&f);
    write_counts(&f, 2);
    cr_expect(f.saving && f.is_stale);
    wait_for_copies();
    cr_expect_eq(kept(&f), 2);
    cr_expect(!f.saving && !f.is_stale);
    write_counts(&f, 3);
    expert_file_save(&f);
    expert_file_close(&f);
    wait_for_copies();
    cr_expect_eq(kept(&f), 3);
    gguf_free(experts);
}

Test(expert_file, lies_in_the_first_folder_of_a_list_and_may_be_a_fifo) {
    struct gguf *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()};
    char list[100], path[sizeof(f.path)];

    snprintf(list, sizeof(list), "%s:/nonexistent", folder);
    setenv("STATE_DIRECTORY", list, 1);
    open_of(&f, experts);
    snprintf(path, sizeof(path), "%s/experts-", folder);
    cr_expect_eq(strncmp(f.path, path, strlen(path)), 0, "%s", f.path);
    cr_assert_eq(mkfifo(f.path, 0600), 0);
    expert_file_close(&f);
    cr_expect_gt(open_of(&f, experts), 0); /* does not wait for a writer of the FIFO */
    write_counts(&f, 4);
    int next = dup(f.fd); /* the number that the copy will have */
    close(next);
    snprintf(path, sizeof(path), "%.80s.%d.new", f.path, next);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expert_file_save(&f); /* does not wait for a reader */
    wait_for_copies();
    cr_expect_eq(kept(&f), 4);
    expert_file_close(&f);
    gguf_free(experts);
}

/* A file of another program, however large, is not copied. */
Test(expert_file, has_a_limit) {
    const int most = 8 << 20;
    struct gguf *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()};
    struct stat st;

    open_of(&f, experts);
    write_counts(&f, 1);
    cr_assert_eq(ftruncate(f.fd, most + 1), 0);
    umask(0);
    expert_file_save(&f);
    wait_for_copies();
    cr_expect_eq(kept(&f), -1);
    cr_assert_eq(ftruncate(f.fd, most), 0);
    expert_file_save(&f);
    wait_for_copies();
    cr_expect(stat(f.path, &st) == 0 && st.st_size == most && (st.st_mode & 0777) == 0600);
    cr_assert_eq(ftruncate(f.fd, 0), 0);
    expert_file_save(&f); /* nothing was counted */
    cr_expect_null(f.saving);
    f.n_kept = 5;
    open_of(&f, experts);
    cr_expect(fstat(f.fd, &st) == 0 && st.st_size == most && f.n_kept == 0);
    int fd = f.fd;
    expert_file_close(&f);
    cr_expect(fcntl(fd, F_GETFD) < 0 && f.fd == 0);
    expert_file_close(&f);
    expert_file_save(&f); /* there is no file any more */
    cr_expect_null(f.saving);
    gguf_free(experts);
}

/* Without a folder of the service manager counts live as long as the daemon. */
Test(expert_file, without_a_folder_nothing_is_kept) {
    struct gguf *experts = model_with(8);
    struct expert_file f = {.loop = uv_default_loop()};

    unsetenv("STATE_DIRECTORY");
    cr_expect_gt(open_of(&f, experts), 0);
    cr_expect_str_eq(f.path, "");
    write_counts(&f, 1);
    expert_file_save(&f);
    cr_expect_null(f.saving);
    expert_file_close(&f);
    gguf_free(experts);
}
