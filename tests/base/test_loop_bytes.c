#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/loop_bytes.h"

static size_t n_bytes, n_items;

static void count(size_t bytes, size_t items) {
    n_bytes += bytes;
    n_items += items;
}

Test(loop_bytes, what_a_buffer_copies_is_counted) {
    CLEANUP(buf_deinit) struct buf b = {.max = 100};

    loop_watch = count;
    cr_assert_eq(buf_add(&b, "0123456789", 10), 0);
    cr_expect_eq(n_bytes, 10);
    buf_consume(&b, 4);
    cr_expect_eq(n_bytes, 16);
    buf_consume(&b, 0);
    cr_expect_eq(n_bytes, 16, "nothing was moved");
    loop_items(3);
    cr_expect_eq(n_items, 3);
}

static void *copy_much(void *unused) {
    CLEANUP(buf_deinit) struct buf b = {.max = 2 * LOOP_BYTES_MAX};
    char *text = calloc(1, LOOP_BYTES_MAX + 1);

    cr_assert_eq(buf_add(&b, text, LOOP_BYTES_MAX + 1), 0);
    free(text);
    return unused;
}

Test(loop_bytes, other_threads_may_copy_more) {
    pthread_t thread;

    loop_watch = loop_watch_limits;
    cr_assert_eq(pthread_create(&thread, NULL, copy_much, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

Test(loop_bytes, a_large_call_aborts, .signal = SIGABRT) {
    loop_watch = loop_watch_limits;
    copy_much(NULL);
}

Test(loop_bytes, many_calls_of_one_callback_abort, .signal = SIGABRT) {
    loop_watch = loop_watch_limits;
    for (size_t n = 0; n <= LOOP_BYTES_TURN_MAX; n += LOOP_BYTES_MAX)
        loop_bytes(LOOP_BYTES_MAX);
}

Test(loop_bytes, each_callback_begins_anew) {
    loop_watch = loop_watch_limits;
    for (size_t n = 0; n <= 2 * LOOP_BYTES_TURN_MAX; n += LOOP_BYTES_MAX) {
        loop_watch_turn();
        loop_bytes(LOOP_BYTES_MAX);
    }
}

Test(loop_bytes, many_items_of_one_callback_abort, .signal = SIGABRT) {
    loop_watch = loop_watch_limits;
    for (size_t n = 0; n <= LOOP_ITEMS_MAX; n++)
        loop_items(1);
}

Test(loop_bytes, only_tests_watch_the_loop) {
    unsetenv("WEFT_WATCH_LOOP");
    loop_watch_set(true);
    cr_expect_null(loop_watch);
    setenv("WEFT_WATCH_LOOP", "1", 1);
    loop_watch_set(true);
    cr_expect(loop_watch == loop_watch_limits);
    loop_watch_set(false);
    cr_expect_null(loop_watch);
}
