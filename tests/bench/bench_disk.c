/*
 * How long eight pages are waited for that are read behind a state which is being read or written.
 *
 * usage: bench_disk FILE [ROUNDS]
 *
 * Sizes of a 27B model: a state of 150 MiB, pages of 2 MiB. FILE is made and removed. The state
 * alone, then the state and behind it the pages, in each round; what is read is not in the page
 * cache.
 */

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "kvpager/disk_io.h"

#define PAGE (2u << 20)
#define STATE (150u << 20)

static struct disk_thread thread;
static uint8_t *page, *state;

static double seconds(void) {
    return (double)clock_now(clock_monotonic()) * 1e-9;
}

static void give(struct disk_io *io, int what, uint32_t slot, uint8_t *bytes, uint32_t n) {
    static const int32_t tokens[DISK_IO_PAGES * 32];

    *io = (struct disk_io){.what = (uint32_t)what, .n = n, .page_tokens = 32, .tokens = tokens};
    for (uint32_t i = 0; i < n; i++) {
        io->slot[i] = slot + i;
        io->bytes[i] = bytes + (size_t)i * PAGE;
        io->head[i].id = (struct store_id){1, slot + i + 1};
    }
    disk_thread_submit(&thread, io);
}

static struct disk_io *wait_for_one(void) {
    struct pollfd p = {.fd = thread.fd, .events = POLLIN};
    struct disk_io *io;

    while (!(io = disk_thread_receive(&thread))) {
        poll(&p, 1, -1);
        disk_thread_clear(&thread);
    }
    if (io->answer != 0)
        fprintf(stderr, "answer %d\n", io->answer), exit(1);
    return io;
}

int main(int argc, char **argv) {
    struct store_opts o = {
        .n_bytes = 1u << 30, .page_tokens = 32, .page_bytes = PAGE, .state_bytes = STATE};
    struct store *store;
    struct disk_io large, small;
    int rounds = argc > 2 ? atoi(argv[2]) : 5;

    o.fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    page = malloc((size_t)DISK_IO_PAGES * PAGE);
    state = malloc(STATE);
    disk_thread_init(&thread, false);
    if (o.fd < 0 || !page || !state || store_open(&store, &o) < 0 ||
        disk_thread_start(&thread, store) < 0) {
        fprintf(stderr, "usage: bench_disk FILE [ROUNDS]\n");
        return 1;
    }
    memset(page, 1, (size_t)DISK_IO_PAGES * PAGE);
    memset(state, 2, STATE);
    give(&small, IO_WRITE, 0, page, DISK_IO_PAGES);
    wait_for_one();
    printf(
        "ms: a state written alone, pages behind it; read alone, pages behind it; pages alone\n");
    for (int i = 0; i < rounds; i++) {
        double ms[5];

        for (int k = 0; k < 5; k++) {
            if (fdatasync(o.fd) < 0 || posix_fadvise(o.fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
                return 1;
            double begin = seconds();
            if (k < 4)
                give(&large, k < 2 ? IO_WRITE : IO_READ, store_n_slots(store), state, 1);
            if (k % 2 == 1 || k == 4)
                give(&small, IO_READ, 0, page, DISK_IO_PAGES);
            wait_for_one();
            ms[k] = (seconds() - begin) * 1e3;
            if (k % 2 == 1)
                wait_for_one();
        }
        printf("%8.1f %8.1f %8.1f %8.1f %8.1f\n", ms[0], ms[1], ms[2], ms[3], ms[4]);
    }
    disk_thread_stop(&thread);
    disk_thread_deinit(&thread);
    store_free(store);
    close(o.fd);
    unlink(argv[1]);
    return 0;
}
