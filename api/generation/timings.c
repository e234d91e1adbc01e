#include "api/generation/timings.h"

#include <stdio.h>
#include <string.h>

#include "api/generation/gen.h"
#include "api/http/json.h"

static double ms_between(int64_t from, int64_t to) {
    if (from && to > from)
        return (double)(to - from) / 1e6;
    return 0;
}

/* Writes all significant digits, because clients compare rates with times. */
static void put_figure(struct json *j, const char *key, double v) {
    char text[32];

    snprintf(text, sizeof(text), "%.15g", v);
    json_print(j, "%s:", key);
    json_raw(j, text, strlen(text));
}

static const char *const prompt_keys[] = {"prompt_n", "prompt_ms", "prompt_per_token_ms",
                                          "prompt_per_second"};
static const char *const predicted_keys[] = {"predicted_n", "predicted_ms",
                                             "predicted_per_token_ms", "predicted_per_second"};

/* Writes the figures of @n tokens, of which @timed took @time milliseconds. */
static void put_rate(struct json *j, const char *const keys[4], uint32_t n, uint32_t timed,
                     double time) {
    json_print(j, "%s:%u", keys[0], n);
    put_figure(j, keys[1], time);
    put_figure(j, keys[2], timed ? time / timed : 0);
    put_figure(j, keys[3], time > 0 ? timed * 1000.0 / time : 0);
}

void timings_put_begin(struct json *j) {
    json_print(j, "timings:{cache_n:0");
    put_rate(j, prompt_keys, 0, 0, 0);
    put_rate(j, predicted_keys, 0, 0, 0);
    json_close(j, '}');
}

void timings_put(struct json *j, const struct gen *g) {
    uint32_t cached = g->n_cached < g->n_prompt ? g->n_cached : g->n_prompt;
    /* Before the end of the prompt no time of it is known. */
    uint32_t computed = g->prompt_end_ns ? g->n_prompt - cached : 0;
    /* The step that ends the prompt gives the first token. */
    uint32_t timed = g->n_out ? g->n_out - 1 : 0;

    json_print(j, "timings:{cache_n:%u", cached);
    put_rate(j, prompt_keys, computed, computed, ms_between(g->first_step_ns, g->prompt_end_ns));
    put_rate(j, predicted_keys, g->n_out, timed, ms_between(g->prompt_end_ns, g->computed_ns));
    if (g->drafts.n)
        json_print(j, "draft_n:%u, draft_n_accepted:%u", g->drafts.n, g->drafts.accepted);
    json_close(j, '}');
}
