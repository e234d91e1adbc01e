/* Chooses the models in memory if not all requested models fit. */

#include <assert.h>
#include <math.h>

#include "daemon/models/models_private.h"

/* A model with running requests stays for STAY_LOADS times the duration of its load, but no longer
 * than STAY_MS. The same time is the quantum of model_share_holds(). */
#define STAY_LOADS 4
#define STAY_MS 3000

int64_t models_idle_since(const struct served *s) {
    return MAX(MAX(s->used_ns, s->ready_ns), api_model_use(s->model).last_used_ns);
}

bool models_has_requests(const struct served *s) {
    struct api_model_use use = api_model_use(s->model);

    return use.n_running > 0 || use.n_waiting > 0;
}

static bool models_is_idle(const struct served *s) {
    return api_model_use(s->model).n_running == 0;
}

bool models_may_unload(const struct served *s, const struct served *other) {
    return !s->config.pinned || s == other->old;
}

static int64_t stay_ns(const struct served *s) {
    return MIN(STAY_LOADS * s->load_ns, STAY_MS * INT64_C(1000000));
}

/* Returns true if the share of its users keeps @s in memory although @for_it waits for room. */
static bool models_is_held(const struct served *s, const struct served *for_it) {
    const struct models *m = s->of;
    int64_t now = models_now_ns(m), idle_ns = models_is_idle(s) ? now - models_idle_since(s) : 0;

    return s != for_it->old && model_share_holds(&m->share, &s->users, &for_it->users,
                                                 (double)stay_ns(s), idle_ns, now);
}

struct served *models_choose_victim(const struct served *for_it) {
    const struct models *m = for_it->of;
    struct served *idle = NULL, *busy = NULL;
    int64_t now = models_now_ns(m);

    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (s->state != SERVED_READY || !models_may_unload(s, for_it) || models_is_held(s, for_it))
            continue;
        if (models_is_idle(s) && (!idle || models_idle_since(s) < models_idle_since(idle)))
            idle = s;
        if (!models_is_idle(s) && (s == for_it->old || now - s->ready_ns >= stay_ns(s)) &&
            (!busy || s->ready_ns < busy->ready_ns))
            busy = s;
    }
    if (idle)
        return idle;
    return busy;
}

struct served *models_first_queued(const struct models *m) {
    struct served *first = NULL;
    double least = 0;

    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (s->state != SERVED_QUEUED)
            continue;
        double had = model_share_least(&m->share, &s->users, models_now_ns(m));
        if (first && (had > least || (had == least && s->queued_ns >= first->queued_ns)))
            continue;
        first = s;
        least = had;
    }
    return first;
}

void models_charge_memory(struct models *m) {
    int64_t now = models_now_ns(m), ns = now - m->charged_ns;
    double least = INFINITY;

    assert(ns >= 0);
    m->charged_ns = now;
    if (!models_first_queued(m))
        return;
    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (has_memory(s))
            model_share_charge(&m->share, &s->users, (double)s->bytes / (double)m->budget, ns, now);
        if (has_memory(s) || s->state == SERVED_QUEUED)
            least = MIN(least, model_share_least(&m->share, &s->users, now));
    }
    model_share_advance(&m->share, least);
}
