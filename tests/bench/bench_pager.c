/*
 * How long the pager's operations take on a pool of the size of a real one. Not a test: prints a
 * table.
 *
 * usage: bench_pager [SECONDS-PER-ROW]
 */

#include <stdio.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kvpager/kvpager.h"

enum {
    PAGES = 65536,
    PAGE = 16,
    SEQS = 512,
    CONTEXT = 32768,
    PROMPT = 8192,
    SHARED = 6144,
    OWN = 1024
};

struct bench {
    struct kv_pager *pager;
    struct kv_seq *seq[SEQS];
    int32_t token[PROMPT], own[SEQS][OWN];
    struct rng rng;
    int64_t budget_ns;
};

static const struct kv_isolation share = {{1}};

static void must(int r) {
    if (r != 0)
        abort();
}

static void fresh_tail(struct bench *b, uint32_t from) {
    for (uint32_t i = from; i < PROMPT; i++)
        b->token[i] = (int32_t)rng_below(&b->rng, 1u << 17);
}

/* A request: looks its prompt up, finds the shared part, computes the rest, ends. The pool is full
 * of what others left, so each page it takes is evicted first. */
static uint64_t prompt_with_hit(struct bench *b) {
    struct kv_seq *s;

    fresh_tail(b, SHARED);
    must(kv_seq_new(&s, b->pager, &share));
    kv_seq_attach(s, b->token, PROMPT - 1);
    must(kv_seq_grow(s, PROMPT));
    kv_seq_commit(s, b->token, PROMPT);
    kv_seq_free(s);
    return 1;
}

static uint64_t lookup(struct bench *b) {
    struct kv_match m = kv_pager_match(b->pager, &share, b->token, PROMPT);

    if (m.n_tokens < SHARED)
        abort();
    return m.n_tokens / PAGE;
}

/* All sequences grow by a token, as in a decode step; they start over when their context is
 * full. */
static uint64_t decode_step(struct bench *b) {
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t n = kv_seq_committed(b->seq[i]);

        if (n == OWN) {
            kv_seq_truncate(b->seq[i], 0);
            n = 0;
        }
        b->own[i][n] = (int32_t)i; /* no two share */
        must(kv_seq_grow(b->seq[i], n + 1));
        kv_seq_commit(b->seq[i], b->own[i], n + 1);
    }
    return SEQS;
}

static uint64_t check(struct bench *b) {
    kv_pager_check(b->pager);
    return 1;
}

static void measure(struct bench *b, const char *what, const char *unit,
                    uint64_t (*run)(struct bench *)) {
    struct clock *clock = clock_monotonic();
    uint64_t n = 0;
    int64_t start = clock_now(clock), now;

    do {
        for (int i = 0; i < 4; i++)
            n += run(b);
        now = clock_now(clock);
    } while (now - start < b->budget_ns);
    double ns = (double)(now - start) / (double)n;
    printf("%-44s %12.1f ns %14.0f %s/s\n", what, ns, 1e9 / ns, unit);
}

int main(int argc, char **argv) {
    struct kv_opts o = {.n_pages = PAGES,
                        .page_tokens = PAGE,
                        .max_seqs = SEQS + 1,
                        .max_seq_tokens = CONTEXT,
                        .hash_seed = 1};
    static struct bench b = {.rng = {1}};

    b.budget_ns = (int64_t)(1e9 * (argc > 1 ? atof(argv[1]) : 1.0));
    must(kv_pager_new(&b.pager, &o));
    fresh_tail(&b, 0);
    measure(&b, "prompt of 8192, 6144 shared: new to free", "prompts", prompt_with_hit);
    measure(&b, "lookup, per page found", "pages", lookup);
    measure(&b, "kv_pager_check, 65536 pages", "checks", check);
    for (uint32_t i = 0; i < SEQS; i++)
        must(kv_seq_new(&b.seq[i], b.pager, &share));
    measure(&b, "decode: grow and commit a token", "tokens", decode_step);
    for (uint32_t i = 0; i < SEQS; i++)
        kv_seq_free(b.seq[i]);
    kv_pager_free(b.pager);
    return 0;
}
