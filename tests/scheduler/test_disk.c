/* The disk tier: a worker finds the pages that another one wrote, under the same isolation key
 * only. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kvpager/disk_io.h"
#include "kvpager/disk_room.h"
#include "kvpager/tier_private.h"
#include "tests/support/sched_sim.h"

#define SLOT 8192u /* bytes of a slot: a block for the head, one for the bytes */
#define PAGES(n) (4096u + (n) * (uint64_t)SLOT)

static struct sim sim;

static void begin(uint64_t disk_bytes) {
    struct sim_opts o = {.n_pages = 24, .n_host_pages = 30, .disk_bytes = disk_bytes};

    sim_init(&sim, &o);
}

static struct sim_client *ask(uint32_t family, uint8_t share) {
    struct sim_client *c = sim_client(&sim, 200, family, 192, 20);

    c->m.isolation_key[0] = share;
    sim_submit(&sim, c, 0);
    sim_run(&sim, 500);
    return c;
}

/* Starts another worker, without the host memory of the old one. */
static void restart(void) {
    sim_restart(&sim);
    sim_run(&sim, 10);
}

Test(disk, a_new_worker_finds_what_the_old_one_wrote) {
    begin(PAGES(100));
    ask(1, 0);
    restart();
    uint64_t rows = sim.seen.n_rows;
    cr_expect_eq(ask(1, 0)->n_cached, 192);
    cr_expect_eq(sim.seen.n_rows - rows, 200 - 192 + 19);
    cr_expect_eq(sim.stats.n_disk_loaded_tokens, 192);
    cr_expect_eq(ask(2, 0)->n_cached, 0);
    cr_expect_eq(sim.n_notes, 0);
    sim_deinit(&sim);
}

/* Another process gets the file while requests run: the file has their pages, and nothing is
 * written later. */
Test(disk, it_is_left_with_what_is_there) {
    begin(PAGES(100));
    struct sim_client *c = sim_client(&sim, 200, 3, 192, 200);
    sim_submit(&sim, c, 0);
    while (c->n_got < 20)
        sim_step(&sim);
    sched_release_disk(sim.sched, INT64_MAX - 1);
    for (uint32_t i = 0; i < 50; i++)
        sim_step(&sim);
    cr_expect(!sched_uses_disk(sim.sched));
    cr_expect_eq(c->n_ends, 0, "it has ended: the test is blind");
    sim_run(&sim, 500);
    ask(4, 0);
    cr_expect_eq(ask(3, 0)->n_cached, 192, "host memory is used on");
    restart();
    cr_expect_eq(ask(3, 0)->n_cached, 192);
    cr_expect_eq(ask(4, 0)->n_cached, 0);
    sim_deinit(&sim);
}

/* Pages that are not written when the time is over are lost, and one line says so. */
Test(disk, it_is_left_in_time) {
    begin(PAGES(100));
    struct sim_client *c = sim_client(&sim, 200, 3, 192, 200);
    sim_submit(&sim, c, 0);
    while (c->n_got < 20)
        sim_step(&sim);
    sched_release_disk(sim.sched, 0);
    sim_step(&sim);
    cr_expect(!sched_uses_disk(sim.sched));
    cr_expect_eq(sim.n_notes, 1);
    sim_run(&sim, 500);
    restart();
    cr_expect_eq(ask(3, 0)->n_cached, 0);
    sim_deinit(&sim);
}

Test(disk, host_memory_that_is_full_is_no_end) {
    begin(PAGES(200));
    for (uint32_t i = 1; i < 8; i++) /* 13 pages each, host memory has 30 */
        ask(i, 0);
    cr_expect_eq(ask(1, 0)->n_cached, 192);
    cr_expect_geq(sim.stats.n_disk_loaded_tokens, 100);
    sim_deinit(&sim);
}

Test(disk, another_share_group_finds_nothing) {
    begin(PAGES(100));
    ask(1, 1);
    restart();
    cr_expect_eq(ask(1, 2)->n_cached, 0);
    cr_expect_eq(ask(1, 1)->n_cached, 192);
    sim_deinit(&sim);
}

Test(disk, at_the_cap_the_least_recently_used_goes) {
    begin(PAGES(30));
    ask(1, 0);
    ask(2, 0);
    restart();
    cr_expect_eq(ask(1, 0)->n_cached, 192); /* now 2 is older */
    ask(3, 0);
    restart();
    cr_expect_eq(ask(3, 0)->n_cached, 192);
    cr_expect_eq(ask(1, 0)->n_cached, 192);
    cr_expect_lt(ask(2, 0)->n_cached, 192);
    cr_expect_leq(sim.stats.n_disk_used, 30);
    sim_deinit(&sim);
}

static void damage(uint64_t at) {
    uint8_t b;
    int fd = sim.opts.sched.disk.fd;

    cr_assert_eq(pread(fd, &b, 1, (off_t)at), 1);
    b ^= 0x10;
    cr_assert_eq(pwrite(fd, &b, 1, (off_t)at), 1);
}

/* The sixth written page is damaged: five come back, one line is logged, and the text is right. */
Test(disk, a_damaged_page_is_computed_again) {
    begin(PAGES(100));
    ask(1, 0);
    sim.sched = sched_free(sim.sched);
    damage(PAGES(5) + 4096 + 33);
    restart();
    cr_expect_eq(sim.n_notes, 0);
    cr_expect_eq(ask(1, 0)->n_cached, 5 * 16);
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_eq(sim.stats.n_disk_bad, 1);
    restart(); /* the page was written again */
    cr_expect_eq(ask(1, 0)->n_cached, 192);
    cr_expect_eq(sim.n_notes, 1);
    sim_deinit(&sim);
}

Test(disk, behind_a_damaged_head_nothing_is_found) {
    begin(PAGES(100));
    ask(1, 0);
    sim.sched = sched_free(sim.sched);
    damage(PAGES(3) + 40);
    restart();
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_eq(ask(1, 0)->n_cached, 3 * 16);
    sim_deinit(&sim);
}

Test(disk, another_identity_begins_anew) {
    begin(PAGES(100));
    ask(1, 0);
    sim.opts.sched.disk.identity[31] = 1;
    restart();
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_eq(ask(1, 0)->n_cached, 0);
    sim_deinit(&sim);
}

/* A request that waits for the disk may be cancelled, and later requests do not wait for it. */
Test(disk, a_request_that_waits_for_it_can_be_cancelled) {
    begin(PAGES(100));
    ask(1, 0);
    restart();
    struct sim_client *c = sim_client(&sim, 200, 1, 192, 20);
    struct sim_client *other = sim_client(&sim, 20, 2, 0, 20);
    sim_submit(&sim, c, 0);
    cr_expect((*sched_slot(sim.sched, c->m.id))->loading);
    sim_cancel(&sim, c);
    sim_submit(&sim, other, 0);
    sim_run(&sim, 500);
    cr_expect_eq(other->finish, FINISH_LENGTH);
    cr_expect_eq(ask(1, 0)->n_cached, 192);
    sim_deinit(&sim);
}

/* If nothing more can be written, one line is logged. */
Test(disk, when_it_cannot_be_written_all_goes_on) {
    begin(PAGES(100));
    sim_run(&sim, 10);
    int full = open("/dev/full", O_RDWR), fd = sim.opts.sched.disk.fd;
    int keep = dup(fd);
    if (full < 0)
        cr_skip_test("there is no /dev/full");
    cr_assert_eq(dup2(full, fd), fd);
    for (uint32_t i = 1; i < 5; i++)
        ask(i, 0);
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, 0);
    cr_assert_eq(dup2(keep, fd), fd);
    close(full);
    close(keep);
    sim_deinit(&sim);
}

static void limit_file(uint64_t n_bytes) {
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){n_bytes, RLIM_INFINITY}), 0);
}

static void pass(int64_t s) {
    sim.clock.ns += s * 1000000000;
    sim_run(&sim, 10);
}

/* If the file cannot grow, the least recently used prefixes are overwritten; later the worker tries
 * again to grow it. */
Test(disk, a_full_file_system_is_used_on) {
    begin(PAGES(100));
    ask(1, 0); /* 12 pages */
    limit_file(PAGES(30) + 4100);
    for (uint32_t i = 2; i < 6; i++)
        ask(i, 0);
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_eq(sim.stats.n_disk_pages, 30);
    cr_expect_geq(sim.stats.n_disk_used, 25);
    limit_file(UINT64_MAX);
    restart();
    cr_expect_eq(ask(5, 0)->n_cached, 192);
    cr_expect_eq(ask(4, 0)->n_cached, 192);
    cr_expect_lt(ask(1, 0)->n_cached, 192);
    cr_expect_eq(sim.n_notes, 1);
    sim_deinit(&sim);
}

Test(disk, when_there_is_room_again_it_grows_again) {
    begin(PAGES(100));
    limit_file(PAGES(15));
    ask(1, 0);
    ask(2, 0);
    cr_expect_eq(sim.stats.n_disk_pages, 15);
    limit_file(UINT64_MAX);
    ask(3, 0);
    cr_expect_eq(sim.stats.n_disk_pages, 15);
    pass(70);
    for (uint32_t i = 4; i < 7; i++)
        ask(i, 0);
    cr_expect_eq(sim.stats.n_disk_pages, 100);
    cr_expect_geq(sim.stats.n_disk_used, 40);
    cr_expect_eq(sim.n_notes, 1);
    sim_deinit(&sim);
}

/* A disk to which writing fails is tried again after a while, not at each page. */
Test(disk, a_broken_disk_is_tried_again_later) {
    begin(PAGES(100));
    sim_run(&sim, 10);
    int null = open("/dev/null", O_RDONLY), fd = sim.opts.sched.disk.fd;
    int keep = dup(fd);
    cr_assert_eq(dup2(null, fd), fd); /* -EBADF */
    ask(1, 0);
    cr_assert_eq(dup2(keep, fd), fd);
    ask(2, 0);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, 0);
    pass(70);
    ask(3, 0);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, 208);
    cr_expect_eq(sim.n_notes, 1);
    close(null);
    close(keep);
    sim_deinit(&sim);
}

/* limit of 20 pages an hour */
Test(disk, what_is_written_in_a_day_is_bounded) {
    struct sim_opts o = {.n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(200)};

    o.sched.disk.daily_bytes = 24 * 20 * (uint64_t)SLOT;
    sim_init(&sim, &o);
    for (uint32_t i = 1; i < 6; i++)
        ask(i, 0);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, 20 * 16);
    pass(1800);
    for (uint32_t i = 6; i < 9; i++)
        ask(i, 0);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, 30 * 16);
    pass(86400);
    for (uint32_t i = 9; i < 13; i++)
        ask(i, 0);
    cr_expect_eq(sim.stats.n_disk_saved_tokens,
                 50 * 16); /* an unused limit is not kept for later */
    sim_deinit(&sim);
}

Test(disk, what_is_faster_computed_is_not_read) {
    struct sim_opts o = {.n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(100), .row_ns = 1};

    o.machine.copy_ns = 50000000;
    sim_init(&sim, &o);
    ask(1, 0);
    restart();
    ask(2, 0); /* learns the time of reading */
    cr_expect_eq(ask(1, 0)->n_cached, 0);
    cr_expect_eq(sim.stats.n_disk_left_tokens, 192);
    sim_deinit(&sim);
}

/* Like ask(), but with a thread, for which the simulation's clock does not wait. */
static struct sim_client *ask_and_wait(uint32_t family) {
    struct sim_client *c = sim_client(&sim, 200, family, 192, 20);

    sim_submit(&sim, c, 0);
    while (c->n_ends == 0)
        if (sim_step(&sim) == SCHED_NO_STEP)
            disk_sleep(sim.sched->tier->offload.disk, 1000);
    sched_flush(sim.sched, INT64_MAX);
    return c;
}

Test(disk, a_thread_reads_and_writes_it) {
    struct sim_opts o = {
        .n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(60), .disk_thread = true};

    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 12; i++)
        ask_and_wait(i % 5);
    cr_expect_geq(sim.stats.n_disk_loaded_tokens, 100);
    sim_restart(&sim);
    cr_expect_eq(ask_and_wait(1)->n_cached, 192);
    cr_expect_geq(sim.stats.n_disk_loaded_tokens, 192);
    cr_expect_eq(sim.n_notes, 0);
    sim_deinit(&sim);
}

/* The time of a disk that was slow for a while is forgotten while prefixes are left in the file. */
Test(disk, what_is_left_lets_the_time_of_reading_be_forgotten) {
    struct sim_opts o = {.n_pages = 24,
                         .n_host_pages = 30,
                         .disk_bytes = PAGES(100),
                         .row_ns = 1,
                         .disk_thread = true};

    o.machine.copy_ns = 50000000;
    sim_init(&sim, &o);
    for (uint32_t i = 0; i < 3; i++)
        ask_and_wait(i);
    sim_restart(&sim);
    const struct disk *d = sim.sched->tier->offload.disk;
    double first = disk_read_ns(d, 1);
    ask_and_wait(0);
    double measured = disk_read_ns(d, 1);
    cr_assert_gt(measured, first);
    cr_expect_eq(ask_and_wait(1)->n_cached, 0);
    cr_expect_eq(sim.stats.n_disk_left_tokens, 192);
    cr_expect_lt(disk_read_ns(d, 1), measured);
    cr_expect_gt(disk_read_ns(d, 1), first);
    sim_deinit(&sim);
}

/* A request that waits for pages when the file is left is computed: each token that was in the file
 * is either found or counted. */
Test(disk, what_waits_for_it_goes_on_without) {
    struct sim_opts o = {
        .n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(60), .disk_thread = true};

    sim_init(&sim, &o);
    ask_and_wait(1);
    sim_restart(&sim);
    struct sim_client *c = sim_client(&sim, 200, 1, 192, 20);
    sim_submit(&sim, c, 0);
    sched_release_disk(sim.sched, 0);
    sim_run(&sim, 500);
    cr_expect_eq(c->n_ends, 1);
    cr_expect_eq(c->n_cached + sim.stats.n_disk_left_tokens + sim.stats.n_left_tokens, 192);
    cr_expect(!sched_uses_disk(sim.sched));
    sched_use_disk(sim.sched);
    cr_expect(sched_uses_disk(sim.sched));
    cr_expect_eq(sim.n_notes, 0);
    sim_deinit(&sim);
}

/* The clock passes the longest wait while the thread reads: what it has read is used, and the other
 * tokens are counted. */
Test(disk, what_is_not_read_in_time_is_computed) {
    struct sim_opts o = {
        .n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(60), .disk_thread = true};

    sim_init(&sim, &o);
    ask_and_wait(1);
    sim_restart(&sim);
    struct sim_client *c = sim_client(&sim, 200, 1, 192, 20);
    sim_submit(&sim, c, 0);
    cr_assert_geq(sim_step(&sim), 0);
    sim.clock.ns += 3000000000;
    sim_run(&sim, 500);
    cr_expect_eq(c->n_ends, 1);
    cr_expect_eq(c->n_cached + sim.stats.n_disk_left_tokens + sim.stats.n_left_tokens, 192);
    sim_deinit(&sim);
}

/* A worker that ends while files are read and written damages nothing. */
Test(disk, an_end_in_between_is_no_harm) {
    for (uint32_t k = 0; k < 30; k++) {
        struct sim_opts o = {
            .n_pages = 24, .n_host_pages = 30, .disk_bytes = PAGES(60), .disk_thread = true};

        sim_init(&sim, &o);
        ask_and_wait(1);
        sim_restart(&sim);
        sim_submit(&sim, sim_client(&sim, 200, 1, 192, 20), 0);
        sim_submit(&sim, sim_client(&sim, 200, 2, 192, 20), 0);
        for (uint32_t i = 0; i < k; i++)
            cr_assert_geq(sim_step(&sim), 0);
        if (k % 3 == 0)
            sim_cancel(&sim, &sim.client[1]);
        sim_restart(&sim);
        ask_and_wait(1);
        while (!sim_all_ended(&sim))
            if (sim_step(&sim) == SCHED_NO_STEP)
                disk_sleep(sim.sched->tier->offload.disk, 1000);
        cr_expect_eq(sim.n_notes, 0);
        sim_deinit(&sim);
    }
}

/* The thread works on jobs in turn: a page requested after a state is read before it. */
Test(disk, a_page_does_not_wait_for_a_state) {
    enum { PAGE = 5000, STATE = 40 * PAGE + 7 };
    static uint8_t written[2][STATE], got[2][STATE];
    static const int32_t tokens[16];
    struct disk_io io[2] = {{.what = IO_WRITE}, {.what = IO_WRITE}};
    CLEANUP(store_freep) struct store *store = NULL;
    struct disk_thread t;
    struct store_opts o = {.fd = memfd_create("test_disk", MFD_CLOEXEC),
                           .n_bytes = 4 << 20,
                           .page_tokens = 16,
                           .page_bytes = PAGE,
                           .state_bytes = STATE};

    cr_assert_geq(store_open(&store, &o), 0);
    for (uint32_t i = 0; i < STATE; i++)
        written[0][i] = (uint8_t)(i * 7), written[1][i] = (uint8_t)(i / 3);
    for (int pass = 0; pass < 2; pass++) {
        disk_thread_init(&t, false);
        for (uint32_t i = 0; i < 2; i++) {
            io[i].n = 1;
            io[i].tokens = tokens;
            io[i].slot[0] = i == 0 ? store_n_slots(store) : 3;
            io[i].head[0].id = (struct store_id){1, i + 1};
            io[i].bytes[0] = pass == 0 ? written[i] : got[i];
            disk_thread_submit(&t, &io[i]);
        }
        cr_assert_eq(disk_thread_start(&t, store), 0);
        disk_thread_stop(&t);
        cr_expect_eq(disk_thread_receive(&t), &io[1], "%d", pass);
        cr_expect_eq(disk_thread_receive(&t), &io[0], "%d", pass);
        cr_expect_eq(disk_thread_receive(&t), NULL);
        disk_thread_deinit(&t);
        for (uint32_t i = 0; i < 2; i++) {
            cr_expect(io[i].answer == 0 && io[i].n_done == 1 && io[i].ns > 0, "%u", i);
            io[i].what = IO_READ;
        }
    }
    cr_expect_eq(memcmp(got[0], written[0], STATE), 0);
    cr_expect_eq(memcmp(got[1], written[1], PAGE), 0);
    close(o.fd);
}

/* ---- models with recurrent states ---- */

/* bytes of a file of this many pages, each with a state */
#define STATES(n) (4096u + (n) * (uint64_t)(2 * SLOT))
/* position of the snapshot in prompts of families 4 and 8, after 11 pages; answers have one after
 * 13. */
#define CUT 176u

static void begin_with_states(uint32_t n_snapshots, uint64_t disk_bytes) {
    struct sim_opts o = {.n_pages = 24,
                         .n_host_pages = 30,
                         .n_states = 4,
                         .n_snapshots = n_snapshots,
                         .disk_bytes = disk_bytes};

    sim_init(&sim, &o);
}

Test(disk, a_prefix_comes_back_with_the_state_behind_it) {
    begin_with_states(8, STATES(100));
    cr_expect_eq(ask(4, 0)->n_cached, 0);
    cr_expect_eq(sim.stats.n_disk_saved_snapshots, 2);
    restart();
    uint64_t rows = sim.seen.n_rows;
    cr_expect_eq(ask(4, 0)->n_cached, CUT);
    cr_expect_eq(sim.seen.n_rows - rows, 200 - CUT + 19);
    cr_expect_eq(sim.stats.n_disk_loaded_tokens, CUT);
    cr_expect_eq(sim.stats.n_disk_loaded_snapshots, 1);
    cr_expect_geq(sim.stats.n_disk_snapshots, 2);
    cr_expect_eq(ask(8, 0)->n_cached, 0);
    restart();
    cr_expect_eq(ask(4, 1)->n_cached, 0);
    cr_expect_eq(sim.n_notes, 0);
    sim_deinit(&sim);
}

/* The pages are in host memory, and the room of their snapshots there was given to others. */
Test(disk, a_state_comes_back_alone) {
    begin_with_states(2, STATES(100));
    ask(4, 0);
    ask(8, 0);
    cr_expect_eq(ask(4, 0)->n_cached, CUT);
    cr_expect_eq(sim.stats.n_disk_loaded_snapshots, 1);
    cr_expect_eq(sim.stats.n_disk_loaded_tokens, 0);
    sim_deinit(&sim);
}

/* Damages a state's bytes, its head, or a page before it: one line is logged, and the missing part
 * is computed and written again. */
Test(disk, a_damaged_state_is_computed_again) {
    const uint64_t at[] = {4096 + 4096 + 3, 4096 + 40, 4096 + 5 * 2 * SLOT + SLOT + 4096 + 33};

    for (uint32_t i = 0; i < 3; i++) {
        begin_with_states(8, STATES(100));
        ask(4, 0);
        sim.sched = sched_free(sim.sched);
        damage(at[i]);
        restart();
        cr_expect_eq(ask(4, 0)->n_cached, 0, "%u", i);
        cr_expect_eq(sim.n_notes, 1, "%u", i);
        cr_expect_eq(sim.stats.n_disk_bad, 1, "%u", i);
        restart();
        cr_expect_eq(ask(4, 0)->n_cached, CUT, "%u", i);
        cr_expect_eq(sim.n_notes, 1, "%u", i);
        sim_deinit(&sim);
    }
}

/* Finds the states of the file: @behind: numbers of tokens before them, ascending; @at: their
 * offsets. Returns their number. */
static uint32_t find_states(uint32_t *behind, uint64_t *at, uint32_t max) {
    struct {
        uint64_t magic, sums[3], ids[4], isolation[2];
        uint32_t depth, unused[3], n_tokens;
    } h; /* the beginning of a slot's head (kvpager/store.c) */
    uint32_t n = 0;

    for (uint64_t i = 4096; pread(sim.opts.sched.disk.fd, &h, sizeof(h), (off_t)i) == sizeof(h);
         i += 4096) {
        if (h.magic != UINT64_C(0x3330564B74666577) || h.n_tokens != 0)
            continue;
        uint32_t k = n++;
        cr_assert_lt(n, max);
        for (; k > 0 && behind[k - 1] > (h.depth + 1) * 16; k--)
            behind[k] = behind[k - 1], at[k] = at[k - 1];
        behind[k] = (h.depth + 1) * 16;
        at[k] = i;
    }
    return n;
}

/* The last state of a session, the last two, or a page before the last is damaged: the next turn
 * begins at the state before, also if two requests read the damaged state at the same time. */
Test(disk, behind_a_damaged_state_the_one_before_is_used) {
    for (uint32_t k = 0; k < 5; k++) {
        struct sim_opts o = {.n_pages = 60,
                             .n_host_pages = 60,
                             .n_states = 4,
                             .n_snapshots = 30,
                             .max_context = 1024,
                             .disk_bytes = STATES(100)};
        uint32_t behind[100], n;
        uint64_t at[100];

        sim_init(&sim, &o);
        struct sim_client *c = ask(1, 0);
        for (uint32_t i = 0; i < 4; i++) {
            c = sim_client_after(&sim, c, 20, 12);
            sim_submit(&sim, c, 0);
            sim_run(&sim, 500);
        }
        struct sim_client *next = sim_client_after(&sim, c, 20, 12);
        struct sim_client *other = k == 4 ? sim_client_after(&sim, c, 30, 12) : NULL;
        sim.sched = sched_free(sim.sched);
        n = find_states(behind, at, 100);
        while (behind[n - 1] >= next->m.n_prompt)
            n--;
        cr_assert_geq(n, 3);
        uint64_t page =
            /* the slots of group 0 and of the next ones, in order */
            PAGES(0) + behind[n - 1] / 16 * 2 * SLOT - SLOT;
        uint32_t lost = k < 3 ? k : 1;
        for (uint32_t i = 1; i <= lost && k != 3; i++)
            damage(at[n - i] + 4096 + 3);
        if (k == 3)
            damage(page + 4096 + 3);
        restart();
        sim_submit(&sim, next, 0);
        if (other)
            sim_submit(&sim, other, 0);
        sim_run(&sim, 500);
        cr_expect_eq(next->n_cached, behind[n - 1 - lost], "%u: %u, not %u", k, next->n_cached,
                     behind[n - 1 - lost]);
        cr_expect(!other || other->n_cached == next->n_cached);
        cr_expect_eq(sim.stats.n_disk_bad, other ? 2 : lost, "%u", k);
        cr_expect_geq(sim.stats.n_disk_loaded_snapshots, 1, "%u", k);
        sim_deinit(&sim);
    }
}

Test(disk, at_the_cap_states_go_with_their_pages) {
    begin_with_states(8, STATES(30));
    for (uint32_t i = 1; i < 8; i++)
        ask(i, 0);
    restart();
    cr_expect_eq(ask(7, 0)->n_cached, CUT);
    cr_expect_eq(ask(6, 0)->n_cached, CUT);
    cr_expect_eq(ask(1, 0)->n_cached, 0);
    cr_expect_leq(sim.stats.n_disk_used, 30);
    cr_expect_leq(sim.stats.n_disk_snapshots, 9); /* three for each request */
    sim_deinit(&sim);
}

/* Turns of one session: each makes a snapshot, more than the file has room for. */
Test(disk, states_of_a_long_chain_are_thinned_out) {
    struct sim_opts o = {.n_pages = 60,
                         .n_host_pages = 60,
                         .n_states = 4,
                         .n_snapshots = 30,
                         .max_context = 1024,
                         .disk_bytes = 4096 + 60 * SLOT}; /* 30 states and as many pages */

    sim_init(&sim, &o);
    struct sim_client *c = ask(1, 0);
    for (uint32_t i = 0; i < 5; i++) {
        c = sim_client_after(&sim, c, 20, 12);
        sim_submit(&sim, c, 0);
        sim_run(&sim, 500);
    }
    cr_expect_geq(sim.stats.n_disk_snapshots, 4);
    restart();
    struct sim_client *again = sim_client_after(&sim, c, 20, 12);
    sim_submit(&sim, again, 0);
    sim_run(&sim, 500);
    cr_expect_geq(again->n_cached, c->m.n_prompt - 16 - 16, "%u of %u", again->n_cached,
                  c->m.n_prompt);
    sim_deinit(&sim);
}

/* If the file cannot grow, existing states are overwritten; later the worker tries again to grow
 * it. */
Test(disk, states_in_a_full_file_system) {
    begin_with_states(8, STATES(100));
    ask(1, 0);
    ask(2, 0);
    limit_file(STATES(24) + SLOT);
    for (uint32_t i = 3; i < 7; i++)
        ask(i, 0);
    cr_expect_eq(sim.n_notes, 1);
    cr_expect_geq(sim.stats.n_disk_snapshots, 1);
    limit_file(UINT64_MAX);
    pass(70);
    ask(7, 0);
    restart();
    cr_expect_eq(ask(7, 0)->n_cached, CUT);
    cr_expect_eq(sim.n_notes, 1);
    sim_deinit(&sim);
}

Test(disk, withheld_pages_take_few_sequences) {
    cr_expect_eq(disk_room_seqs(640, 16, 64), 160 + 1);
    cr_expect_eq(disk_room_seqs(641, 16, 640), 16 + 1);
    cr_expect_eq(disk_room_seqs(3, 16, 8), 3 + 1, "a sequence has a page at least");
}

/* A state that was never written has no space in the file. As long as there is none, the slots of
 * other states are used, and free slots are withheld. */
Test(disk, slots_of_states_without_room_are_withheld) {
    const struct kv_opts k = {
        .n_pages = 9, .page_tokens = 16, .max_seqs = 9, .max_seq_tokens = 64, .n_snapshots = 4};
    const struct kv_isolation share = {{0}};
    struct disk_room_opts o = {
        .n_slots = 9, .n_states = 4, .page_tokens = 16, .max_seq_tokens = 64};
    static int32_t tokens[16];
    struct clock_virtual clock;
    struct disk_room room;

    clock_virtual_init(&clock, 1);
    cr_assert_eq(kv_pager_new(&o.slots, &k), 0);
    o.clock = &clock.clock;
    cr_assert_eq(disk_room_init(&room, &o), 0);
    cr_assert_eq(kv_pager_restore(o.slots, 0, KV_NO_PAGE, &share, tokens), 0);
    cr_expect(!disk_room_failed(&room, 9 + 1, -ENOSPC), "there is none to be overwritten");
    cr_expect_eq(kv_snapshot_untaken(o.slots), 0);
    clock.ns += INT64_C(70000000000);
    cr_expect_eq(disk_room_for(&room, 1, 100), 1);
    cr_expect_eq(kv_snapshot_untaken(o.slots), 4);
    cr_assert_eq(kv_pager_restore_snapshot(o.slots, 2, 0), 0);
    disk_room_written(&room, 9 + 2);
    cr_expect(disk_room_failed(&room, 9 + 1, -ENOSPC));
    cr_expect_eq(disk_room_withheld(&room), 0, "pages have room");
    cr_expect_eq(kv_snapshot_untaken(o.slots), 1);
    cr_expect_eq(kv_snapshot_acquire(o.slots, NULL), 2);
    cr_expect(!disk_room_failed(&room, 9 + 2, -ENOSPC), "it has its room: the disk is broken");
    cr_expect_eq(disk_room_for(&room, 1, 100), 0);
    kv_snapshot_free(o.slots, 2);
    disk_room_deinit(&room);
    cr_expect_eq(kv_snapshot_untaken(o.slots), 4);
    kv_pager_free(o.slots);
}

/* limit of 20 slots an hour, of pages and states */
Test(disk, states_count_as_written) {
    struct sim_opts o = {.n_pages = 24,
                         .n_host_pages = 30,
                         .n_states = 4,
                         .n_snapshots = 8,
                         .disk_bytes = STATES(99)};

    o.sched.disk.daily_bytes = 24 * 20 * (uint64_t)SLOT;
    sim_init(&sim, &o);
    ask(4, 0);
    ask(8, 0);
    cr_expect_eq(sim.stats.n_disk_saved_snapshots, 2);
    cr_expect_eq(sim.stats.n_disk_saved_tokens, (20 - 2) * 16);
    sim_deinit(&sim);
}

/* Workers end while a thread reads and writes. */
Test(disk, with_states_an_end_in_between_is_no_harm) {
    for (uint32_t k = 0; k < 30; k++) {
        struct sim_opts o = {.n_pages = 24,
                             .n_host_pages = 30,
                             .n_states = 4,
                             .n_snapshots = 1 + k % 5,
                             .disk_bytes = STATES(40),
                             .disk_thread = true};

        sim_init(&sim, &o);
        ask_and_wait(4);
        sim_restart(&sim);
        sim_submit(&sim, sim_client(&sim, 200, 4, 192, 20), 0);
        sim_submit(&sim, sim_client(&sim, 200, 8, 192, 20), 0);
        for (uint32_t i = 0; i < k; i++)
            cr_assert_geq(sim_step(&sim), 0);
        if (k % 3 == 0)
            sim_cancel(&sim, &sim.client[1]);
        sim_restart(&sim);
        /* With room for one snapshot, that of an answer soon replaces the prompt's before it is in
         * the file; with room for two, those of the two answers, and then there is no room for
         * reading. */
        const struct sim_client *c = ask_and_wait(4);
        const struct kv_isolation all = {{0}};
        uint32_t n = disk_has(sim.sched->tier->offload.disk, &all, c->tokens, CUT);
        cr_expect(n == CUT || (n == 0 && o.n_snapshots == 1), "%u in the file, round %u", n, k);
        n = c->n_cached;
        cr_expect(n == CUT || (n == 0 && o.n_snapshots <= 2), "%u of round %u", n, k);
        while (!sim_all_ended(&sim))
            if (sim_step(&sim) == SCHED_NO_STEP)
                disk_sleep(sim.sched->tier->offload.disk, 1000);
        cr_expect_eq(sim.n_notes, 0);
        sim_deinit(&sim);
    }
}
