/*
 * The store of responses under the thread sanitizer: the loop adds and removes while the pool's
 * threads look up, read and continue responses, and the state's thread writes them into a database.
 */

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/responses/store.h"
#include "base/clock.h"
#include "base/rng.h"

#define THREADS 3
#define ROUNDS 5000
#define JOBS 10 /* transactions of the state's thread */

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
            assert(p->parts.head.text->text.len == strlen(blob_data(p->parts.head.text)) &&
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
    parts.head.text = blob_new(&head);
    buf_add(&parts.input, "[]", 2);
    store_add(&store, 0, id, p, &parts);
    stored_unref(p);
}

static const char *name_of(void *ctx, uint32_t tenant) {
    return "alice";
}

static bool number_of(void *ctx, const char *name, uint32_t *tenant) {
    *tenant = 0;
    return true;
}

static void on_trouble(void *ctx, int r) {
    fprintf(stderr, "the database: %s\n", strerror(-r));
}

int main(void) {
    struct store_limits limits = {
        .n = 40, .bytes = 16 << 10, .ttl_s = 3600, .name = name_of, .named = number_of};
    char folder[] = "/tmp/weft-test-threads-XXXXXX", path[80], command[80];
    static struct state state;
    struct rng rng = {1};
    pthread_t threads[THREADS];
    size_t n_found = 0;
    uint32_t n_lost;
    uv_loop_t loop;

    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/state.db", folder);
    uv_loop_init(&loop);
    if (state_init(&state, &(struct state_opts){&loop, path, on_trouble, NULL}) < 0 ||
        state_start(&state) < 0)
        return 1;
    limits.state = &state;
    store_init(&store, &loop, clock_monotonic(), &limits);
    store_load(&store);
    store_watch(&store, 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, look, (void *)(i + 2)) != 0)
            return 1;
    for (int i = 0, n_jobs = 0; i < ROUNDS || n_jobs < JOBS; i++) {
        bool ran = store.save.running;

        change(&rng);
        uv_run(&loop, UV_RUN_NOWAIT);
        n_jobs += ran && !store.save.running;
    }
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++) {
        void *found;

        pthread_join(threads[i], &found);
        n_found += (size_t)found;
    }
    store_close(&store);
    state_close(&state);
    uv_run(&loop, UV_RUN_DEFAULT);
    int r = store_save_end(&store, &n_lost);
    store_deinit(&store); /* asserts that no byte is left */
    state_deinit(&state);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    printf("%zu found\n", n_found);
    return r == 0 && n_lost == 0 && system(command) == 0 && uv_loop_close(&loop) == 0 ? 0 : 1;
}
