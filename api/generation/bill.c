/* Usage is counted by the daemon that holds the client's connection. During an upgrade the new
 * daemon also computes requests of the old daemon's clients; it counts these in its metrics
 * only. */

#include "api/generation/bill.h"

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/limits/usage_limit.h"
#include "base/try.h"

/* Counts @sum for the metrics of model and tenant. */
static void count_metrics(struct model *m, const struct tenant *t, const struct usage_sum *sum) {
    struct tenant_stats *s = model_of_tenant(m, t->number);

    if (!s)
        return;
    s->n_requests += sum->requests;
    s->n_prompt_tokens += sum->prompt_tokens;
    s->n_cached_tokens += sum->cached_tokens;
    s->n_output_tokens += sum->output_tokens;
}

static void bill_count(struct gen_env *env, const struct tenant *t, uint32_t key, struct model *m,
                       const struct usage_sum *sum) {
    count_metrics(m, t, sum);
    usage_count(&env->usage, t->conf.name, key ? env->auth.names[key - 1] : "", m->info->id, sum);
}

int bill_request(struct exchange *x, struct model *m, uint64_t n_tokens, struct err *err) {
    struct gen_env *env = env_of(x);
    struct tenant *t = tenants_get(&env->tenants, x->tenant);

    TRY(usage_limit_check(&env->usage, t, n_tokens, &x->retry_ms, err));
    TRY(tenant_request(t, n_tokens, clock_now(env->clock), &x->retry_ms, err));
    bill_count(env, t, x->key, m, &(struct usage_sum){.requests = 1});
    return 0;
}

void bill_tokens(struct model *m, const struct tenant *t, const uint32_t *key,
                 const struct usage_sum *sum) {
    if (key)
        bill_count(m->env, t, *key, m, sum);
    else
        count_metrics(m, t, sum);
}
