/*
 * Tenants are made once and kept: a live generation points to its own, and its number is part of
 * keys in the worker and of the numbers of sessions. A reload changes limits in place; the buckets
 * keep their level, so a reload gives no tenant a fresh minute. How many there can be is bounded by
 * the keys and the rows of the file. A reload visits each of them, and finds them by hashes.
 *
 * A request reserves its prompt and max_tokens. If a client gives no max_tokens, the end of the
 * context would be far too much: twice the tenant's mean answer is reserved, and what is used
 * beyond it makes the level negative. Debt is paid by waiting, so the limit holds in the mean
 * either way.
 */

#include "api/limits/tenant.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/http/conn.h"
#include "api/http/dialect.h"
#include "api/http/exchange.h"
#include "base/loop_bytes.h"
#include "base/try.h"

#define MEAN_START 256.0 /* tokens of an answer, before one has ended */
#define MEAN_MEMORY 0.9  /* weight of the old mean beside a new answer */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 60000

static struct api_tenant builtin(void) {
    struct api_tenant t = {.weight = 1, .class = TENANT_NORMAL};

    snprintf(t.name, sizeof(t.name), "default");
    return t;
}

struct tenant *tenants_find(const struct tenants *ts, const char *name) {
    HASH_INDEX_EACH(ts->by_name, hash_text(name), i) {
        loop_items(1);
        if (strcmp(ts->list[i]->conf.name, name) == 0)
            return ts->list[i];
    }
    return NULL;
}

static void configure(struct tenant *t, const struct api_tenant *row) {
    char name[sizeof(t->conf.name)];

    assert(row->class < TENANT_CLASSES);

    memcpy(name, t->conf.name, sizeof(name));
    t->conf = *row;
    memcpy(t->conf.name, name, sizeof(name));
    payer_set_weight(&t->payer, tenant_weight(t));
}

static struct tenant *tenant_add(struct tenants *ts, const char *name) {
    if (!array_resize(&ts->list, ts->n + 1, sizeof(struct tenant *)))
        return NULL;
    struct tenant *t = calloc(1, sizeof(*t));
    if (!t || hash_index_add(&ts->by_name, hash_text(name), ts->n) < 0) {
        free(t);
        return NULL;
    }
    list_init(&t->link);
    list_init(&t->waiting);
    pending_account_init(&t->submits);
    snprintf(t->conf.name, sizeof(t->conf.name), "%s", name);
    t->number = ts->n;
    t->mean_output = MEAN_START;
    payer_init(&t->payer, ts->payers, 1);
    ts->list[ts->n++] = t;
    return t;
}

/* Returns the row of a tenant that has none: the limits of the default, but neither its keys nor
 * its group. */
static struct api_tenant unlisted(const struct tenants *ts) {
    struct api_tenant row = ts->defaults;

    row.n_keys = row.n_uids = 0;
    row.share[0] = 0;
    return row;
}

int tenants_init(struct tenants *ts, struct payers *payers) {
    *ts = (struct tenants){.payers = payers, .defaults = builtin()};
    struct tenant *t = tenant_add(ts, ts->defaults.name);
    if (!t)
        return -ENOMEM;
    configure(t, &ts->defaults);
    return 0;
}

void tenants_deinit(struct tenants *ts) {
    for (uint32_t i = 0; i < ts->n; i++) {
        const struct tenant *t = ts->list[i];

        assert(t->number == i && list_empty(&t->waiting));
        assert(t->stats.n_running == 0 && t->stats.n_reserved == 0 && t->stats.n_context == 0);
        free(ts->list[i]);
    }
    free(ts->list);
    hash_index_deinit(&ts->by_name);
    hash_index_deinit(&ts->owners);
    memset(ts, 0, sizeof(*ts));
}

static const struct api_tenant *tenant_row(const struct api_tenant *rows, uint32_t n,
                                           const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static uint32_t tenant_hash_uid(uint32_t uid) {
    return (uint32_t)(hash_step(0, uid) >> 32);
}

/* Finds the owners of keys and users in the rows, which all have their tenants. Returns 0 or
 * -ENOMEM. */
static int tenants_owners(const struct tenants *ts, const struct api_tenant *rows, uint32_t n,
                          struct hash_index *out) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = tenants_find(ts, rows[i].name)->number;

        for (uint32_t k = 0; k < rows[i].n_keys; k++)
            TRY(hash_index_add(out, hash_text(rows[i].keys[k]), number));
        for (uint32_t k = 0; k < rows[i].n_uids; k++)
            TRY(hash_index_add(out, tenant_hash_uid(rows[i].uids[k]), number));
    }
    return 0;
}

/* Gives the tenants without a row the limits of the default, if these or their rows have
 * changed. */
static void tenants_set_rest(struct tenants *ts, bool changed) {
    struct api_tenant rest = unlisted(ts);

    for (uint32_t i = 0; i < ts->n; i++) {
        struct tenant *t = ts->list[i];
        bool had_row = t->listed + 1 == ts->n_sets;

        loop_items(1);
        if (t->listed != ts->n_sets && (changed || had_row))
            configure(t, i == 0 ? &ts->defaults : &rest);
    }
}

int tenants_set(struct tenants *ts, const struct api_tenant *rows, uint32_t n) {
    const struct api_tenant *d = tenant_row(rows, n, "default");
    struct api_tenant next = d ? *d : builtin();
    struct hash_index owners = {0};

    for (uint32_t i = 0; i < n; i++)
        if (!tenants_find(ts, rows[i].name) && !tenant_add(ts, rows[i].name))
            return -ENOMEM;
    if (tenants_owners(ts, rows, n, &owners) < 0) {
        hash_index_deinit(&owners);
        return -ENOMEM;
    }
    hash_index_deinit(&ts->owners);
    ts->owners = owners;
    bool changed = memcmp(&ts->defaults, &next, sizeof(next)) != 0;
    ts->defaults = next;
    ts->n_sets++;
    for (uint32_t i = 0; i < n; i++) {
        struct tenant *t = tenants_find(ts, rows[i].name);

        configure(t, &rows[i]);
        t->listed = ts->n_sets;
    }
    tenants_set_rest(ts, changed);
    return 0;
}

struct tenant *tenants_get(const struct tenants *ts, uint32_t number) {
    assert(ts->n > 0); /* `default` */
    return ts->list[number < ts->n ? number : 0];
}

struct tenant *tenants_named(struct tenants *ts, const char *name) {
    struct tenant *t = tenants_find(ts, name);
    if (t)
        return t;
    struct api_tenant rest = unlisted(ts);
    if ((t = tenant_add(ts, name)))
        configure(t, &rest);
    return t;
}

/* ---- identity ---- */

/* Returns the tenant that API key @name belongs to: the one whose row lists it, else that of the
 * same name, which is made if it is new. NULL: out of memory. */
static struct tenant *of_key(struct tenants *ts, const char *name) {
    HASH_INDEX_EACH(ts->owners, hash_text(name), i) {
        struct tenant *t = ts->list[i];

        loop_items(t->conf.n_keys);
        for (uint32_t k = 0; k < t->conf.n_keys; k++)
            if (strcmp(t->conf.keys[k], name) == 0)
                return t;
    }
    return tenants_named(ts, name);
}

/* Returns the tenant that lists the user at the other end of a UNIX socket, or NULL. */
static struct tenant *of_peer(const struct tenants *ts, const struct exchange *x) {
    uid_t uid;

    if (!conn_peer_uid(x->conn, &uid))
        return NULL;
    HASH_INDEX_EACH(ts->owners, tenant_hash_uid(uid), i) {
        struct tenant *t = ts->list[i];

        loop_items(t->conf.n_uids);
        for (uint32_t k = 0; k < t->conf.n_uids; k++)
            if (t->conf.uids[k] == uid)
                return t;
    }
    return NULL;
}

static bool tenant_sends_key(const struct http *h) {
    uint32_t n_bearer, n_plain;

    http_header(h, "authorization", &n_bearer);
    http_header(h, "x-api-key", &n_plain);
    return n_bearer + n_plain > 0;
}

/* A key takes precedence over the socket's user; a user that is listed needs no key. */
int tenant_identify(struct tenants *ts, const struct auth *a, struct exchange *x,
                    const struct http *h, struct err *err) {
    struct tenant *t = NULL;
    const struct auth_key *key;

    x->tenant = 0;
    if (!a->file || !tenant_sends_key(h))
        t = of_peer(ts, x);
    if (!t && a->file) {
        TRY(auth_check(a, h, &key, err));
        assert(key && key->tenant < a->n_tenants);
        if (!(t = of_key(ts, a->names[key->tenant])))
            return -ENOMEM;
        x->key = key->tenant + 1;
        x->is_operator = key->is_operator;
    }
    x->tenant = t ? t->number : 0;
    if (t)
        conn_set_payer(x->conn, &t->payer);
    return 0;
}

void tenant_isolation_name(const struct tenant *t, char out[AUTH_ISOLATION_NAME]) {
    memset(out, 0, AUTH_ISOLATION_NAME);
    snprintf(out, AUTH_ISOLATION_NAME, "%s:%s", *t->conf.share ? "group" : "tenant",
             *t->conf.share ? t->conf.share : t->conf.name);
}

/* Classes are factors of the weight, in the front and in the worker, so that none waits for ever
 * behind another. */
double tenant_weight(const struct tenant *t) {
    static const double factor[TENANT_CLASSES] = {1, 8, 0.125};

    assert(t->conf.class < TENANT_CLASSES && t->conf.weight > 0);

    return t->conf.weight * factor[t->conf.class];
}

/* ---- buckets ---- */

static void refill_both(struct tenant *t, int64_t now) {
    double requests = t->conf.requests_per_minute, tokens = (double)t->conf.tokens_per_minute;

    bucket_refill(&t->requests, requests, requests / 60, now);
    bucket_refill(&t->tokens, tokens, tokens / 60, now);
}

/* Returns the time until bucket @b holds @level. */
static double tenant_wait_ms(const struct bucket *b, double level, double per_minute) {
    return MAX(level - b->level, 0) / per_minute * 60e3;
}

static int tenant_refuse(struct tenant *t, const char *what, double limit, double ms,
                         uint32_t *retry_ms, struct err *err) {
    t->stats.n_limited++;
    *retry_ms = (uint32_t)MIN(MAX(ms, RETRY_MIN_MS), RETRY_MAX_MS);
    return err_set_code(err, 429, "rate_limit_exceeded", NULL,
                        "Rate limit reached for %s per minute: the limit is %.0f. Please try again "
                        "in %.1fs.",
                        what, limit, *retry_ms / 1000.0);
}

int tenant_request(struct tenant *t, uint64_t n_tokens, int64_t now, uint32_t *retry_ms,
                   struct err *err) {
    double rpm = t->conf.requests_per_minute, tpm = (double)t->conf.tokens_per_minute;
    double need = MIN((double)n_tokens, tpm);

    refill_both(t, now);
    if (rpm > 0 && t->requests.level < 1)
        return tenant_refuse(t, "requests", rpm, tenant_wait_ms(&t->requests, 1, rpm), retry_ms,
                             err);
    if (tpm > 0 && t->tokens.level < need)
        return tenant_refuse(t, "tokens", tpm, tenant_wait_ms(&t->tokens, need, tpm), retry_ms,
                             err);
    t->requests.level -= 1;
    t->stats.n_requests++;
    return 0;
}

uint32_t tenant_expects(const struct tenant *t, uint32_t max_new) {
    return (uint32_t)MIN(2 * t->mean_output, (double)max_new);
}

void charge_acquire(struct charge *c, struct tenant *t, uint64_t n_tokens, uint64_t n_context,
                    int64_t now) {
    assert(!c->tenant && t);
    refill_both(t, now);
    *c = (struct charge){.tenant = t, .reserved = n_tokens, .context = n_context};
    t->tokens.level -= (double)n_tokens;
    t->stats.n_reserved += n_tokens;
}

void charge_run(struct charge *c) {
    assert(c->tenant || (!c->runs && c->reserved == 0 && c->context == 0));
    if (!c->tenant || c->runs)
        return;
    c->runs = true;
    c->tenant->stats.n_running++;
    c->tenant->stats.n_context += c->context;
}

static void tenant_stop(struct charge *c) {
    if (!c->runs)
        return;
    assert(c->tenant->stats.n_running > 0 && c->tenant->stats.n_context >= c->context);
    c->runs = false;
    c->tenant->stats.n_running--;
    c->tenant->stats.n_context -= c->context;
}

/* Gives the whole charge back, less @n_used tokens. */
static void tenant_refund(struct charge *c, uint64_t n_used, int64_t now) {
    struct tenant *t = c->tenant;

    if (!t)
        return;
    assert(t->stats.n_reserved >= c->reserved);
    tenant_stop(c);
    refill_both(t, now);
    t->tokens.level += (double)c->reserved - (double)n_used;
    t->tokens.level = MIN(t->tokens.level, (double)t->conf.tokens_per_minute);
    t->stats.n_reserved -= c->reserved;
    *c = (struct charge){0};
}

void charge_settle(struct charge *c, uint32_t n_prompt, uint32_t n_cached, uint32_t n_output,
                   int64_t now) {
    struct tenant *t = c->tenant;

    if (!t)
        return;
    t->stats.n_prompt_tokens += n_prompt;
    t->stats.n_cached_tokens += n_cached;
    t->stats.n_output_tokens += n_output;
    if (n_output > 0)
        t->mean_output = t->mean_output * MEAN_MEMORY + n_output * (1 - MEAN_MEMORY);
    tenant_refund(c, (uint64_t)n_prompt + n_output, now);
}

void charge_deinit(struct charge *c, int64_t now) {
    tenant_refund(c, 0, now);
}

/* ---- headers ---- */

size_t tenant_put_headers(struct tenant *t, const struct dialect *dialect, int64_t now, char *out,
                          size_t size) {
    double requests = t->conf.requests_per_minute, tokens = (double)t->conf.tokens_per_minute;
    size_t n = 0;

    refill_both(t, now);
    if (requests > 0) {
        struct limit_left l = {"requests", requests, MAX(t->requests.level - 0.5, 0),
                               tenant_wait_ms(&t->requests, requests, requests)};
        n = dialect->put_limit(&l, out, size);
    }
    if (tokens > 0) {
        struct limit_left l = {"tokens", tokens, MAX(t->tokens.level - 0.5, 0),
                               tenant_wait_ms(&t->tokens, tokens, tokens)};
        n += dialect->put_limit(&l, out + n, size - n);
    }
    return n;
}
