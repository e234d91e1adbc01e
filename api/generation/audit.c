#include "api/generation/audit.h"

#include <string.h>

#include "api/generation/env.h"
#include "api/http/exchange.h"
#include "api/limits/tenant.h"
#include "base/log.h"
#include "base/printable.h"

int audit_client(const struct exchange *x, const char *action, const char *target, int r,
                 const struct err *err) {
    struct gen_env *env = env_of(x);
    struct tenant *t = tenants_get(&env->tenants, x->tenant);
    const char *key = x->key ? env->auth.names[x->key - 1] : "";
    const char *why = "";

    if (r != 0)
        why = *err->message ? err->message : strerror(-r);
    if (!log_limit_allows(&env->log_limit, x->tenant ? &t->log : NULL, x, clock_now(env->clock)))
        return r;
    log_event(WLOG_NOTICE, "audit",
              "action=%s target=%s by=client tenant=%s key=%s client=%s id=%s result=%s reason=%s",
              action, quoted(target).s, quoted(t->conf.name).s, quoted(key).s, x->client, x->id,
              r == 0 ? "accepted" : "refused", quoted(why).s);
    return r;
}

void audit_load(const struct tenant *t, const char *model) {
    log_event(WLOG_NOTICE, "audit", "action=load target=%s by=request tenant=%s result=accepted",
              quoted(model).s, quoted(t->conf.name).s);
}
