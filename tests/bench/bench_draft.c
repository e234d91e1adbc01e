/*
 * What looking for drafts costs a step: each of 256 requests with a context of 8k tokens gets a
 * token and is asked for a draft. Not a test: prints a table.
 */

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "scheduler/spec.h"

enum { REQUESTS = 256, PROMPT = 8192, OUT = 1000, STEPS = 400 };

/* @n_words: how many different tokens there are; with few of them everything has been seen
 * before. */
static void fill(struct request *r, struct rng *rng, uint32_t n_words) {
    *r = (struct request){.tokens = malloc((PROMPT + OUT) * sizeof(*r->tokens)),
                          .n_prompt = PROMPT,
                          .n_tokens = PROMPT,
                          .max_tokens = PROMPT + OUT};
    for (uint32_t i = 0; r->tokens && i < PROMPT + OUT; i++)
        r->tokens[i] = (int32_t)rng_below(rng, n_words);
}

static void measure(const char *name, uint32_t n_words, bool resting) {
    static struct request r[REQUESTS];
    struct rng rng = {1};
    struct spec spec;
    uint64_t n_drafts = 0;
    int64_t spent = 0;

    if (spec_init(&spec, &(struct spec_opts){0}) < 0)
        return;
    for (int i = 0; i < REQUESTS; i++) {
        fill(&r[i], &rng, n_words);
        spec_propose(&spec, &r[i]); /* reads the prompt */
    }
    for (int step = 0; step < STEPS; step++, spec.turn++) {
        int64_t begin = clock_now(clock_monotonic());

        for (int i = 0; i < REQUESTS; i++) {
            r[i].n_tokens++;
            spec_propose(&spec, &r[i]);
            bool drafted = r[i].draft.spec->n_draft > 0;
            n_drafts += drafted;
            if (drafted && resting)
                spec_refused(&r[i]);
        }
        spent += clock_now(clock_monotonic()) - begin;
    }
    printf("%-44s %6.1f us a step, %4.0f ns a request; %4.1f %% drafts\n", name,
           (double)spent / STEPS / 1e3, (double)spent / STEPS / REQUESTS,
           100.0 * (double)n_drafts / STEPS / REQUESTS);
    for (int i = 0; i < REQUESTS; i++) {
        spec_request_free(r[i].draft.spec);
        free(r[i].tokens);
    }
    spec_deinit(&spec);
}

int main(void) {
    measure("nothing repeats", 1 << 30, false);
    measure("everything matches", 12, false);
    measure("everything matches, no draft gets a row", 12, true);
    return 0;
}
