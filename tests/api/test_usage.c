/* Counts of several processes in one database: no count is lost or counted twice. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/limits/usage.h"
#include "api/limits/usage_rows.h"
#include "base/rng.h"

#define ALL 0, 99999999

static char folder[40], path[100], old_path[100];
static int64_t now_s;
static int n_troubles, trouble;

static int64_t clock_of(void *ctx) {
    return now_s;
}

static void on_trouble(void *ctx, int r) {
    n_troubles++;
    trouble = r;
}

static void setup(void) {
    strcpy(folder, "/tmp/weft-test-usage-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/state.db", folder);
    snprintf(old_path, sizeof(old_path), "%s/usage", folder);
    now_s = 1795392000; /* 2026-11-23 */
    n_troubles = 0;
}

static void teardown(void) {
    char command[80];

    snprintf(command, sizeof(command), "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

struct process {
    uv_loop_t loop;
    struct state state;
    struct usage u;
};

static void begin(struct process *p) {
    const struct state_opts so = {.loop = &p->loop, .path = path, .trouble = on_trouble};
    const struct usage_opts o = {.loop = &p->loop,
                                 .state = &p->state,
                                 .import = old_path,
                                 .unix_s = clock_of,
                                 .trouble = on_trouble};

    uv_loop_init(&p->loop);
    cr_assert_eq(state_init(&p->state, &so), 0);
    cr_assert_eq(usage_init(&p->u, &o), 0);
    cr_assert_eq(state_start(&p->state), 0);
    usage_start(&p->u);
}

/* Ends the process; with @dies its unwritten counts are lost. Returns the result of the last
 * write. */
static int end(struct process *p, bool dies) {
    uint64_t n_lost;
    int r = 0;

    usage_close(&p->u);
    state_close(&p->state);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    if (!dies)
        r = usage_save(&p->u, &n_lost);
    cr_expect_eq(r < 0, !dies && n_lost > 0);
    usage_deinit(&p->u);
    state_deinit(&p->state);
    cr_expect_eq(uv_loop_close(&p->loop), 0);
    return r;
}

/* Opens the database as another process would. */
static sqlite3 *open_other(void) {
    sqlite3 *other;

    cr_assert_eq(sqlite3_open(path, &other), SQLITE_OK);
    return other;
}

static void execute_on(sqlite3 *other, const char *sql) {
    cr_assert_eq(sqlite3_exec(other, sql, NULL, NULL, NULL), SQLITE_OK, "%s: %s", sql,
                 sqlite3_errmsg(other));
}

static void count(struct process *p, const char *key) {
    usage_count(&p->u, "t", key, "m", &(struct usage_sum){1, 20, 10, 5});
}

/* Runs the timer now and waits for the end of the thread. */
static void tick(struct process *p) {
    if (uv_is_active((uv_handle_t *)&p->u.tick)) {
        uv_timer_stop(&p->u.tick);
        uv_timer_start(&p->u.tick, p->u.tick.timer_cb, 0, 0);
    }
    do
        uv_run(&p->loop, UV_RUN_ONCE);
    while (p->u.is_writing);
}

static uint64_t requests_of(const struct usage *u) {
    return usage_table_sum(&u->all, "t", ALL).requests;
}

Test(usage, a_fifo_is_neither_waited_for_nor_replaced, .init = setup, .fini = teardown) {
    struct process p;
    struct stat st;

    cr_assert_eq(mkfifo(path, 0600), 0);
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EOPNOTSUPP, "%d %d", n_troubles, trouble);
    count(&p, "k");
    tick(&p);
    end(&p, false);
    cr_expect(lstat(path, &st) == 0 && S_ISFIFO(st.st_mode));
}

/* Another process holds the lock and does not go on: neither the start nor the end waits for it
 * without a limit, what is lost is told, and the rest is read as soon as the lock is free. */
Test(usage, the_lock_is_not_waited_for, .init = setup, .fini = teardown) {
    struct process p;

    begin(&p);
    count(&p, "a");
    end(&p, false);
    sqlite3 *other = open_other();
    execute_on(other, "BEGIN IMMEDIATE");
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EBUSY, "%d %d", n_troubles, trouble);
    count(&p, "a");
    cr_expect_eq(end(&p, false), -EBUSY);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 0);
    execute_on(other, "ROLLBACK");
    tick(&p); /* without anything to be written */
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
    sqlite3_close(other);
}

Test(usage, counts_outlive_the_process, .init = setup, .fini = teardown) {
    static struct process p;

    begin(&p);
    count(&p, "a");
    count(&p, "");
    end(&p, false);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 2);
    cr_expect_eq(usage_table_sum(&p.u.all, "t", ALL).output_tokens, 10);
    end(&p, false);
    cr_expect_eq(n_troubles, 0);
}

Test(usage, two_processes_neither_lose_nor_double, .init = setup, .fini = teardown) {
    static struct process old, next;

    begin(&old);
    count(&old, "a");
    tick(&old);
    count(&old, "a");
    begin(&next); /* in an upgrade the old process finishes its requests */
    cr_expect_eq(requests_of(&next.u), 1);
    for (int i = 0; i < 5; i++) {
        count(&old, "a");
        count(&next, "b");
        tick(i % 2 ? &old : &next);
    }
    end(&old, false);
    count(&next, "b");
    tick(&next);
    cr_expect_eq(requests_of(&next.u), 13);
    end(&next, true);
    begin(&next);
    cr_expect_eq(requests_of(&next.u), 13);
    end(&next, false);
}

/* A full disk is an error that is told, and loses nothing that was written before. */
Test(usage, a_full_disk_keeps_what_was_there, .init = setup, .fini = teardown) {
    static struct process p;
    struct rlimit was;

    begin(&p);
    count(&p, "a");
    end(&p, false);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    begin(&p);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, was.rlim_max}), 0);
    count(&p, "a");
    cr_expect_lt(end(&p, false), 0);
    cr_expect_eq(n_troubles, 1);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
}

Test(usage, many_processes_at_once_add_up, .init = setup, .fini = teardown) {
    enum { PROCESSES = 4, ROUNDS = 10 };
    static struct process p;

    for (int i = 0; i < PROCESSES; i++) {
        if (fork() > 0)
            continue;
        begin(&p);
        for (int k = 0; k < ROUNDS; k++) {
            char key[8];

            snprintf(key, sizeof(key), "k%d", (i + k) % 3);
            count(&p, key);
            tick(&p); /* what the lock delays is written next time */
        }
        _exit(end(&p, false) < 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;

        cr_expect(wait(&status) > 0 && status == 0);
    }
    begin(&p);
    cr_expect_eq(requests_of(&p.u), PROCESSES * ROUNDS);
    end(&p, false);
}

Test(usage, what_cannot_be_written_is_kept_and_told_once, .init = setup, .fini = teardown) {
    static struct process p;

    begin(&p);
    sqlite3 *other = open_other();
    execute_on(other, "BEGIN IMMEDIATE");
    for (int i = 0; i < 2; i++) {
        count(&p, "a");
        tick(&p);
        cr_expect_eq(requests_of(&p.u), (uint64_t)i + 1);
    }
    cr_expect_eq(n_troubles, 1);
    cr_expect_eq(trouble, -EBUSY);
    execute_on(other, "ROLLBACK");
    count(&p, "a");
    tick(&p);
    end(&p, true);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 3);
    end(&p, false);
    sqlite3_close(other);
}

static void write_file(const char *name, const char *text) {
    FILE *f = fopen(name, "w");

    fputs(text, f);
    fclose(f);
}

static bool is_there(const char *name, const char *ending) {
    char whole[140];

    snprintf(whole, sizeof(whole), "%s%s", name, ending);
    return access(whole, F_OK) == 0;
}

Test(usage, a_damaged_database_is_put_aside, .init = setup, .fini = teardown) {
    static struct process p;

    write_file(path, "this is no database, and it is as long as the head of one would have to be: "
                     "one hundred bytes at least");
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == 0, "%d %d", n_troubles, trouble);
    cr_expect_eq(requests_of(&p.u), 0);
    cr_expect(is_there(path, ".damaged"));
    count(&p, "a");
    end(&p, false);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
}

/* A file that the option names by mistake is neither changed nor renamed. */
Test(usage, the_database_of_another_program_is_left_alone, .init = setup, .fini = teardown) {
    static struct process p;
    sqlite3 *other = open_other();

    execute_on(other, "CREATE TABLE usage (a, b)");
    sqlite3_close(other);
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EMEDIUMTYPE, "%d %d", n_troubles, trouble);
    count(&p, "a");
    cr_expect_eq(end(&p, false), -EMEDIUMTYPE);
    cr_expect(!is_there(path, ".damaged"));
}

Test(usage, rows_that_the_daemon_did_not_write_go, .init = setup, .fini = teardown) {
    static struct process p;

    begin(&p);
    count(&p, "a");
    end(&p, false);
    sqlite3 *other = open_other();
    execute_on(other, "INSERT INTO usage VALUES (20261123, 't', 'bad', 'm', -5, 0, 0, 0),"
                      "('x', 't', 'bad', 'm', 1, 0, 0, 0), (20269923, 't', 'bad', 'm', 1, 0, 0, 0),"
                      "(20261123, 't', 'good', 'm', 1, 0, 0, 0),"
                      "(20261123, 't', x'6100', 'm', 1, 0, 0, 0)");
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 2);
    count(&p, "a");
    end(&p, false);
    execute_on(other, "DELETE FROM usage WHERE key = 'good' OR key = 'a'");
    execute_on(other, "CREATE TEMP TABLE none (n CHECK (n = 0));"
                      "INSERT INTO none SELECT count(*) FROM usage");
    sqlite3_close(other);
}

/* The rows are added once, even if the process died before it could rename the file. */
Test(usage, the_file_of_an_earlier_version_is_added_once, .init = setup, .fini = teardown) {
    static struct process p;
    char imported[120];

    write_file(old_path, "weft usage 1\n20261123\tt\tk\tm\t3\t2\t1\t5\nend 1\n");
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 3);
    count(&p, "k");
    end(&p, false);
    cr_expect(!is_there(old_path, "") && is_there(old_path, ".imported"));
    snprintf(imported, sizeof(imported), "%s.imported", old_path);
    cr_assert_eq(rename(imported, old_path), 0);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 4);
    end(&p, false);
    cr_expect_eq(n_troubles, 0);
}

Test(usage, a_damaged_file_of_an_earlier_version_is_put_aside, .init = setup, .fini = teardown) {
    static struct process p;

    write_file(old_path, "weft usage 1\n20261123\tt\ta\tm\t1\t2");
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EINVAL, "%d %d", n_troubles, trouble);
    cr_expect_eq(requests_of(&p.u), 0);
    end(&p, false);
    cr_expect(is_there(old_path, ".damaged"));
}

/* A job that notes the thread of each of its calls. */
struct noting {
    struct state_job job;
    pthread_t ran, committed;
    bool fails, was_committed, was_done;
};

static int note_run(struct state_job *j, struct db *db) {
    struct noting *n = CONTAINER_OF(j, struct noting, job);

    n->ran = pthread_self();
    return n->fails ? -EIO : 0;
}

static void note_committed(struct state_job *j) {
    struct noting *n = CONTAINER_OF(j, struct noting, job);

    n->committed = pthread_self();
    n->was_committed = true;
}

static void note_done(struct state_job *j, int r) {
    CONTAINER_OF(j, struct noting, job)->was_done = true;
}

Test(usage, what_follows_a_transaction_is_not_done_on_the_loop, .init = setup, .fini = teardown) {
    static struct process p;

    begin(&p);
    for (int i = 0; i < 2; i++) {
        struct noting n = {.fails = i == 1};

        n.job = (struct state_job){.run = note_run, .committed = note_committed, .done = note_done};
        state_submit(&p.state, &n.job);
        while (!n.was_done)
            uv_run(&p.loop, UV_RUN_ONCE);
        cr_expect_eq(n.was_committed, !n.fails);
        cr_expect(n.fails || pthread_equal(n.committed, n.ran));
        cr_expect(!pthread_equal(n.ran, pthread_self()));
    }
    end(&p, false);
    cr_expect_eq(n_troubles, 1);
}

/* Adds random rows; the result is the one of a table in memory. */
struct adding {
    struct state_job job;
    struct usage_table own, all;
};

static int add_rows(struct state_job *j, struct db *db) {
    struct adding *a = CONTAINER_OF(j, struct adding, job);

    usage_table_deinit(&a->all);
    return usage_rows_add(db, &a->own, 20261123, &a->all);
}

Test(usage, the_database_has_the_rows_of_a_table, .init = setup, .fini = teardown) {
    static const char *const names[] = {"a", "b", "", "-", "c d\t%\n'", "\xc3\xa9"};
    static struct process p;
    struct adding a = {.job.run = add_rows};
    struct usage_table naive = {0};
    struct rng rng = {63};

    begin(&p);
    for (int round = 0; round < 60; round++) {
        for (uint64_t i = rng_below(&rng, 8); i > 0; i--) {
            struct usage_row row = {.sum = {1, 2, rng_below(&rng, 3), 4}};

            row.date = usage_day(now_s - (int64_t)rng_below(&rng, 400) * 86400);
            strcpy(row.tenant, names[rng_below(&rng, 6)]);
            strcpy(row.key, names[rng_below(&rng, 6)]);
            strcpy(row.model, names[rng_below(&rng, 6)]);
            cr_assert_eq(usage_table_add(&a.own, &row), 0);
        }
        if (a.own.n > 0) {
            cr_assert_eq(usage_table_merge(&naive, &a.own), 0);
            cr_assert_eq(usage_table_fold(&naive, 20261123), 0);
        }
        cr_assert_eq(state_run(&p.state, &a.job), 0);
        usage_table_deinit(&a.own);
        cr_assert_eq(a.all.n, naive.n);
        cr_assert(naive.n == 0 ||
                  memcmp(a.all.rows, naive.rows, naive.n * sizeof(*naive.rows)) == 0);
    }
    usage_table_deinit(&a.all);
    usage_table_deinit(&naive);
    end(&p, false);
}

/* Paths that are no file of an earlier version are neither waited for nor read. */
Test(usage, what_is_no_file_is_told, .init = setup, .fini = teardown) {
    static struct process p;

    cr_assert_eq(mkdir(old_path, 0700), 0);
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EISDIR, "%d %d", n_troubles, trouble);
    count(&p, "k");
    cr_expect_eq(end(&p, false), 0);
    cr_expect(is_there(old_path, ""), "it stays");
    cr_assert_eq(rmdir(old_path), 0);
    cr_assert_eq(symlink("/dev/zero", old_path), 0);
    n_troubles = 0;
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EOPNOTSUPP, "%d %d", n_troubles, trouble);
    cr_expect_eq(end(&p, false), 0);
    cr_expect(is_there(old_path, ""));
    cr_assert_eq(unlink(old_path), 0);
    n_troubles = 0;
    begin(&p); /* without a file */
    cr_expect_eq(n_troubles, 0);
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
}

Test(usage, an_empty_file_is_taken_and_a_huge_one_is_not, .init = setup, .fini = teardown) {
    static struct process p;

    write_file(old_path, "");
    begin(&p);
    end(&p, false);
    cr_expect_eq(n_troubles, 0);
    cr_expect(is_there(old_path, ".imported"));
    write_file(old_path, "");
    cr_assert_eq(truncate(old_path, (64 << 20) + 1), 0);
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EINVAL, "%d %d", n_troubles, trouble);
    end(&p, false);
    cr_expect(is_there(old_path, ".damaged"));
}
