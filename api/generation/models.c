#include "api/generation/models.h"

#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "base/model_dir.h"

struct model *models_find_exactly(const struct gen_env *env, const char *name, size_t len) {
    struct model *aliased = NULL;

    LIST_FOREACH_ENTRY(m, &env->models.list, struct model, link) {
        if (!model_has_name(m, name, len))
            continue;
        if (strlen(m->id) == len && memcmp(m->id, name, len) == 0)
            return m;
        aliased = aliased ? aliased : m;
    }
    return aliased;
}

struct model *models_find(const struct gen_env *env, const char *name, size_t len) {
    static const char tag[] = ":latest";
    struct model *m = models_find_exactly(env, name, len);
    size_t n = sizeof(tag) - 1;

    if (!m && len > n && memcmp(name + len - n, tag, n) == 0)
        m = models_find_exactly(env, name, len - n);
    if (!m)
        m = models_find_exactly(env, name, model_name_stem(name, len));
    return m;
}

bool models_are_allowed(const struct tenant *t, const struct model *m) {
    const struct api_tenant *c = &t->conf;

    for (uint32_t i = 0; i < c->n_models; i++) {
        size_t n = strlen(c->models[i]);
        bool open = n > 0 && c->models[i][n - 1] == '*';

        if (open && strncmp(m->info->id, c->models[i], n - 1) == 0)
            return true;
        if (!open && model_has_name(m, c->models[i], n))
            return true;
    }
    return c->n_models == 0;
}

bool models_may_use(const struct exchange *x, const struct model *m) {
    return models_are_allowed(tenants_get(&env_of(x)->tenants, x->tenant), m);
}

int models_hidden(const char *name, struct err *err) {
    if (!name)
        return err_set_code(err, 404, "model_not_found", "model",
                            "This API key may not use the default model. Send the name of one of "
                            "those that GET /v1/models lists.");
    return err_set_code(err, 404, "model_not_found", "model",
                        "The model `%.200s` does not exist or this API key may not use it.", name);
}

/* Returns true if any name is accepted: there is one model, and any-model-name is on. */
static bool allows_any_name(const struct gen_env *env) {
    return env->opts.any_model_name && env->models.list.next == env->models.list.prev;
}

static pthread_rwlock_t *lock_of(const struct gen_env *env) {
    return (pthread_rwlock_t *)&env->models.lock;
}

bool models_is_served(const struct gen_env *env, const char *name, size_t len) {
    pthread_rwlock_rdlock(lock_of(env));
    bool is = models_find(env, name, len) != NULL;
    pthread_rwlock_unlock(lock_of(env));
    return is;
}

bool models_is_answered(const struct gen_env *env, const char *name, size_t len) {
    pthread_rwlock_rdlock(lock_of(env));
    bool is = allows_any_name(env) || models_find(env, name, len);
    pthread_rwlock_unlock(lock_of(env));
    return is;
}

/* Writes the names of all models to @out, as far as they fit. */
static void models_list_names(const struct gen_env *env, char *out, size_t size) {
    *out = 0;
    LIST_FOREACH(l, &env->models.list)
    note_add(out, size, ", ", "%s", LIST_ENTRY(l, const struct model, link)->id);
}

int models_unknown(const struct gen_env *env, const char *name, size_t len, struct err *err) {
    char names[sizeof(err->message) - 100] = "";
    bool is_bad = false;

    pthread_rwlock_rdlock(lock_of(env));
    for (const char *const *p = env->models.bad_presets; p && *p && !is_bad; p++)
        is_bad = strlen(*p) == len && memcmp(*p, name, len) == 0;
    if (env->models.list.next != env->models.list.prev)
        models_list_names(env, names, sizeof(names));
    pthread_rwlock_unlock(lock_of(env));
    if (is_bad)
        return err_set_code(
            err, 404, "model_not_found", "model",
            "The preset of the model `%.*s` cannot be read; the server's log has the reason.",
            (int)MIN(len, 200u), name);
    if (!*names)
        return err_set_code(err, 404, "model_not_found", "model",
                            "The model `%.*s` does not exist.", (int)MIN(len, 200u), name);
    return err_set_code(err, 404, "model_not_found", "model",
                        "The model `%.*s` was not found. The models are: %s.", (int)MIN(len, 50u),
                        name, names);
}

int models_refuse(const struct exchange *x, const char *name, struct err *err) {
    if (tenants_get(&env_of(x)->tenants, x->tenant)->conf.n_models > 0)
        return models_hidden(name, err);
    return models_unknown(env_of(x), name, strlen(name), err);
}

int models_check_right(const struct exchange *x, struct err *err) {
    const char *tenant = tenants_get(&env_of(x)->tenants, x->tenant)->conf.name;

    for (const char *const *m = env_of(x)->opts.managers; m && *m; m++)
        if (strcmp(*m, "*") == 0 || strcmp(*m, tenant) == 0)
            return 0;
    return err_set_code(err, 403, "not_allowed", NULL,
                        "This server does not let this client change models (option allow-pull).");
}
