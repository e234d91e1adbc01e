#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "api/http/exchange.h"
#include "api/generation/gen.h"
#include "api/private.h"

/* What comes from daemon/: the worker's events and life, and what the admin socket asks. */

void api_on_event(struct api *a, const struct event *e) {
    gen_on_event(a, e);
}

void api_on_stats(struct api *a, const struct msg_stats *s) {
    a->metrics.worker = *s;
    a->metrics.has_worker = true;
}

void api_worker_down(struct api *a) {
    a->worker_up = false;
    a->metrics.has_worker = false;
    a->stats.n_workers_lost++;
    memset(&a->metrics.worker, 0, sizeof(a->metrics.worker));
    gen_worker_down(a);
}

void api_worker_failed(struct api *a, const char *why, uint32_t retry_ms) {
    assert(!a->worker_up && *why && retry_ms > 0);
    snprintf(a->failure, sizeof(a->failure), "%s", why);
    a->failure_retry_ms = retry_ms;
    gen_worker_failed(a);
}

void api_worker_up(struct api *a, uint32_t (*n_faults)(struct api_port *p, uint64_t id)) {
    a->worker_up = true;
    *a->failure = 0;
    gen_worker_up(a, n_faults);
}

void api_stats(const struct api *a, struct api_stats *out) {
    *out = a->stats;
    out->n_connections = a->http.n_connections;
    out->n_rejected += a->http.n_refused;
    out->n_displaced = a->http.n_displaced;
    out->n_lost_bodies = a->http.n_lost_bodies;
    out->n_lost_outputs = a->http.n_lost_outputs;
    out->n_running = a->admit.n_running;
    out->n_queued = a->admit.n_queued;
    out->loop_lag_us = (uint32_t)MIN(loop_lag_longest_ns(&a->lag) / 1000, UINT32_MAX);
}

static const char *state_of(const struct gen *g) {
    return g->state == GEN_RUNNING && g->first_step_ns ? "running" : "queued";
}

uint32_t api_requests(const struct api *a, struct api_request_info *out, uint32_t max) {
    int64_t now = clock_now(a->clock);
    uint32_t n = 0;

    for (const struct list *l = a->gens.next; l != &a->gens && n < max; l = l->next) {
        const struct gen *g = LIST_ENTRY(l, struct gen, link);
        const struct exchange *x = g->exchange ? *g->exchange : NULL;

        if (g->state == GEN_DONE || !x)
            continue;
        struct api_request_info *i = &out[n++];
        *i = (struct api_request_info){
            .id = g->m.id,
            .endpoint = x->route->path,
            .state = state_of(g),
            .session = g->m.session,
            .session_from = g->session_from,
            .n_prompt = g->n_prompt,
            .n_output = g->n_out,
            .n_cached = g->n_cached,
            .max_new = g->m.max_new,
            .age_ms = (now - g->m.arrived_ns) / 1000000,
        };
        snprintf(i->request_id, sizeof(i->request_id), "%s", x->id);
    }
    return n;
}

void port_note_request(struct api *a, const char *request_id, uint64_t id) {
    struct api_recent *r = &a->recent[a->n_recent++ % API_RECENT];

    snprintf(r->request_id, sizeof(r->request_id), "%s", request_id);
    r->id = id;
}

bool api_find(const struct api *a, const char *request_id, uint64_t *id) {
    for (uint64_t i = a->n_recent; i > 0 && i + API_RECENT > a->n_recent; i--) {
        const struct api_recent *r = &a->recent[(i - 1) % API_RECENT];

        if (strcmp(r->request_id, request_id) == 0) {
            *id = r->id;
            return true;
        }
    }
    return false;
}

uint32_t api_tenants(const struct api *a, struct api_tenant_info *out, uint32_t max) {
    uint32_t n = MIN(a->tenants.n, max);

    for (uint32_t i = 0; i < n; i++) {
        const struct tenant *t = a->tenants.list[i];

        out[i] = (struct api_tenant_info){
            .weight = t->conf.weight,
            .class = t->conf.class,
            .stats = t->stats,
        };
        snprintf(out[i].name, sizeof(out[i].name), "%s", t->conf.name);
    }
    return n;
}

bool api_cancel(struct api *a, uint64_t id) {
    struct gen *g = gen_find(a, id);

    if (!g || g->state == GEN_DONE)
        return false;
    gen_fail(g, 503, "cancelled", "The generation was cancelled by the operator.");
    return true;
}
