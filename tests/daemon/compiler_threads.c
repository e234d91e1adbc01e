/* For the thread sanitizer: the step thread requests, cancels, takes and releases constraints while
 * the compiler's thread works, and closes the compiler at any moment. */

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "daemon/worker/compiler.h"
#include "tests/support/json_vocab.h"

enum { ROUNDS = 6, ASKS = 60 };

static struct crash_page crash_page;
static struct {
    const struct constraint *c;
    uint64_t id;
} held[ASKS];
static uint32_t tenant_of[ASKS + 1]; /* by the id of the request */
static uint32_t n_held, n_told;

static void hold(const struct constraint *c, uint64_t id) {
    held[n_held].c = c;
    held[n_held++].id = id;
}

static void release_last(const struct sched_constraints *s) {
    n_held--;
    s->release(s->ctx, held[n_held].c, tenant_of[held[n_held].id]);
}

static bool on_ready(void *ctx, uint64_t id, const struct constraint *c, const struct err *why) {
    (void)ctx;
    assert((c == NULL) == (why != NULL));
    n_told++;
    if (c)
        hold(c, id);
    return true;
}

/* Asks for one of a dozen grammars, some of which are wrong. Returns whether the answer comes
 * later. */
static bool ask(const struct sched_constraints *s, uint64_t id, struct rng *r) {
    char text[100];
    uint32_t kind = rng_below(r, 12);

    snprintf(text, sizeof(text), kind < 10 ? R"({"regex":"[a-f]{1,%u}"})" : R"({"regex":"(%u"})",
             kind + 1);
    struct submit m = {.id = id,
                       .tenant = kind % 3,
                       .grammar = {text, (uint32_t)strlen(text)},
                       .n_faults = kind == 5};
    const struct constraint *c = NULL;
    struct err err;

    tenant_of[id] = m.tenant;
    int e = s->ask(s->ctx, &m, &c, &err);

    assert(e == 0 || e == 1);
    if (e == 0)
        hold(c, id);
    return e == 1;
}

static void release_all(const struct sched_constraints *s) {
    while (n_held > 0)
        release_last(s);
}

static void run(struct tokenizer *t, uint64_t seed, bool finish) {
    struct rng r = {seed};
    struct compiler *c = NULL;
    uint32_t n_asked = 0;

    n_held = n_told = 0;
    int e = compiler_new(&c, t, 4096, &crash_page);
    assert(e == 0);
    (void)e;
    const struct sched_constraints *s = compiler_source(c);
    for (uint64_t id = 1; id <= ASKS; id++) {
        bool later = ask(s, id, &r);

        n_asked += later;
        if (later && rng_below(&r, 5) == 0) {
            s->forget(s->ctx, id);
            n_asked--;
        }
        if (rng_below(&r, 4) == 0)
            compiler_deliver(c, on_ready, NULL);
        if (compiler_has_quarantined(c))
            compiler_run_quarantined(c, on_ready, NULL);
        while (n_held > 0 && rng_below(&r, 2))
            release_last(s);
    }
    while (finish && n_told < n_asked) {
        struct pollfd p = {compiler_fd(c), POLLIN, 0};

        release_all(s); /* some requests wait for memory */
        poll(&p, 1, 10000);
        compiler_deliver(c, on_ready, NULL);
        if (compiler_has_quarantined(c))
            compiler_run_quarantined(c, on_ready, NULL);
    }
    release_all(s);
    compiler_free(c);
}

int main(void) {
    struct tokenizer *t = json_vocab_new();

    for (uint64_t i = 0; i < ROUNDS; i++)
        run(t, i + 1, i % 2);
    tokenizer_free(t);
    puts("ok");
    return 0;
}
