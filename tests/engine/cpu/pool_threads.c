/* For the thread sanitizer: data written before a round must be visible in it, and data written in
 * it after it, in plain memory, while threads fall asleep and wake up. */

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "engine/cpu/cpu.h"

enum { ITEMS = 32, ROUNDS = 3000 };

struct round {
    uint32_t value, done[ITEMS];
    _Atomic uint32_t next;
};

static void take(void *ctx, uint32_t thread) {
    struct round *r = ctx;
    uint32_t i;

    (void)thread;
    while ((i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < ITEMS)
        r->done[i] += r->value;
}

static void run(uint32_t n_threads) {
    struct round r = {0};
    uint32_t sum = 0;
    struct pool *p;
    int e = pool_new(&p, n_threads);

    assert(e == 0);
    (void)e;
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        r.value = i;
        atomic_store_explicit(&r.next, 0, memory_order_relaxed);
        pool_run(p, take, &r);
        sum += i;
        assert(r.done[i % ITEMS] == sum);
        if (i % 500 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    pool_free(p);
}

int main(void) {
    run(2);
    run(5);
    puts("ok");
    return 0;
}
