/* Work on files that hang: FIFOs without a writer, which open() waits for. */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/workers/file_work.h"

struct task {
    struct file_work work;
    /* NULL: the work does not hang */
    const char *fifo;
    bool done;
};

static uv_loop_t loop;
static pthread_t loop_thread;
static atomic_uint n_hang;
static char dir[] = "/tmp/weft-files-XXXXXX", fifo[64];

static void run(struct file_work *w) {
    struct task *t = CONTAINER_OF(w, struct task, work);

    cr_assert(!pthread_equal(pthread_self(), loop_thread));
    if (!t->fifo)
        return;
    atomic_fetch_add(&n_hang, 1);
    int fd = open(t->fifo, O_RDONLY);
    atomic_fetch_sub(&n_hang, 1);
    close(fd);
}

static void done(struct file_work *w) {
    struct task *t = CONTAINER_OF(w, struct task, work);

    cr_assert(pthread_equal(pthread_self(), loop_thread));
    cr_assert(!t->done, "told twice");
    t->done = true;
}

static void begin(void) {
    cr_assert(mkdtemp(dir));
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    loop_thread = pthread_self();
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(file_work_start(), 0);
}

static void submit(struct task *t, enum file_kind kind, const char *model, bool hangs) {
    *t = (struct task){.fifo = hangs ? fifo : NULL};
    t->work = (struct file_work){.run = run, .done = done, .kind = kind};
    if (kind == FILE_MODEL)
        t->work.folder = file_work_folder(model);
    file_work_submit(&t->work, &loop);
}

/* Runs the loop until @n tasks hang. */
static void wait_for_hanging(uint32_t n) {
    for (int patience = 50000; atomic_load(&n_hang) != n; patience--) {
        cr_assert(patience > 0, "%u hang", atomic_load(&n_hang));
        uv_run(&loop, UV_RUN_NOWAIT);
        usleep(100);
    }
}

static void wait_for(const struct task *t) {
    for (int patience = 50000; !t->done; patience--) {
        cr_assert(patience > 0, "work waits behind files that hang");
        uv_run(&loop, UV_RUN_NOWAIT);
        usleep(100);
    }
}

/* Lets all work end: each open of the writer's end releases those that wait now. */
static void end(void) {
    while (uv_run(&loop, UV_RUN_NOWAIT)) {
        int fd = open(fifo, O_WRONLY | O_NONBLOCK);

        usleep(200);
        if (fd >= 0)
            close(fd);
    }
    cr_expect_eq(uv_loop_close(&loop), 0);
    unlink(fifo);
    rmdir(dir);
}

static void check_other_kinds(void) {
    for (uint32_t kind = 0; kind < FILE_KINDS; kind++) {
        struct task t;

        if (kind == FILE_MODEL)
            continue;
        submit(&t, (enum file_kind)kind, NULL, false);
        wait_for(&t);
    }
}

Test(file_work, models_of_a_dead_mount_delay_no_other_folder_and_no_other_work) {
    struct task dead[40], other;

    begin();
    for (int i = 0; i < 40; i++)
        submit(&dead[i], FILE_MODEL, "/mnt/dead/m.gguf", true);
    wait_for_hanging(FILE_FOLDER_THREADS);
    submit(&other, FILE_MODEL, "/mnt/other/m.gguf", false);
    wait_for(&other);
    check_other_kinds();
    cr_expect_eq(atomic_load(&n_hang), FILE_FOLDER_THREADS);
    end();
    for (int i = 0; i < 40; i++)
        cr_expect(dead[i].done);
}

Test(file_work, however_many_folders_hang_the_configuration_is_read) {
    struct task dead[40];
    char model[32];

    begin();
    for (int i = 0; i < 40; i++) {
        snprintf(model, sizeof(model), "/mnt/%d/m.gguf", i);
        submit(&dead[i], FILE_MODEL, model, true);
    }
    wait_for_hanging(FILE_MODEL_THREADS);
    check_other_kinds();
    cr_expect_eq(atomic_load(&n_hang), FILE_MODEL_THREADS);
    end();
    for (int i = 0; i < 40; i++)
        cr_expect(dead[i].done);
}

Test(file_work, a_kind_that_hangs_delays_only_itself) {
    struct task dead[3], model;

    begin();
    for (int i = 0; i < 3; i++)
        submit(&dead[i], FILE_SCAN, NULL, true);
    wait_for_hanging(1);
    submit(&model, FILE_MODEL, "m.gguf", false);
    wait_for(&model);
    cr_expect_eq(atomic_load(&n_hang), 1u);
    end();
    for (int i = 0; i < 3; i++)
        cr_expect(dead[i].done);
}

Test(file_work, a_folder_is_all_before_the_last_slash) {
    cr_expect_eq(file_work_folder("/a/b/c"), file_work_folder("/a/b/d.gguf"));
    cr_expect_neq(file_work_folder("/a/b/c"), file_work_folder("/a/c/c"));
    cr_expect_neq(file_work_folder("/a/b"), file_work_folder("/a/b/c"));
    cr_expect_eq(file_work_folder("a"), file_work_folder("b"));
}
