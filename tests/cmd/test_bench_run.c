/* Against the tell-tale engine: a wrong page, position or fed token changes every token from there
 * on, and reading what was not written aborts. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "cmd/bench_run.h"
#include "cmd/cli.h"
#include "tests/support/synth/synth.h"
#include "tests/support/telltale.h"

enum { N_SEQS = 3, N_PREFIX = 37, N_TOKENS = 70, N_MAX = 110 };

static int32_t prefix[N_SEQS][N_PREFIX];
static char path[64];

static void setup(struct run *r, uint32_t depth) {
    static struct telltale t;
    char *argv[] = {"synth", "--shape", "tiny,n_vocab=300", "--format", "Q4_0", "-o", path};
    const struct run_opts opts = {.model = path,
                                  .backend = "cpu",
                                  .isa = "auto",
                                  .max_rows = 16,
                                  .max_seqs = N_SEQS,
                                  .max_tokens = N_MAX};
    struct err err = {0};

    t = (struct telltale){.n_vocab = 300, .depth = depth, .strict = true, .poison = 9};
    telltale_set(&t);
    snprintf(path, sizeof(path), "/tmp/weft-bench-run-%d.gguf", getpid());
    cr_assert(synth_main((int)ARRAY_SIZE(argv), argv) == CLI_OK);
    cr_assert(run_open(r, &opts, &err) == 0, "%s", err.message);
    cr_assert(r->info->depth == depth);
    for (int s = 0; s < N_SEQS; s++)
        for (int i = 0; i < N_PREFIX; i++)
            prefix[s][i] = (s * 91 + i * 17 + 5) % 300;
}

static void teardown(struct run *r) {
    run_close(r);
    remove(path);
}

/* Greedy tokens after @tokens. */
static void expect(const int32_t *tokens, uint32_t n, uint32_t n_out, int32_t *out) {
    const struct telltale_ask ask = {.prompt = tokens,
                                     .n_prompt = n,
                                     .n_out = n_out,
                                     .param = {.top_p = 1, .repetition = 1},
                                     .ignore_end = true};

    cr_assert(telltale_expect(&ask, out, NULL, NULL) == n_out);
}

static void check_generate(uint32_t depth) {
    int32_t first[N_SEQS], last[N_SEQS], expected[N_TOKENS + 1];
    struct run r;

    setup(&r, depth);
    for (uint32_t s = 0; s < N_SEQS; s++)
        cr_assert(run_prefill(&r, s, 0, prefix[s], N_PREFIX, &first[s]) == 0);
    for (int again = 0; again < 2; again++) { /* over what the first pass has written */
        cr_assert(run_generate(&r, N_SEQS, N_PREFIX, N_TOKENS, first, last) == 0);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            expect(prefix[s], N_PREFIX, N_TOKENS + 1, expected);
            cr_expect(first[s] == expected[0], "sequence %u", s);
            cr_expect(last[s] == expected[N_TOKENS], "sequence %u", s);
        }
    }
    teardown(&r);
}

Test(bench_run, generates_what_the_engine_says_one_step_at_a_time) {
    check_generate(1);
}

Test(bench_run, generates_the_same_with_overlapping_steps) {
    check_generate(2);
}

Test(bench_run, decodes_sequences_at_different_positions) {
    static const uint32_t slots[] = {2, 0, 1}, lengths[] = {30, 7, 16}; /* of slots 2, 0, 1 */
    int32_t token[3], next[3], expected[20];
    uint32_t pos[3];
    struct run r;

    setup(&r, 1);
    for (int i = 0; i < 3; i++) {
        cr_assert(run_prefill(&r, slots[i], 0, prefix[slots[i]], lengths[i], &token[i]) == 0);
        pos[i] = lengths[i];
    }
    for (int step = 1; step < 20; step++) {
        cr_assert(run_decode(&r, 3, slots, pos, token, next) == 0);
        for (int i = 0; i < 3; i++) {
            expect(prefix[slots[i]], lengths[i], 20, expected);
            cr_expect(next[i] == expected[step], "slot %u, step %d", slots[i], step);
            token[i] = next[i];
            pos[i]++;
        }
    }
    teardown(&r);
}

Test(bench_run, a_lost_device_is_reported) {
    struct telltale t = {.fail_wait = 2};
    int32_t next;
    struct run r;

    setup(&r, 1);
    run_close(&r);
    telltale_set(&t);
    const struct run_opts opts = {.model = path,
                                  .backend = "cpu",
                                  .isa = "auto",
                                  .max_rows = 16,
                                  .max_seqs = 1,
                                  .max_tokens = N_MAX};
    cr_assert(run_open(&r, &opts, NULL) == 0);
    cr_expect(run_prefill(&r, 0, 0, prefix[0], 16, &next) == 0);
    cr_expect(run_prefill(&r, 0, 16, prefix[0], 16, &next) < 0);
    teardown(&r);
}
