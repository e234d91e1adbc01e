#include "api/generation/waits.h"

#include <stdio.h>

#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "proto/flight.h"

#define STORY_MAX 256u /* decisions of the scheduler about a request that are read */

/* Counts for each waiting generation those of its tenant that came to the queue before it, unless
 * they are still the same: a list of all requests asks this of each. */
static void rank_waiting(struct gen_env *env) {
    if (env->gens.n_ranked == env->gens.n_changes)
        return;
    LIST_FOREACH_ENTRY(g, &env->gens.list, struct gen, link) {
        tenants_get(&env->tenants, g->m.tenant)->n_ranked = 0;
    }
    LIST_FOREACH_ENTRY(g, &env->gens.list, struct gen, link) {
        if (g->state == GEN_WAITING)
            g->n_before = tenants_get(&env->tenants, g->m.tenant)->n_ranked++;
    }
    env->gens.n_ranked = env->gens.n_changes;
}

/* Sets what the @n decisions @r about @g tell: the last of them, and how long the rest of the
 * prompt takes at the pace since the request was admitted. */
static void read_story(const struct gen *g, const struct flight_record *r, uint32_t n,
                       struct gen_wait *out) {
    const struct flight_record *admitted = NULL;

    while (n > 0 && r[n - 1].why == WHY_ENDED) /* the front gets an event about the end */
        n--;
    if (n == 0)
        return;
    out->name = flight_name(r[n - 1].why);
    out->text = flight_text(r[n - 1].why);
    for (uint32_t i = 0; i < n; i++)
        if (r[i].why == WHY_ADMITTED || r[i].why == WHY_PREEMPTED)
            admitted = r[i].why == WHY_ADMITTED ? &r[i] : NULL;
    int64_t ms = admitted ? (clock_now(g->env->clock) - admitted->from_ns) / 1000000 : 0;
    if (ms > 0 && out->n_done > admitted->detail)
        out->expect_ms = ms * (g->n_prompt - out->n_done) / (out->n_done - admitted->detail);
}

void gen_waits(const struct gen *g, struct gen_wait *out) {
    struct flight_record r[STORY_MAX];
    struct api_port *p = g->model->port;
    const struct tenant *t = tenants_get(&g->env->tenants, g->m.tenant);

    *out =
        (struct gen_wait){flight_name(WHY_WORKER), flight_text(WHY_WORKER), -1, gen_prompt_done(g)};
    if (g->n_out > 0) {
        *out = (struct gen_wait){flight_name(WHY_DECODE), flight_text(WHY_DECODE), -1, g->n_prompt};
    } else if (g->state == GEN_WAITING) {
        out->name = flight_name(WHY_PLACE);
        out->text = flight_text(WHY_PLACE);
        rank_waiting(g->env);
        out->expect_ms = (int64_t)admit_wait_ms(&g->env->admit, t, g->n_before);
    } else if (p->story) {
        read_story(g, r, p->story(p, g->m.id, r, STORY_MAX), out);
    }
}

void gen_wait_text(const struct gen *g, const struct gen_wait *w, char *out, size_t size) {
    int n = snprintf(out, size, "%s: %s", w->name, w->text);

    if (w->n_done > 0)
        n +=
            snprintf(out + n, size - (size_t)n, "; %u of %u prompt tokens", w->n_done, g->n_prompt);
    if (w->expect_ms >= 0)
        snprintf(out + n, size - (size_t)n, "; about %lld s",
                 (long long)(w->expect_ms + 999) / 1000);
}

void model_wait_text(const struct model *m, int64_t waited_ns, char *out, size_t size) {
    double done = (double)m->progress, left_s = (1 - done) / done * (double)waited_ns / 1e9;
    int n = snprintf(out, size, "%.200s is %s, %d %%", m->info->id, model_state_name(m),
                     (int)(done * 100));

    if (done > 0.05)
        snprintf(out + n, size - (size_t)n, ", about %.0f s", left_s + 0.5);
}
