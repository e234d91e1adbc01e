#include "api/limits/usage_limit.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "api/limits/tenant.h"
#include "api/limits/usage.h"

static uint64_t usage_limit_tokens(const struct usage_sum *s) {
    return s->prompt_tokens + s->output_tokens;
}

uint32_t usage_limits(const struct usage *u, const struct tenant *t,
                      struct usage_limit out[USAGE_LIMITS]) {
    const struct api_tenant *c = &t->conf;
    uint32_t n = 0;

    if (!(c->requests_per_day || c->tokens_per_day || c->requests_per_month || c->tokens_per_month))
        return 0;
    int64_t now = usage_now(u), next_day = usage_next_day(now), next_month = usage_next_month(now);
    uint32_t today = usage_day(now), month = today / 100 * 100;
    struct usage_sum d = usage_table_sum(&u->all, c->name, today, today);
    struct usage_sum m = usage_table_sum(&u->all, c->name, month, month + 31);
    const struct usage_limit all[USAGE_LIMITS] = {
        {"requests_per_day", "requests", "day", c->requests_per_day, d.requests, next_day},
        {"tokens_per_day", "tokens", "day", c->tokens_per_day, usage_limit_tokens(&d), next_day},
        {"requests_per_month", "requests", "month", c->requests_per_month, m.requests, next_month},
        {"tokens_per_month", "tokens", "month", c->tokens_per_month, usage_limit_tokens(&m),
         next_month},
    };

    for (uint32_t i = 0; i < USAGE_LIMITS; i++)
        if (all[i].limit > 0)
            out[n++] = all[i];
    return n;
}

/* Returns how much of @q is left, or 0. */
static uint64_t left(const struct usage_limit *q) {
    if (q->limit <= q->used)
        return 0;
    return q->limit - q->used;
}

static int usage_limit_refuse(const struct usage *u, struct tenant *t, const struct usage_limit *q,
                              uint64_t need, uint32_t *retry_ms, struct err *err) {
    int64_t wait_s = MAX(q->resets_s - usage_now(u), 1);
    time_t at = (time_t)q->resets_s;
    char when[32], rest[200] = "";
    struct tm tm;

    strftime(when, sizeof(when), "%Y-%m-%d %H:%M UTC", gmtime_r(&at, &tm));
    if (*q->what == 't')
        snprintf(rest, sizeof(rest),
                 " The request may need %llu tokens, and %llu are left: a smaller max_tokens may "
                 "fit (without it, %u are reserved for an answer).",
                 (unsigned long long)need, (unsigned long long)left(q),
                 tenant_expects(t, UINT32_MAX));
    t->stats.n_limited++;
    *retry_ms = (uint32_t)MIN(wait_s * 1000, (int64_t)UINT32_MAX);
    return err_set_code(err, 429, "insufficient_quota", NULL,
                        "Quota exceeded: %s per %s, the limit is %llu.%s A new %s begins at %s.",
                        q->what, q->window, (unsigned long long)q->limit, rest, q->window, when);
}

int usage_limit_check(const struct usage *u, struct tenant *t, uint64_t n_tokens,
                      uint32_t *retry_ms, struct err *err) {
    struct usage_limit q[USAGE_LIMITS];
    const struct usage_limit *worst = NULL;
    uint32_t n = usage_limits(u, t, q);

    for (uint32_t i = 0; i < n; i++) {
        bool of_tokens = *q[i].what == 't';

        if (of_tokens)
            q[i].used += t->stats.n_reserved;
        uint64_t need = of_tokens ? n_tokens : 1;
        if (need > left(&q[i]) && (!worst || q[i].resets_s > worst->resets_s))
            worst = &q[i];
    }
    if (worst)
        return usage_limit_refuse(u, t, worst, n_tokens, retry_ms, err);
    return 0;
}
