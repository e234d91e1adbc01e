#include "tests/support/sim_expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sim_constraint.h"

static bool ends_with_stop(const struct submit *m, const char *text, size_t len, size_t piece) {
    for (uint32_t i = 0; i < m->n_stops; i++) {
        const struct str *st = &m->stops[i];

        for (size_t end = len - piece + 1; end <= len; end++)
            if (end >= st->len && memcmp(text + end - st->len, st->data, st->len) == 0)
                return true;
    }
    return false;
}

/* Finds where the request ends by searching the whole text. */
static void cut_expected(const struct sim *s, struct sim_client *c, uint32_t n) {
    const struct submit *m = &c->m;
    CLEANUP(freep) char *text = malloc((size_t)n * 4 + 1);
    uint64_t slots = (uint64_t)s->opts.n_pages * s->opts.page_tokens + 1;
    uint32_t room = (uint32_t)MIN(slots, s->opts.max_context) - m->n_prompt;
    size_t len = 0;

    if (!text) {
        fprintf(stderr, "sched_sim: no memory for a text\n");
        abort();
    }
    c->n_expect = MIN(n, room);
    c->expect = FINISH_LENGTH;
    for (uint32_t i = 0; i < c->n_expect; i++) {
        int32_t token = c->tokens[m->n_prompt + i];
        const char *piece = token < 3 ? "" : sim_piece(token);
        bool stop = (!m->sampling.ignore_eos || c->constraint) && token == SIM_END;

        memcpy(text + len, piece, strlen(piece));
        len += strlen(piece);
        for (uint32_t k = 0; k < m->n_stop_ids; k++)
            stop |= token == m->stop_ids[k];
        if (stop || ends_with_stop(m, text, len, strlen(piece))) {
            c->n_expect = i + 1;
            c->expect = FINISH_STOP;
        }
    }
}

bool sim_wants_vector(const struct sim_client *c) {
    return (c->m.flags & (SUBMIT_POOL_LAST | SUBMIT_POOL_MEAN)) != 0;
}

void sim_expect_vector(const struct sim_client *c, float vector[SIM_EMBD]) {
    double sum[SIM_EMBD] = {0};
    uint32_t n = c->m.n_prompt;

    telltale_expect_hidden(sim_seen(c), n, vector, SIM_EMBD);
    if (c->m.flags & SUBMIT_POOL_LAST)
        return;
    for (uint32_t i = 1; i <= n; i++) {
        telltale_expect_hidden(sim_seen(c), i, vector, SIM_EMBD);
        for (uint32_t k = 0; k < SIM_EMBD; k++)
            sum[k] += (double)vector[k];
    }
    for (uint32_t k = 0; k < SIM_EMBD; k++)
        vector[k] = (float)(sum[k] / n);
}

void sim_expect(const struct sim *s, struct sim_client *c) {
    const struct submit *m = &c->m;
    const struct sampling *p = &m->sampling;
    int32_t bans[64];
    uint32_t n_bans = 0;

    for (uint32_t i = 0; i < m->n_stop_ids; i++)
        bans[n_bans++] = m->stop_ids[i];
    if (!p->ignore_eos)
        bans[n_bans++] = SIM_END;
    struct telltale_ask ask = {
        .prompt = c->tokens,
        .seen = c->seen,
        .n_prompt = m->n_prompt,
        .n_out = m->max_new,
        .n_ban = m->min_new,
        .ignore_end = true,
        .param = {.temperature = (float)p->temperature,
                  .top_p = (float)p->top_p,
                  .min_p = (float)p->min_p,
                  .repetition = (float)p->repetition_penalty,
                  .presence = (float)p->presence_penalty,
                  .frequency = (float)p->frequency_penalty,
                  .top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0,
                  .seed = m->seed,
                  .choice = m->choice,
                  .n_bias = m->n_bias,
                  .bias = (const struct engine_bias *)m->bias,
                  .n_bans = n_bans,
                  .bans = bans},
    };
    if (c->constraint) { /* masks include the bans */
        ask.go_on = sim_constraint_at;
        ask.allows = sim_constraint_allows;
        ask.ctx = c;
        ask.param.n_bans = 0;
    }
    uint32_t n = telltale_expect(&ask, c->tokens + m->n_prompt, c->digest, c->logprob);
    /* pads an output that the grammar ended, for the prediction */
    for (uint32_t i = n; i < m->max_new; i++)
        c->tokens[m->n_prompt + i] = SIM_END;
    sim_see_outputs(c);
    if (m->flags & SUBMIT_PROMPT_LOGPROBS)
        telltale_expect_prompt(c->tokens, c->seen, m->n_prompt, c->prompt_lp);
    cut_expected(s, c, n);
}

void sim_predict(struct sim_client *c) {
    struct rng r = {c->m.id};
    uint32_t n = 0;

    if (c->edit_every == 0)
        return;
    for (uint32_t i = 0; i < c->m.max_new && n < c->m.max_new; i++) {
        uint32_t edit = rng_below(&r, 3 * c->edit_every);

        if (edit < 2)
            c->prediction[n++] = (int32_t)rng_below(&r, SIM_VOCAB);
        if (edit > 1 && n < c->m.max_new)
            c->prediction[n++] = c->tokens[c->m.n_prompt + i];
        if (edit == 0)
            i--;
    }
    c->m.prediction = (struct str){(const char *)c->prediction, n * (uint32_t)sizeof(int32_t)};
}
