/*
 * The keys of a section are the rows of the table below. The rows of struct reading are the
 * sections, in the order of the file; after the last line each section takes the keys that it lacks
 * from [default].
 */

#include "daemon/config/tenants.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash_index.h"
#include "base/try.h"
#include "daemon/config/keyfile.h"
#include "text/repeats.h"

#define AT(field) offsetof(struct api_tenant, field)

enum key_type {
    KEY_UINT32,
    KEY_UINT64,
    KEY_WEIGHT,
    KEY_CLASS,
    KEY_NAME,
    KEY_NAMES,
    KEY_UIDS,
    KEY_MODELS
};

static const struct key {
    const char *name;
    enum key_type type;
    size_t offset;
    uint64_t max;
} keys[] = {
    {"weight", KEY_WEIGHT, AT(weight), 1000},
    {"class", KEY_CLASS, AT(class), 0},
    {"share", KEY_NAME, AT(share), 0},
    {"keys", KEY_NAMES, 0, API_TENANT_KEYS},
    {"uids", KEY_UIDS, 0, API_TENANT_UIDS},
    {"models", KEY_MODELS, 0, API_TENANT_MODELS},
    {"requests-per-minute", KEY_UINT32, AT(requests_per_minute), 1000000},
    {"tokens-per-minute", KEY_UINT64, AT(tokens_per_minute), 1000000000000},
    {"requests-per-day", KEY_UINT64, AT(requests_per_day), 1000000000000},
    {"requests-per-month", KEY_UINT64, AT(requests_per_month), 1000000000000},
    {"tokens-per-day", KEY_UINT64, AT(tokens_per_day), 1000000000000000},
    {"tokens-per-month", KEY_UINT64, AT(tokens_per_month), 1000000000000000},
    {"max-running", KEY_UINT32, AT(max_running), 100000},
    {"max-queued", KEY_UINT32, AT(max_queued), 100000},
    {"kv-tokens", KEY_UINT64, AT(kv_tokens), 1000000000000},
    {"max-context", KEY_UINT32, AT(max_context), 100000000},
    {"loop-breaker", KEY_UINT32, AT(loop_tokens), REPEATS_MAX},
};

/* A section of the file, and the keys that it has given. */
struct row {
    struct api_tenant t;
    bool given[ARRAY_SIZE(keys)];
};

struct reading {
    /* [n_rows] sections */
    struct row *row;
    uint32_t n_rows;
    /* of rows */
    struct hash_index by_name;
    /* rows by the names of their keys and their uids */
    struct hash_index owners;
    struct err *err;
};

/* Checks the name of a tenant, which becomes part of log lines, labels and hashes. */
static bool tenants_is_name(const char *s, size_t n) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@";

    return n > 0 && n < 64 && strspn(s, good) >= n;
}

static int bad_name(struct reading *r, const char *key, const char *text) {
    return err_set(r->err, 0, key,
                   "%s: must be 1 to 63 letters, digits, '-', '_', '.' or '@', not \"%s\"", key,
                   text);
}

static int bad_number(struct reading *r, const struct key *k, const char *text) {
    return err_set(r->err, 0, k->name,
                   "%s: must be a whole number from 0 (no limit) to %llu, not \"%s\"", k->name,
                   (unsigned long long)k->max, text);
}

static int tenants_set_number(struct reading *r, const struct key *k, char *at, const char *text) {
    char *end;
    unsigned long long v = strtoull(text, &end, 10); /* of more digits: the largest, above k->max */

    if (*text < '0' || *text > '9' || *end || v > k->max)
        return bad_number(r, k, text);
    memcpy(at, &v, k->type == KEY_UINT32 ? sizeof(uint32_t) : sizeof(uint64_t));
    return 0;
}

/* Sets a weight. Returns 0 or -EINVAL with r->err. The range excludes weights that mean never or
 * always. */
static int set_weight(struct reading *r, const struct key *k, char *at, const char *text) {
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= 0.01) || !(v <= 1000))
        return err_set(r->err, 0, k->name, "%s: must be a number from 0.01 to 1000, not \"%s\"",
                       k->name, text);
    memcpy(at, &v, sizeof(v));
    return 0;
}

/* Sets the number of the class, as api_tenant.class has it. Returns 0 or -EINVAL with r->err. */
static int tenants_set_class(struct reading *r, const struct key *k, char *at, const char *text) {
    static const char *const names[] = {"normal", "interactive", "batch"};

    for (uint32_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            memcpy(at, &i, sizeof(i));
            return 0;
        }
    }
    return err_set(r->err, 0, k->name, "%s: must be one of interactive|normal|batch, not \"%s\"",
                   k->name, text);
}

static uint32_t tenants_hash_uid(uint32_t uid) {
    return (uint32_t)(hash_step(0, uid) >> 32);
}

/* Returns the tenant that already has key name or uid @text; each must belong to one tenant. */
static const char *owner_of(const struct reading *r, const struct api_tenant *but, const char *key,
                            const uint32_t *uid) {
    uint32_t hash;

    if (key)
        hash = hash_text(key);
    else
        hash = tenants_hash_uid(*uid);
    HASH_INDEX_EACH(r->owners, hash, i) {
        const struct api_tenant *t = &r->row[i].t;

        for (uint32_t k = 0; key && k < t->n_keys && t != but; k++)
            if (strcmp(t->keys[k], key) == 0)
                return t->name;
        for (uint32_t k = 0; uid && k < t->n_uids && t != but; k++)
            if (t->uids[k] == *uid)
                return t->name;
    }
    return NULL;
}

/* Notes that @t has the key or uid of this hash. Returns 0 or -ENOMEM. */
static int tenants_own(struct reading *r, const struct api_tenant *t, uint32_t hash) {
    const struct row *row = CONTAINER_OF(t, const struct row, t);

    return hash_index_add(&r->owners, hash, (uint32_t)(row - r->row));
}

static int taken(struct reading *r, const char *key, const char *item, const char *owner) {
    return err_set(r->err, 0, key, "%s: \"%s\" belongs to tenant %s already", key, item, owner);
}

/* Returns the number of entries of the list @k of @t. */
static uint32_t *count_of(const struct key *k, struct api_tenant *t) {
    if (k->type == KEY_NAMES)
        return &t->n_keys;
    if (k->type == KEY_UIDS)
        return &t->n_uids;
    assert(k->type == KEY_MODELS);
    return &t->n_models;
}

/* Adds one entry of the list `keys`, `uids` or `models`. Returns 0, or -EINVAL with r->err if the
 * entry is not valid or belongs to another tenant. */
static int tenants_add_item(struct reading *r, const struct key *k, struct api_tenant *t,
                            const char *item) {
    uint32_t *n = count_of(k, t);
    const char *owner;
    char *end;

    if (*n == k->max)
        return err_set(r->err, 0, k->name, "%s: at most %llu entries", k->name,
                       (unsigned long long)k->max);
    if (k->type == KEY_MODELS) {
        if (strlen(item) >= sizeof(t->models[0]) || strcspn(item, "*") + 1 < strlen(item))
            return err_set(r->err, 0, k->name,
                           "%s: must be names of at most %zu characters, with \"*\" only at their "
                           "ends, not \"%s\"",
                           k->name, sizeof(t->models[0]) - 1, item);
        strcpy(t->models[(*n)++], item);
        return 0;
    }
    if (k->type == KEY_NAMES) {
        if (!tenants_is_name(item, strlen(item)))
            return bad_name(r, k->name, item);
        if ((owner = owner_of(r, t, item, NULL)))
            return taken(r, k->name, item, owner);
        assert(*n < API_TENANT_KEYS && strlen(item) < sizeof(t->keys[0]));
        strcpy(t->keys[(*n)++], item);
        return tenants_own(r, t, hash_text(item));
    }
    unsigned long long v = *item >= '0' && *item <= '9' ? strtoull(item, &end, 10) : UINT64_MAX;
    if (v >= UINT32_MAX || *end)
        return err_set(r->err, 0, k->name, "%s: must be user ids (numbers), not \"%s\"", k->name,
                       item);
    uint32_t uid = (uint32_t)v;
    if ((owner = owner_of(r, t, NULL, &uid)))
        return taken(r, k->name, item, owner);
    assert(*n < API_TENANT_UIDS);
    t->uids[(*n)++] = uid;
    return tenants_own(r, t, tenants_hash_uid(uid));
}

/* Adds the entries of @text, which are separated by spaces or commas, to the list @k of @t. */
static int tenants_set_list(struct reading *r, const struct key *k, struct api_tenant *t,
                            const char *text) {
    char item[200];
    int e = 0;

    while (*text && e == 0) {
        size_t skip = strspn(text, " ,"), len = strcspn(text + skip, " ,");

        snprintf(item, sizeof(item), "%.*s", (int)MIN(len, sizeof(item) - 1), text + skip);
        if (len > 0)
            e = tenants_add_item(r, k, t, item);
        text += skip + len;
    }
    return e;
}

/* Sets key @k of @t to @text. Returns 0 or -EINVAL with r->err. */
static int tenants_set_key(struct reading *r, const struct key *k, struct api_tenant *t,
                           const char *text) {
    char *at = (char *)t + k->offset;

    switch (k->type) {
    case KEY_UINT32:
    case KEY_UINT64:
        return tenants_set_number(r, k, at, text);
    case KEY_WEIGHT:
        return set_weight(r, k, at, text);
    case KEY_CLASS:
        return tenants_set_class(r, k, at, text);
    case KEY_NAME:
        if (!tenants_is_name(text, strlen(text)))
            return bad_name(r, k->name, text);
        strcpy(at, text);
        return 0;
    case KEY_NAMES:
    case KEY_UIDS:
    case KEY_MODELS:
        return tenants_set_list(r, k, t, text);
    }
    return -EINVAL;
}

/* Finds the row of section @name, or makes it. Returns 0, -ENOMEM, or -EINVAL with r->err: there
 * cannot be another row. */
static int tenants_row(struct reading *r, const char *name, struct row **out) {
    HASH_INDEX_EACH(r->by_name, hash_text(name), i) {
        *out = &r->row[i];
        if (strcmp((*out)->t.name, name) == 0)
            return 0;
    }
    if (!*name)
        return err_set(r->err, 0, "", "a key must stand in a section: [default] or [NAME]");
    if (!tenants_is_name(name, strlen(name)))
        return bad_name(r, "section", name);
    if (r->n_rows == API_TENANTS_MAX)
        return err_set(r->err, 0, "",
                       "the file has more sections than the limit: at most %d tenants",
                       API_TENANTS_MAX);
    TRY(hash_index_add(&r->by_name, hash_text(name), r->n_rows));
    struct row *row = *out = &r->row[r->n_rows++];
    assert(strlen(name) < sizeof(row->t.name));
    *row = (struct row){.t = {.weight = 1}};
    strcpy(row->t.name, name);
    return 0;
}

/* Takes a pair of the file. A key may occur once in a section; a section may be continued later. */
static int tenants_on_pair(void *ctx, uint32_t line, const char *section, const char *name,
                           const char *value, struct err *err) {
    struct reading *r = ctx;
    struct row *row = NULL;

    r->err = err;
    TRY(tenants_row(r, section, &row));
    for (uint32_t i = 0; i < ARRAY_SIZE(keys); i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (row->given[i])
            return err_set(r->err, 0, name, "%s: given twice in [%s]", name, section);
        row->given[i] = true;
        if (strcmp(section, "default") == 0 &&
            (keys[i].type == KEY_NAMES || keys[i].type == KEY_UIDS))
            return err_set(r->err, 0, name,
                           "%s: cannot be set in [default], which applies to all other clients",
                           name);
        return tenants_set_key(r, &keys[i], &row->t, value);
    }
    return err_set(
        r->err, 0, name,
        "%s: unknown key (weight, class, share, keys, uids, models, requests-per-minute, "
        "tokens-per-minute, requests-per-day, requests-per-month, tokens-per-day, "
        "tokens-per-month, max-running, max-queued, kv-tokens, max-context, "
        "loop-breaker)",
        name);
}

/* Copies the keys that a section leaves out from [default], except keys that belong to one tenant
 * only. */
static void inherit(struct reading *r) {
    const struct row *d = NULL;

    for (uint32_t i = 0; i < r->n_rows && !d; i++)
        d = strcmp(r->row[i].t.name, "default") == 0 ? &r->row[i] : NULL;
    for (uint32_t i = 0; d && i < r->n_rows; i++)
        for (uint32_t k = 0; k < ARRAY_SIZE(keys); k++) {
            static const size_t size[] = {
                [KEY_UINT32] = 4, [KEY_UINT64] = 8, [KEY_WEIGHT] = 8, [KEY_CLASS] = 4};
            bool plain = keys[k].type <= KEY_CLASS;

            if (plain && !r->row[i].given[k])
                memcpy((char *)&r->row[i].t + keys[k].offset, (const char *)&d->t + keys[k].offset,
                       size[keys[k].type]);
            if (keys[k].type == KEY_MODELS && !r->row[i].given[k]) {
                memcpy(r->row[i].t.models, d->t.models, sizeof(d->t.models));
                r->row[i].t.n_models = d->t.n_models;
            }
        }
}

int tenants_read(const char *path, struct api_tenant **out, uint32_t *n, struct err *err) {
    /* filled by tenants_row() */
    CLEANUP(freep) struct row *rows = malloc(API_TENANTS_MAX * sizeof(*rows));
    struct reading r = {.row = rows};

    if (!rows)
        return -ENOMEM;
    int error = keyfile_read(path, "tenants", tenants_on_pair, &r, err);
    hash_index_deinit(&r.by_name);
    hash_index_deinit(&r.owners);
    if (error < 0)
        return error;
    inherit(&r);
    struct api_tenant *t = calloc(r.n_rows + 1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    for (uint32_t i = 0; i < r.n_rows; i++)
        t[i] = rows[i].t;
    *out = t;
    *n = r.n_rows;
    return 0;
}
