/* The requests that were present at the deaths of workers. */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/workers/faults.h"

Test(faults, deaths_are_counted_by_request) {
    struct crash_page page = {.n = 2, .ids = {7, 8}, .n_compiling = 1, .compiling = {9}};
    struct faults f = {0};

    faults_note(&f, &page, false);
    page.n = 1;
    faults_note(&f, &page, false);
    cr_expect_eq(faults_of(&f, 7), 2);
    cr_expect_eq(faults_of(&f, 8), 1);
    cr_expect_eq(faults_of(&f, 9), 2);
    cr_expect_eq(faults_of(&f, 0), 0, "a row that was never written is none");
}

Test(faults, a_want_of_memory_counts_against_those_that_run_alone) {
    struct crash_page page = {.n = 2, .ids = {7, 8}, .n_compiling = 1, .compiling = {9}};
    struct faults f = {0};

    for (int i = 0; i < 5; i++)
        faults_note(&f, &page, true);
    for (uint64_t id = 7; id <= 9; id++)
        cr_expect_eq(faults_of(&f, id), FAULTS_ALONE, "request %d", (int)id);
    page = (struct crash_page){.n = 1, .ids = {7}};
    faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 7), FAULTS_ALONE + 1);
    page = (struct crash_page){.n_compiling = 1, .compiling = {9}};
    faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 9), FAULTS_ALONE + 1);
    page = (struct crash_page){.n = 2, .ids = {7, 8}};
    faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 7), FAULTS_ALONE + 1, "what was counted stays");
    cr_expect_eq(faults_of(&f, 8), FAULTS_ALONE);
}

/* Else a request that takes all memory would end each new worker while grammars are compiled. */
Test(faults, who_is_alone_in_its_list_is_counted_in_the_end) {
    struct crash_page page = {.n = 1, .ids = {7}, .n_compiling = 1, .compiling = {9}};
    struct faults f = {0};

    for (int i = 0; i < FAULTS_ALONE + FAULTS_DOUBTS - 1; i++)
        faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 7), FAULTS_ALONE);
    page.compiling[0] = 10; /* the grammar of another request */
    faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 7), FAULTS_ALONE + 1);
    cr_expect_eq(faults_of(&f, 9), FAULTS_ALONE);
    cr_expect_eq(faults_of(&f, 10), 1);
    page = (struct crash_page){.n = 2, .ids = {10, 11}, .n_compiling = 1, .compiling = {9}};
    faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 9), FAULTS_ALONE + 1, "its grammar is compiled alone");
}

/* Requests that wait for one grammar are not refused, because each may be innocent. */
Test(faults, those_that_wait_for_one_grammar_are_not_counted_in_the_end) {
    const struct crash_page page = {.n_compiling = 2, .compiling = {7, 8}};
    struct faults f = {0};

    for (int i = 0; i < FAULTS_ALONE + 3 * FAULTS_DOUBTS; i++)
        faults_note(&f, &page, true);
    cr_expect_eq(faults_of(&f, 7), FAULTS_ALONE);
    faults_note(&f, &page, false);
    cr_expect_eq(faults_of(&f, 8), FAULTS_ALONE + 1);
}

Test(faults, counts_beyond_the_arrays_are_cut) {
    static struct crash_page page = {.n = UINT32_MAX, .n_compiling = UINT32_MAX};
    static struct faults f;

    for (uint32_t i = 0; i < CRASH_PAGE_MAX; i++)
        page.ids[i] = i + 1;
    for (uint32_t i = 0; i < CRASH_PAGE_COMPILING_MAX; i++)
        page.compiling[i] = 5000 + i;
    faults_note(&f, &page, false);
    cr_expect_eq(f.n, CRASH_PAGE_MAX + CRASH_PAGE_COMPILING_MAX);
    cr_expect_eq(faults_of(&f, 5000), 1);
    cr_expect_eq(faults_of(&f, 1), 0, "the oldest are forgotten");
}

/* The oldest row is taken by the next id, which begins anew. */
Test(faults, as_many_requests_as_rows_are_remembered) {
    struct crash_page page = {.n = 1};
    static struct faults f;

    for (uint64_t id = 1; id <= FAULTS_MAX; id++) {
        page.ids[0] = id;
        faults_note(&f, &page, false);
    }
    faults_note(&f, &page, false);
    cr_expect(faults_of(&f, 1) == 1 && faults_of(&f, FAULTS_MAX) == 2);
    f.row[0].n_doubts = 3;
    page.ids[0] = FAULTS_MAX + 1;
    faults_note(&f, &page, false);
    cr_expect(faults_of(&f, 1) == 0 && faults_of(&f, 2) == 1 && faults_of(&f, FAULTS_MAX + 1) == 1);
    cr_expect_eq(f.row[0].n_doubts, 0);
    cr_expect_eq(f.n, FAULTS_MAX + 1);
}

/* Begins to write a copy of @record. */
static void begin_record(struct faults *payer, const struct buf *record, const char *dir,
                         uint32_t n, char *path, size_t size) {
    struct buf copy = {.max = 64};

    cr_assert_eq(buf_add(&copy, record->data, record->len), 0);
    faults_write(payer, uv_default_loop(), &copy, dir, n, path, size);
    cr_expect(!*path || copy.cap == 0, "bytes are taken when they are written");
    buf_deinit(&copy);
}

/* Writes a copy of @record and waits for the end. Sets @path to "" if no whole file lies there. */
static void write_record(const struct buf *record, const char *dir, uint32_t n, char *path,
                         size_t size) {
    struct faults payer = {0};
    struct stat st;

    begin_record(&payer, record, dir, n, path, size);
    cr_assert_eq(uv_run(uv_default_loop(), UV_RUN_DEFAULT), 0);
    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != (off_t)record->len)
        *path = 0;
}

Test(faults, a_recording_without_room_leaves_no_file) {
    struct rlimit limit = {4, 4};
    struct buf record = {.max = 64};
    char dir[] = "/tmp/weft-faults-XXXXXX", path[300], file[64];

    cr_assert(mkdtemp(dir) && buf_add_str(&record, "a recording") == 0);
    snprintf(file, sizeof(file), "%s/fault-1.flight", dir);
    write_record(&record, dir, 1, path, sizeof(path));
    cr_expect(strcmp(path, file) == 0 && unlink(file) == 0);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    write_record(&record, dir, 1, path, sizeof(path));
    cr_expect(!*path && access(file, F_OK) < 0);
    rmdir(dir);
    buf_deinit(&record);
}

Test(faults, a_fifo_in_the_first_folder_of_the_service_manager_does_not_block) {
    struct buf record = {.max = 64};
    char dir[] = "/tmp/weft-faults-XXXXXX", list[64], path[300], file[64];

    cr_assert(mkdtemp(dir) && buf_add_str(&record, "a recording") == 0);
    snprintf(list, sizeof(list), "%s:/nonexistent", dir);
    setenv("STATE_DIRECTORY", list, 1);
    snprintf(file, sizeof(file), "%s/fault-1.flight", dir);
    cr_assert_eq(mkfifo(file, 0600), 0);
    write_record(&record, "", 1, path, sizeof(path));
    cr_expect_str_eq(path, "");
    cr_expect_eq(unlink(file), 0);
    write_record(&record, "", 1, path, sizeof(path));
    cr_expect(strcmp(path, file) == 0 && unlink(file) == 0, "%s", path);
    rmdir(dir);
    buf_deinit(&record);
}

Test(faults, the_log_says_why_a_recording_was_not_written) {
    FILE *log = tmpfile();
    struct buf record = {.max = 64};
    char path[300], line[300] = "";
    int fd = dup(STDERR_FILENO);

    cr_assert(log && dup2(fileno(log), STDERR_FILENO) >= 0);
    write_record(&record, "/proc/none", 1, path, sizeof(path));
    dup2(fd, STDERR_FILENO);
    rewind(log);
    cr_expect(!*path && fgets(line, sizeof(line), log) && strstr(line, "No such file"), "%s", line);
    close(fd);
    fclose(log);
}

Test(faults, the_last_recordings_are_kept_in_the_folder_of_the_service) {
    char dir[] = "/tmp/weft-faults-XXXXXX", path[300], file[64], link[64], text[64] = "";
    struct buf record = {.max = 64};
    struct stat st;

    cr_assert(mkdtemp(dir) && buf_add_str(&record, "a recording") == 0);
    umask(0);
    unsetenv("STATE_DIRECTORY");
    write_record(&record, "", 1, path, sizeof(path));
    cr_expect_str_eq(path, "", "there is no folder");
    setenv("STATE_DIRECTORY", "", 1);
    write_record(&record, "", 1, path, sizeof(path));
    cr_expect_str_eq(path, "");
    setenv("STATE_DIRECTORY", dir, 1);
    write_record(&record, "", 11, path, sizeof(path));
    snprintf(file, sizeof(file), "%s/fault-3.flight", dir);
    cr_expect_str_eq(path, file, "eight are kept");
    FILE *f = fopen(file, "re");
    cr_assert(f != NULL);
    cr_expect_eq(fread(text, 1, sizeof(text), f), 11);
    cr_expect_str_eq(text, "a recording");
    fclose(f);
    record.len = 1;
    write_record(&record, "", 3, path, sizeof(path));
    cr_expect(stat(file, &st) == 0 && st.st_size == 1, "nothing of an earlier one is left");
    cr_expect_eq(st.st_mode & 0777, 0600);
    setenv("STATE_DIRECTORY", "/nonexistent", 1);
    write_record(&record, dir, 8, path, sizeof(path));
    snprintf(link, sizeof(link), "%s/fault-0.flight", dir);
    cr_expect_str_eq(path, link, "the folder that is named comes first");
    unlink(link);
    cr_assert_eq(symlink(file, link), 0);
    buf_clear(&record);
    write_record(&record, dir, 0, path, sizeof(path));
    cr_expect_str_eq(path, "", "a link is not followed");
    cr_expect(unlink(link) == 0 && truncate(file, 11) == 0 && unlink(file) == 0);
    unsetenv("STATE_DIRECTORY");
    rmdir(dir);
    buf_deinit(&record);
}

/* The lock is held as by a disk that does not answer. */
Test(faults, a_folder_that_hangs_holds_one_recording_of_each_model) {
    char dir[] = "/tmp/weft-faults-XXXXXX", path[300], file[64];
    struct faults payer[9] = {0};
    struct buf record = {.max = 64};

    cr_assert(mkdtemp(dir) && buf_add_str(&record, "a recording") == 0);
    snprintf(file, sizeof(file), "%s/fault-0.flight", dir);
    int held = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(held >= 0 && flock(held, LOCK_EX) == 0);
    for (uint32_t i = 0; i < 3; i++)
        begin_record(&payer[0], &record, dir, 8 * i, path, sizeof(path));
    cr_expect_str_eq(path, "");
    cr_expect_eq(payer[0].n_lost, 2);
    for (uint32_t i = 1; i < ARRAY_SIZE(payer); i++) {
        begin_record(&payer[i], &record, dir, 0, path, sizeof(path));
        cr_expect_eq(payer[i].n_lost, i == 8, "%u", i);
    }
    cr_expect_str_eq(path, "", "eight are all that a folder keeps");
    close(held);
    cr_assert_eq(uv_run(uv_default_loop(), UV_RUN_DEFAULT), 0);
    begin_record(&payer[0], &record, dir, 0, path, sizeof(path));
    cr_assert_eq(uv_run(uv_default_loop(), UV_RUN_DEFAULT), 0);
    cr_expect(strcmp(path, file) == 0 && payer[0].n_lost == 2, "%s", path);
    cr_expect_eq(unlink(file), 0);
    rmdir(dir);
    buf_deinit(&record);
}
