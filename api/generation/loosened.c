#include "api/generation/loosened.h"

#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/limits/tenant.h"
#include "base/log.h"
#include "base/printable.h"

#define HEADER_MAX 384
#define TAIL_MAX 24 /* " and 4294967295 more" */

/* Writes @text without what a list in a header may not have. Returns its length, or 0 if it does
 * not fit. */
static size_t loosened_put_escaped(const char *text, char *out, size_t size) {
    size_t n = 0;

    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool plain = *c > 0x20 && *c < 0x7f && !strchr(",%\"", *c);

        if (n + 4 > size)
            return 0;
        n += (size_t)snprintf(out + n, size - n, plain ? "%c" : "%%%02X", *c);
    }
    return n;
}

void loosened_text(const struct loosened_list *list, char *out, size_t size) {
    size_t n = 0, room = size - TAIL_MAX;
    uint32_t i;

    for (i = 0; i < list->n && i < LOOSENED_KEPT; i++) {
        char one[700];
        const struct loosened *v = &list->v[i];
        size_t len = loosened_put_escaped(v->tool, one, sizeof(one) / 3);

        one[len++] = '#';
        len += loosened_put_escaped(v->place, one + len, sizeof(one) - len);
        if (n + len + 3 > room)
            break;
        n += (size_t)snprintf(out + n, room - n, "%s%.*s", i ? ", " : "", (int)len, one);
    }
    if (i < list->n)
        snprintf(out + n, size - n, i ? " and %u more" : "%u places", list->n - i);
}

static void notify_in_head(struct exchange *x, const char *text) {
    char line[HEADER_MAX];
    int n = snprintf(line, sizeof(line), "X-Weft-Loosened: %s\r\n", text);

    if (!x->headers && n > 0 && (size_t)n < sizeof(line))
        x->headers = x->own_headers = strdup(line);
}

/* Tells it in the first event: there is no head, or it was sent while the model was loaded. */
static void notify_in_event(struct exchange *x, const char *text) {
    CLEANUP(buf_deinit) struct buf b = {.max = HEADER_MAX};
    struct json j = {.out = &b};

    json_print(&j, "weft:{loosened:%s}", text);
    if (!x->member && j.error == 0 && buf_add_char(&b, 0) == 0)
        x->member = STEAL(b.data);
}

void loosened_report(struct exchange *x, const struct loosened_list *list, const char *text) {
    struct gen_env *env = env_of(x);
    struct tenant *t = tenants_get(&env->tenants, x->tenant);

    if (x->framed || x->stream)
        notify_in_event(x, text);
    else
        notify_in_head(x, text);
    if (!log_limit_allows(&env->log_limit, x->tenant ? &t->log : NULL, x, clock_now(env->clock)))
        return;
    log_event(WLOG_WARN, "schema_loosened", "id=%s tenant=%s model=%s n=%u places=%s", x->id,
              quoted(t->conf.name).s, quoted(x->model).s, list->n, quoted(text).s);
}
