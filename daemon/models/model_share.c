#include "daemon/models/model_share.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

void model_share_deinit(struct model_share *s) {
    free(s->tenant);
    *s = (struct model_share){0};
}

/* Returns how many users of @u count, the latest first. */
static uint32_t n_using(const struct model_users *u, int64_t now) {
    uint32_t n = MIN(u->n, 1u);

    assert(u->n <= MODEL_USERS);
    while (n < u->n && now - u->user[n].at_ns < MODEL_USE_NS)
        n++;
    return n;
}

static bool uses(const struct model_users *u, uint32_t tenant, int64_t now) {
    for (uint32_t i = 0; i < n_using(u, now); i++)
        if (u->user[i].tenant == tenant)
            return true;
    return false;
}

static bool make_known(struct model_share *s, uint32_t tenant) {
    if (tenant < s->n)
        return true;
    if (!array_resize(&s->tenant, (size_t)tenant + 1, sizeof(*s->tenant)))
        return false;
    memset(s->tenant + s->n, 0, (tenant + 1 - s->n) * sizeof(*s->tenant));
    s->n = tenant + 1;
    return true;
}

void model_share_use(struct model_share *s, struct model_users *u, uint32_t tenant, double weight,
                     int64_t now) {
    uint32_t i = 0;

    assert(weight > 0);
    if (!make_known(s, tenant))
        return;
    s->tenant[tenant].weight = weight;
    s->tenant[tenant].virtual_ns = MAX(s->tenant[tenant].virtual_ns, s->virtual_ns);
    while (i < u->n && u->user[i].tenant != tenant)
        i++;
    if (i == u->n)
        u->n = MIN(u->n + 1, (uint32_t)MODEL_USERS);
    i = MIN(i, u->n - 1);
    memmove(u->user + 1, u->user, i * sizeof(u->user[0]));
    u->user[0] = (struct model_user){tenant, now};
}

void model_share_charge(struct model_share *s, const struct model_users *u, double part, int64_t ns,
                        int64_t now) {
    uint32_t n = n_using(u, now);

    assert(part >= 0 && ns >= 0);
    for (uint32_t i = 0; i < n; i++) {
        struct share_tenant *t = &s->tenant[u->user[i].tenant];

        assert(u->user[i].tenant < s->n && t->weight > 0);
        t->virtual_ns += part * (double)ns / n / t->weight;
        t->virtual_ns = MIN(t->virtual_ns, s->virtual_ns + MODEL_LEAD_NS);
    }
}

double model_share_least(const struct model_share *s, const struct model_users *u, int64_t now) {
    double least = u->n > 0 ? INFINITY : s->virtual_ns;

    for (uint32_t i = 0; i < n_using(u, now); i++)
        least = MIN(least, s->tenant[u->user[i].tenant].virtual_ns);
    return least;
}

void model_share_advance(struct model_share *s, double least) {
    assert(!isnan(least));
    s->virtual_ns = MAX(s->virtual_ns, least);
}

bool model_share_holds(const struct model_share *s, const struct model_users *u,
                       const struct model_users *other, double quantum_ns, int64_t idle_ns,
                       int64_t now) {
    double waits = model_share_least(s, other, now);

    if (idle_ns >= MODEL_HOLD_NS)
        return false;
    for (uint32_t i = 0; i < n_using(u, now); i++) {
        uint32_t tenant = u->user[i].tenant;

        if (!uses(other, tenant, now) && s->tenant[tenant].virtual_ns < waits + quantum_ns)
            return true;
    }
    return false;
}
