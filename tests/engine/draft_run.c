#include "tests/engine/draft_run.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test_data.h"

void draft_see(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
               const float *logits) {
    struct draft_watch *w = ctx;
    uint32_t n = w->n_vocab ? w->n_vocab : N_VOCAB;

    (void)s, (void)out;
    if (pos < w->pos0 || pos - w->pos0 >= DRAFT_ROWS)
        return;
    memcpy(w->logits[pos - w->pos0], logits, n * sizeof(*logits));
    w->n_seen++;
}

const char *draft_path(const char *name, const char *end) {
    static char paths[2][TEST_DATA_PATH];
    static int turn;

    return test_data_file(paths[turn ^= 1], "golden", name, end);
}

void draft_prompt(int32_t *prompt, uint32_t seed, uint32_t n_vocab) {
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)((i * 37 + seed * 101 + 11) % N_VOCAB % n_vocab);
}

bool draft_same_text(const struct draft_run *a, const struct draft_run *b) {
    for (uint32_t i = 0; i < N_TOKENS; i++)
        if (a->out[i].token != b->out[i].token || a->out[i].digest != b->out[i].digest)
            return false;
    return true;
}

static void run(const struct drafting *g, const char *backend, bool drafts,
                const struct draft_manner *how, struct draft_run *out) {
    int32_t prompt[2][N_PROMPT];
    struct driver_seq *seq[2];
    struct draft_watch w = {.pos0 = UINT32_MAX};
    struct driver d;
    uint32_t n = how->in_company ? 2 : 1;

    g->open(g->of, backend, drafts, &d, &w);
    for (uint32_t i = 0; i < 2; i++)
        draft_prompt(prompt[i], 1 + i, d.info->n_vocab);
    if (how->after_another) {
        seq[0] = driver_add(&d, prompt[1], N_PROMPT, N_TOKENS, NULL);
        driver_prefill(&d, seq[0], 0);
        driver_drop(&d, seq[0]);
    }
    for (uint32_t i = 0; i < n; i++) {
        seq[i] = driver_add(&d, prompt[i], N_PROMPT, N_TOKENS + DRAFT_ROWS, NULL);
        driver_prefill(&d, seq[i], how->chunk);
    }
    for (uint32_t t = 0; t + 1 < N_TOKENS; t++) {
        if (how->drafts_always)
            g->draft(&d, seq, n);
        driver_decode(&d, seq, n, 1, false);
    }
    memcpy(out->out, seq[0]->out, sizeof(out->out));
    w.pos0 = seq[0]->n_computed;
    if (drafts)
        g->draft(&d, seq, 1);
    cr_assert(!drafts || w.n_seen > 0);
    memcpy(out->drafts, w.logits, sizeof(w.logits));
    for (uint32_t i = 0; i < n; i++)
        driver_drop(&d, seq[i]);
    driver_close(&d);
}

void draft_check_manners(const struct drafting *g, const char *backend) {
    static const struct draft_manner plain = {.chunk = 64},
                                     manner[] = {
#ifndef BACKEND
                                         {.chunk = 1},
                                         {.chunk = 64, .drafts_always = true},
#endif
                                         {.chunk = 13, .in_company = true},
                                         {.chunk = 7, .drafts_always = true, .in_company = true},
                                         {.chunk = 64, .after_another = true},
                                     };
    static struct draft_run without, with, other;

    run(g, backend, false, &plain, &without);
    run(g, backend, true, &plain, &with);
    cr_expect(draft_same_text(&without, &with), "%s changes the model", g->name);
    for (size_t i = 0; i < ARRAY_SIZE(manner); i++) {
        run(g, backend, true, &manner[i], &other);
        cr_expect(draft_same_text(&without, &other), "%s: text of manner %zu", g->name, i);
        cr_expect(memcmp(with.drafts, other.drafts, sizeof(with.drafts)) == 0,
                  "%s: drafts of manner %zu", g->name, i);
    }
}

int draft_open_tiny(const struct tiny_model *model, const struct tiny_model *drafter,
                    const char *backend, struct driver *d, struct err *err) {
    char path[2][64];

    tiny_model_temp(model, path[0]);
    tiny_model_temp(drafter, path[1]);
    const struct driver_opts o = {
        .backend = backend, .path = path[0], .block = path[1], .drafts = true};
    *err = (struct err){0};
    int r = driver_open(d, &o, err);
    unlink(path[0]);
    unlink(path[1]);
    return r;
}
