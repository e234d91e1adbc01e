/* Counts of several processes in one file: no count is lost or counted twice. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "api/limits/usage.h"
#include "api/limits/usage_file.h"

#define ALL 0, 99999999

static char folder[40], path[100];
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
    snprintf(path, sizeof(path), "%s/usage", folder);
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
    struct usage u;
};

static void begin(struct process *p) {
    const struct usage_opts o = {
        .loop = &p->loop, .path = path, .unix_s = clock_of, .trouble = on_trouble};

    uv_loop_init(&p->loop);
    cr_assert_eq(usage_init(&p->u, &o), 0);
    usage_start(&p->u);
}

/* Ends the process; with @dies its unwritten counts are lost. */
static void end(struct process *p, bool dies) {
    uint64_t n_lost;

    usage_close(&p->u);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    if (!dies)
        usage_save(&p->u, &n_lost);
    usage_deinit(&p->u);
    cr_expect_eq(uv_loop_close(&p->loop), 0);
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

/* Another process holds the lock and does not go on: neither the start nor the end waits for it,
 * what is lost is told, and the file is read as soon as the lock is free. */
Test(usage, the_lock_is_not_waited_for, .init = setup, .fini = teardown) {
    struct process p;
    char name[sizeof(path) + sizeof(".lock")];
    uint64_t n_lost;

    begin(&p);
    count(&p, "a");
    end(&p, false);
    snprintf(name, sizeof(name), "%s.lock", path);
    int fd = open(name, O_RDWR);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    begin(&p);
    cr_expect(n_troubles == 1 && trouble == -EBUSY, "%d %d", n_troubles, trouble);
    count(&p, "a");
    usage_close(&p.u);
    uv_run(&p.loop, UV_RUN_DEFAULT);
    cr_expect_eq(usage_save(&p.u, &n_lost), -EBUSY);
    cr_expect_eq(n_lost, 1);
    usage_deinit(&p.u);
    cr_assert_eq(uv_loop_close(&p.loop), 0);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 0);
    close(fd);
    tick(&p); /* without anything to be written */
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
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

Test(usage, a_full_disk_leaves_no_part, .init = setup, .fini = teardown) {
    struct usage_row row = {.date = 20261123, .tenant = "t", .model = "m", .sum = {1}};
    struct usage_table own = {0}, all;
    char part[120];
    bool damaged = false;

    snprintf(part, sizeof(part), "%s.new", path);
    cr_assert_eq(usage_table_add(&own, &row), 0);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4, 4}), 0);
    cr_expect_eq(usage_file_add(path, &own, 20261123, &all, &damaged), -EFBIG);
    cr_expect(access(path, F_OK) < 0 && access(part, F_OK) < 0);
    usage_table_deinit(&own);
}

Test(usage, many_processes_at_once_add_up, .init = setup, .fini = teardown) {
    enum { PROCESSES = 6, ROUNDS = 40 };
    static struct process p;

    for (int i = 0; i < PROCESSES; i++) {
        if (fork() > 0)
            continue;
        for (int k = 0; k < ROUNDS; k++) {
            struct usage_table own = {0}, all = {0};
            struct usage_row row = {.date = 20261123, .tenant = "t", .model = "m", .sum = {1}};
            bool damaged = false;

            snprintf(row.key, sizeof(row.key), "k%d", (i + k) % 3);
            int r = usage_table_add(&own, &row);
            if (r == 0)
                do /* as the product does at its next write */
                    r = usage_file_add(path, &own, 20261123, &all, &damaged);
                while (r == -EBUSY);
            if (r < 0 || damaged)
                _exit(1);
            usage_table_deinit(&own);
            usage_table_deinit(&all);
        }
        _exit(0);
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
    char new_path[120];

    begin(&p);
    snprintf(new_path, sizeof(new_path), "%s.new", path);
    cr_assert_eq(mkdir(new_path, 0700), 0); /* blocks the next version of the file */
    for (int i = 0; i < 3; i++) {
        count(&p, "a");
        tick(&p);
        cr_expect_eq(requests_of(&p.u), (uint64_t)i + 1);
    }
    cr_expect_eq(n_troubles, 1);
    cr_expect_lt(trouble, 0);
    cr_assert_eq(rmdir(new_path), 0);
    count(&p, "a");
    tick(&p);
    end(&p, true);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 4);
    end(&p, false);
}

Test(usage, a_damaged_file_is_put_aside, .init = setup, .fini = teardown) {
    static struct process p;
    char damaged[120];
    FILE *f = fopen(path, "w");

    fputs("weft usage 1\n20261123\tt\ta\tm\t1\t2", f);
    fclose(f);
    begin(&p);
    cr_expect_eq(n_troubles, 1);
    cr_expect_eq(requests_of(&p.u), 0);
    snprintf(damaged, sizeof(damaged), "%s.damaged", path);
    cr_expect_eq(access(damaged, F_OK), 0);
    count(&p, "a");
    end(&p, false);
    begin(&p);
    cr_expect_eq(requests_of(&p.u), 1);
    end(&p, false);
}
