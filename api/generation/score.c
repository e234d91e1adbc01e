#include <math.h>
#include <stdio.h>
#include "api/generation/writer.h"

/* What log probabilities are for besides being shown: which of several texts is the best, and what the
 * model thought of the prompt. */

/* Of a choice's tokens; one without any is the worst. */
static double mean_logprob(const struct choice *c) {
    double sum = 0;

    for (uint32_t i = 0; i < c->gen->n_out; i++)
        sum += (double)c->gen->logprobs[i];
    return c->gen->n_out ? sum / c->gen->n_out : -INFINITY;
}

void writer_sort(struct writer *w) {
    uint32_t n = gen_request_made(&w->job.request);

    for (uint32_t first = 0; first + n <= w->n_choices; first += n)
        for (uint32_t i = first + 1; i < first + n;
             i++) { /* few: by insertion, equals as they were */
            struct choice c = w->choices[i];
            double mean = mean_logprob(&c);
            uint32_t k = i;

            for (; k > first && mean_logprob(&w->choices[k - 1]) < mean; k--)
                w->choices[k] = w->choices[k - 1];
            w->choices[k] = c;
        }
}

/* "ID": {"logprob", "rank", "decoded_token"}; @rank 0: not among the best that were asked for. */
static void put_entry(struct json *j, const struct writer *w, int32_t id, float logprob,
                      uint32_t rank) {
    size_t len;
    const char *text = writer_token(w, id, &len);
    char key[16];

    snprintf(key, sizeof(key), "%d", (int)id);
    json_key(j, key);
    json_open(j, '{');
    json_key(j, "logprob");
    json_double(j, (double)logprob);
    json_key(j, "rank");
    if (rank)
        json_uint(j, rank);
    else
        json_null(j);
    json_key(j, "decoded_token");
    json_string(j, text, len);
    json_close(j, '}');
}

/* Prompt token @i and the best ones at its place. */
static void put_position(struct json *j, const struct writer *w, const struct gen *g, uint32_t i) {
    const struct event_top *t = &g->prompt_top[(size_t)(i - 1) * g->m.n_prompt_top];
    bool seen = false;

    json_open(j, '{');
    for (uint32_t k = 0; k < w->job.request.n_prompt_top && t[k].token >= 0; k++) {
        put_entry(j, w, t[k].token, t[k].logprob, k + 1);
        seen |= t[k].token == g->tokens[i];
    }
    if (!seen)
        put_entry(j, w, g->tokens[i], g->prompt_lp[i - 1], 0);
    json_close(j, '}');
}

void writer_put_prompt(struct json *j, const struct writer *w, const struct gen *g) {
    json_open(j, '[');
    for (uint32_t i = 0; i < g->n_prompt; i++) {
        if (i == 0 || !g->prompt_lp)
            json_null(j);
        else
            put_position(j, w, g, i);
    }
    json_close(j, ']');
}
