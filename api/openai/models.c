#include "api/generation/models.h"

#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/rescan.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/openai/models.h"
#include "api/openai/openai.h"
#include "base/text.h"

#define LIST_MAX (4u << 20) /* bytes of a list */

/* Writes the state of the model in the form of llama-server's router. */
static void put_status(struct json *j, const struct model *m) {
    json_print(j, "status:{value:%s", model_state_name(m));
    if (m->state == API_MODEL_FAILED)
        json_print(j, "reason:%s", m->failure);
    json_close(j, '}');
}

/* Writes the sampling parameters of requests that leave them out, and the layer that set them. */
static void put_sampling(struct json *j, const struct api_model *m) {
    const struct sampling *s = m->sampling;

    json_print(j,
               "sampling:{temperature:%g, top_k:%ld, top_p:%g, min_p:%g, repetition_penalty:%g, "
               "source:%s}",
               s->temperature, s->top_k, s->top_p, s->min_p, s->repetition_penalty,
               m->sampling_source);
}

/* Writes what llama-server tells of the file, and the served context. */
static void put_meta(struct json *j, const struct api_model *m) {
    json_print(j,
               "meta:{vocab_type:%u, n_vocab:%u, n_ctx:%u, n_ctx_train:%u, n_embd:%u, "
               "n_params:%ld, size:%ld}",
               m->vocab_type, m->n_vocab, m->max_context, m->n_ctx_train, m->n_embd,
               (int64_t)m->n_params, (int64_t)m->tensor_bytes);
}

/* Writes what the model takes besides text, and the limits of it. */
static void put_sight(struct json *j, const struct api_model *m, uint32_t max_megapixels) {
    const struct projector *p = m->projector;
    uint32_t least = m->picture_budget.least ? m->picture_budget.least : p->least;

    json_print(j, "modalities:['text', 'image'], images:{");
    if (projector_is_fixed(p)) {
        json_print(j, "tokens:%u", projector_most_rows(p, &m->picture_budget));
    } else {
        json_print(j, "min_tokens:%u, max_tokens:%u, token_pixels:%u", least,
                   projector_most_rows(p, &m->picture_budget), p->patch * p->merge);
    }
    json_print(j,
               "max_images:%u, max_bytes:%u, max_side:%u, max_megapixels:%u, formats:['png', "
               "'jpeg', 'webp', 'gif']}",
               SUBMIT_PICTURES_MAX, PICTURE_FILE_MAX, PICTURE_SIDE_MAX, max_megapixels);
}

/* Writes the names of the model, the first of which is its id, and its tags. */
static void put_names(struct json *j, const struct api_model *m) {
    if (m->aliases && *m->aliases) {
        json_print(j, "aliases:[%s", m->id);
        for (const char *const *alias = m->aliases; *alias; alias++)
            json_cstring(j, *alias);
        json_close(j, ']');
    }
    if (m->tags && *m->tags) {
        json_print(j, "tags:[");
        for (const char *const *tag = m->tags; *tag; tag++)
            json_cstring(j, *tag);
        json_close(j, ']');
    }
}

static void openai_put_model(struct json *j, const struct model *model) {
    const struct api_opts *o = &model->env->opts;
    const struct api_model *m = model->info;

    json_print(j, "{id:%s, object:'model', created:%ld, owned_by:%s, root:%s, parent:null", m->id,
               m->created_unix, text_or(o->owned_by, "weft"), m->id);
    put_names(j, m);
    if (m->max_context)
        json_print(j, "max_model_len:%u", m->max_context);
    else
        json_print(j, "max_model_len:null"); /* the file cannot be read */
    json_print(j, "capabilities:[");
    if (!m->encoder)
        json_cstring(j, "completion");
    json_cstring(j, "embedding");
    if (m->ranks)
        json_cstring(j, "rerank");
    if (model_sees(model))
        json_cstring(j, "multimodal");
    json_close(j, ']');
    if (*model->sight.text)
        put_sight(j, m, o->picture_max_megapixels);
    if (m->n_ctx_train)
        put_meta(j, m);
    if (model_reasoning(model))
        json_print(j, "reasoning:%s", model_reasoning(model));
    if (m->sampling && !m->encoder)
        put_sampling(j, m);
    if (model_on_demand(model))
        put_status(j, model);
    json_close(j, '}');
}

/* Writes the presets that the operator has to repair, if there are any. */
static void put_bad_presets(struct json *j, const struct gen_env *env) {
    if (!env->models.bad_presets)
        return;
    json_print(j, "presets_not_read:[");
    for (const char *const *name = env->models.bad_presets; *name; name++)
        json_cstring(j, *name);
    json_close(j, ']');
}

void models_answer_list(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                        const char *object, const char *key,
                        void (*put)(struct json *j, const struct model *m)) {
    CLEANUP(buf_deinit) struct buf b = {.max = LIST_MAX};
    struct json j = {.out = &b};

    if (rescan_first(x, serve))
        return;
    json_open(&j, '{');
    if (object)
        json_print(&j, "object:%s", object);
    json_print(&j, "%s:[", key);
    LIST_FOREACH_ENTRY(m, &env_of(x)->models.list, const struct model, link) {
        if (models_may_use(x, m))
            put(&j, m);
    }
    json_close(&j, ']');
    put_bad_presets(&j, env_of(x));
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}

void models_list_serve(struct exchange *x, struct http *h) {
    models_answer_list(x, models_list_serve, "list", "data", openai_put_model);
}

void models_answer_one(struct exchange *x, const struct model *m,
                       void (*serve)(struct exchange *x, struct http *h),
                       void (*put)(struct json *j, const struct model *m)) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64 << 10};
    struct err err;
    struct json j = {.out = &b};

    if (m && !models_may_use(x, m)) {
        models_refuse(x, x->arg, &err);
        respond_error(x, &err);
        return;
    }
    /* The scan finds new models, and reads the headers of those that were not opened. */
    if ((!m || !m->opened) && rescan_first(x, serve))
        return;
    if (m) {
        put(&j, m);
        respond_buf(x, 200, &b, j.error);
        return;
    }
    models_refuse(x, x->arg, &err);
    respond_error(x, &err);
}

void models_one_serve(struct exchange *x, struct http *h) {
    models_answer_one(x, models_find_exactly(env_of(x), x->arg, strlen(x->arg)), models_one_serve,
                      openai_put_model);
}
