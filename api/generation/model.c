#include "api/generation/model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/gen_request.h"
#include "base/model_dir.h"

int model_new(struct model **out, struct gen_env *env, const struct api_model *info,
              struct api_port *port) {
    struct model *m = calloc(1, sizeof(*m));

    assert(info && port);
    if (!m)
        return -ENOMEM;
    m->env = env;
    m->info = info;
    m->id = info->id;
    m->aliases = info->aliases;
    m->port = port;
    m->keep_alive_s = API_KEEP_UNSET;
    list_init(&m->link);
    metrics_init(&m->metrics);
    list_init(&m->waiting);
    pending_init(&m->whole);
    pending_init(&m->large);
    if (info->tokenizer)
        model_open(m);
    *out = m;
    return 0;
}

struct model *model_free(struct model *m) {
    if (!m)
        return NULL;
    assert(m->n_running == 0 && list_empty(&m->waiting));
    list_remove(&m->link);
    if (m->opened)
        family_deinit(&m->family);
    free(m->of_tenant);
    free(m);
    return NULL;
}

struct tenant_stats *model_of_tenant(struct model *m, uint32_t number) {
    if (number >= m->n_tenants) {
        if (!array_resize(&m->of_tenant, number + 1, sizeof(*m->of_tenant)))
            return NULL;
        memset(&m->of_tenant[m->n_tenants], 0, (number + 1 - m->n_tenants) * sizeof(*m->of_tenant));
        m->n_tenants = number + 1;
    }
    return &m->of_tenant[number];
}

void model_open(struct model *m) {
    assert(!m->opened && m->info->tokenizer);
    family_init(&m->family, m->info);
    fim_init(&m->fim, m->info->tokenizer);
    if (m->info->projector)
        sight_init(&m->sight, m->info->projector, m->info->tokenizer);
    m->opened = true;
}

static bool model_matches(const char *own, const char *name, size_t len) {
    size_t n = strlen(own);

    if (n > 0 && own[n - 1] == '*')
        return len >= n - 1 && memcmp(own, name, n - 1) == 0;
    return n == len && memcmp(own, name, len) == 0;
}

bool model_has_name(const struct model *m, const char *name, size_t len) {
    if (strlen(m->id) == len && memcmp(m->id, name, len) == 0)
        return true;
    for (const char *const *alias = m->aliases; alias && *alias; alias++)
        if (model_matches(*alias, name, len))
            return true;
    return false;
}

const char *model_state_name(const struct model *m) {
    static const char *const names[] = {"unloaded", "loading", "loaded", "unloading", "failed"};

    return names[m->state];
}

int model_unavailable(const struct model *m, const char *param, struct err *err) {
    size_t n = strlen(m->failure);
    bool ends = n && m->failure[n - 1] == '?'; /* a reason may end with a question */

    return err_set_code(err, 503, "model_unavailable", param, "The model cannot be loaded: %s%s",
                        m->failure, ends ? "" : ".");
}

const char *model_format_name(const struct model *m, char out[32]) {
    const char *file = m->info->file, *quant;
    struct model_name name;
    char stem[256];

    *out = 0;
    if (!file || !model_name_parse(file, &name) || name.stem_len >= sizeof(stem))
        return out;
    snprintf(stem, sizeof(stem), "%.*s", (int)name.stem_len, file);
    if ((quant = model_quant(stem)))
        snprintf(out, 32, "%s", quant);
    return out;
}

const char *model_size_name(const struct model *m, char out[32]) {
    double n = (double)m->info->n_params;

    *out = 0;
    if (n >= 1e9)
        snprintf(out, 32, "%.1fB", n * 1e-9);
    else if (n >= 1e6)
        snprintf(out, 32, "%.2fM", n * 1e-6);
    else if (n > 0)
        snprintf(out, 32, "%.0fK", n * 1e-3);
    return out;
}

const char *model_reasoning(const struct model *m) {
    static const char *const words[] = {
        [THINK_OFF] = "off", [THINK_ON] = "on", [THINK_TEMPLATE] = "template"};

    if (!model_reasons(m))
        return NULL;
    if (m->info->thinking != THINK_AUTO)
        return words[m->info->thinking];
    if (!m->opened || m->family.thinks)
        return "on";
    return "template";
}
