#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/chan.h"
#include "base/loop_bytes.h"
#include "base/rng.h"

static struct chan a, b;
static int raw;

static void setup(void) {
    int fd[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    chan_init(&a, fd[0], 1 << 20, 4 << 20);
    chan_init(&b, fd[1], 1 << 20, 4 << 20);
    raw = fd[0];
}

static void teardown(void) {
    chan_deinit(&a);
    chan_deinit(&b);
}

TestSuite(chan, .init = setup, .fini = teardown, .timeout = 20);

static size_t n_moved;

static void count_moved(size_t bytes, size_t items) {
    n_moved += bytes;
}

Test(chan, what_waits_is_not_moved_with_every_write) {
    static unsigned char data[1 << 20];
    struct chan_frame f;
    size_t n_sent = 0, n_read = 0;

    for (; n_sent < 3 && chan_send(&a, 1, data, sizeof(data)) == 0; n_sent++) {
    }
    cr_assert_eq(n_sent, 3);
    loop_watch = count_moved;
    for (int i = 0; i < 100000 && n_read < n_sent; i++) {
        cr_assert_eq(chan_flush(&a), 0); /* writes and moves */
        loop_watch = NULL;
        n_read += chan_recv(&b, &f) == 0;
        loop_watch = count_moved;
    }
    cr_expect_eq(n_read, n_sent);
    cr_expect_lt(n_moved, 2 * n_sent * sizeof(data), "%zu bytes", n_moved);
}

Test(chan, frames_of_every_size_arrive_whole_and_in_order) {
    static unsigned char data[300000];
    struct chan_frame f;
    struct rng r = {1};
    uint32_t sent = 0, got = 0;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)rng_next(&r);
    while (got < 500) {
        if (sent < 500) {
            uint32_t len = sent * 601 % 300000;
            int rc = chan_send(&a, (uint16_t)sent, data, len);

            cr_assert_geq(rc, 0);
            sent += rc == 0;
        }
        chan_flush(&a);
        while (chan_recv(&b, &f) == 0) {
            cr_assert_eq(f.type, got);
            cr_assert_eq(f.len, got * 601 % 300000);
            cr_assert_eq((uintptr_t)f.data % 8, 0);
            cr_assert_eq(memcmp(f.data, data, f.len), 0);
            got++;
        }
    }
}

Test(chan, a_full_queue_refuses_and_takes_nothing) {
    static char data[100000];
    struct chan_frame f;
    int n = 0, got = 0;

    while (chan_send(&a, 1, data, sizeof(data)) == 0)
        n++;
    cr_expect_gt(n, 40);
    cr_expect(chan_wants_write(&a));
    while (got < n) {
        chan_flush(&a);
        got += chan_recv(&b, &f) == 0;
    }
    cr_expect_eq(chan_recv(&b, &f), CHAN_EMPTY);
    cr_expect_eq(chan_send(&a, 1, data, sizeof(data)), 0);
}

Test(chan, a_frame_over_the_limit_kills_the_channel) {
    uint32_t header[2] = {2 << 20, 1};
    struct chan_frame f;

    cr_assert_eq(write(raw, header, 8), 8);
    cr_expect_eq(chan_recv(&b, &f), -EPROTO);
    cr_expect_eq(chan_send(&b, 1, "x", 1), -EPROTO);
}

Test(chan, what_was_sent_before_the_peer_died_is_still_read) {
    struct chan_frame f;

    cr_assert_eq(chan_send(&a, 3, "last", 4), 0);
    chan_deinit(&a);
    cr_expect_eq(chan_wait(&b, 1000), 0);
    cr_assert_eq(chan_recv(&b, &f), 0);
    cr_expect_arr_eq(f.data, "last", 4);
    cr_expect_eq(chan_recv(&b, &f), -EPIPE);
}

Test(chan, a_peer_that_leaves_frames_unread_has_closed_too) {
    struct chan_frame f;

    cr_assert_eq(chan_send(&a, 3, "last", 4), 0);
    cr_assert_eq(chan_send(&b, 1, "unread", 6), 0);
    chan_deinit(&a);
    cr_assert_eq(chan_recv(&b, &f), 0);
    cr_expect_arr_eq(f.data, "last", 4);
    cr_expect_eq(chan_recv(&b, &f), -EPIPE);
}

Test(chan, a_wait_without_a_limit_ends_when_there_are_bytes) {
    struct chan_frame f;

    cr_assert_eq(chan_send(&a, 3, "x", 1), 0);
    cr_expect_eq(chan_wait(&b, -1), 0);
    cr_expect_eq(chan_recv(&b, &f), 0);
}

Test(chan, an_error_of_the_descriptor_ends_it) {
    struct chan_frame f;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    cr_assert_eq(dup2(fd, b.fd), b.fd);
    close(fd);
    cr_expect_eq(chan_recv(&b, &f), -ENOTSOCK);
    cr_expect_eq(chan_send(&b, 1, "x", 1), -ENOTSOCK);
}
