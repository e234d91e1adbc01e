/*
 * The store of responses under the thread sanitizer: the loop adds and removes while the pool's
 * threads look up, read and continue responses.
 */

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "api/responses/store.h"
#include "base/clock.h"
#include "base/rng.h"

#define THREADS 3
#define ROUNDS 20000

static struct store store;
static atomic_bool over;

static size_t name(char id[16], uint64_t n) {
    return (size_t)snprintf(id, 16, "r%u", (unsigned)(n % 64));
}

/* Looks up responses. A response that was found stays whole until it is released. */
static void *look(void *seed) {
    struct rng rng = {(uint64_t)(uintptr_t)seed};
    size_t n_found = 0;
    char id[16];

    while (!atomic_load(&over)) {
        struct stored *r = store_get(&store, 0, id, name(id, rng_next(&rng)));

        for (const struct stored *p = r; p; p = p->parent)
            assert(p->parts.head->text.len == strlen(blob_data(p->parts.head)) &&
                   strcmp(p->parts.input.data, "[]") == 0);
        if (r && rng_below(&rng, 4) == 0)
            store_use(r);
        n_found += r != NULL;
        stored_unref(r);
    }
    return (void *)n_found;
}

static void change(struct rng *rng) {
    char id[16], parent[16], text[256];
    size_t n = rng_below(rng, sizeof(text));
    struct stored_parts parts;
    struct buf head = {.max = sizeof(text)};

    if (rng_below(rng, 5) == 0) {
        store_remove(&store, 0, id, name(id, rng_next(rng)));
        return;
    }
    memset(text, 'x', n);
    struct stored *p = store_get(&store, 0, parent, name(parent, rng_next(rng)));
    name(id, rng_next(rng));
    store_remove(&store, 0, id, strlen(id));
    stored_parts_init(&parts);
    buf_add(&head, text, n);
    parts.head = blob_new(&head);
    buf_add(&parts.input, "[]", 2);
    store_add(&store, 0, id, p, &parts);
    stored_unref(p);
}

int main(void) {
    struct store_limits limits = {.n = 40, .bytes = 16 << 10, .ttl_s = 3600};
    struct rng rng = {1};
    pthread_t threads[THREADS];
    size_t n_found = 0;
    uv_loop_t loop;

    uv_loop_init(&loop);
    store_init(&store, &loop, clock_monotonic(), &limits);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, look, (void *)(i + 2)) != 0)
            return 1;
    for (int i = 0; i < ROUNDS; i++)
        change(&rng);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++) {
        void *found;

        pthread_join(threads[i], &found);
        n_found += (size_t)found;
    }
    store_close(&store);
    uv_run(&loop, UV_RUN_DEFAULT);
    store_deinit(&store); /* asserts that no byte is left */
    printf("%zu found\n", n_found);
    return uv_loop_close(&loop) == 0 ? 0 : 1;
}
