/* Buckets are vLLM's, for which dashboards and routers exist. A bucket may be added, because
 * histograms are summed by bucket; no bucket may be removed. */

#include "api/generation/metrics.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"

#define END -1.0

static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                                     2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, END};
static const double between_bounds[] = {.001, .0025, .005, .01, .025, .05, .075, .1,
                                        .15,  .2,    .3,   .4,  .5,   .75, 1,    2.5,
                                        5,    7.5,   10,   20,  40,   80,  END};
static const double e2e_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, END};
static const double token_bounds[] = {1,     2,      5,      10,     20,   50,    100,
                                      200,   500,    1000,   2000,   5000, 10000, 20000,
                                      50000, 100000, 200000, 500000, END};
static const double n_bounds[] = {1, 2, 5, 10, 20, END};
static const double loop_bounds[] = {.0001, .0002, .0005, .001, .002, .005, .01, .015, .02, .03,
                                     .05,   .075,  .1,    .2,   .5,   1,    2,   5,    10,  END};

void metrics_init(struct metrics *m) {
    memset(m, 0, sizeof(*m));
#define SET_BOUNDS(field, bounds_, family, help) m->field.bounds = bounds_;
    METRICS_HISTOGRAMS(SET_BOUNDS)
}

/* Counts @times observations of @v. */
static void observe(struct histogram *h, double v, uint32_t times) {
    uint32_t i = 0;

    assert(h->bounds && v >= 0);
    while (h->bounds[i] >= 0 && v > h->bounds[i])
        i++;
    assert(i < ARRAY_SIZE(h->count));
    h->count[i] += times;
    h->n += times;
    h->sum += v * times;
}

/* Observes the time from @from to @to, both in ns, if both are known (not 0). */
static void observe_span(struct histogram *h, int64_t from, int64_t to) {
    if (from && to)
        observe(h, (double)MAX(to - from, 0) / 1e9, 1);
}

void metrics_first_token(struct metrics *m, const struct metrics_gen *g) {
    observe_span(&m->queue, g->arrived_ns, g->first_step_ns);
    observe_span(&m->ttft, g->arrived_ns, g->first_token_ns);
    observe_span(&m->prefill, g->first_step_ns, g->first_token_ns);
}

void metrics_between_tokens(struct metrics *m, int64_t ns, uint32_t n) {
    assert(n > 0);
    observe(&m->between, (double)ns / 1e9 / n, n);
}

void metrics_loop(struct metrics *m, uint64_t busy_ns, uint64_t cpu_ns) {
    observe(&m->loop_lag, (double)busy_ns / 1e9, 1);
    observe(&m->loop_cpu, (double)cpu_ns / 1e9, 1);
}

void metrics_gen_done(struct metrics *m, const struct metrics_gen *g) {
    assert(g->outcome < METRICS_OUTCOMES);
    m->success[g->outcome]++;
    if (g->outcome == METRICS_ABORT)
        return;
    observe_span(&m->decode, g->first_token_ns, g->last_token_ns);
    observe_span(&m->inference, g->first_step_ns, g->done_ns);
    observe_span(&m->e2e, g->started_ns, g->done_ns);
    if (g->n_output > 1)
        observe(&m->per_token,
                (double)(g->last_token_ns - g->first_token_ns) / 1e9 / (g->n_output - 1), 1);
    observe(&m->prompt_tokens, g->n_prompt, 1);
    if (g->embeds)
        return; /* an embedding has no output tokens */
    observe(&m->output_tokens, g->n_output, 1);
    observe(&m->max_tokens, g->max_new, 1);
    if (g->n_choices > 0) {
        observe(&m->n, g->n_choices, 1);
        observe(&m->longest, g->n_longest, 1);
    }
}
