#include <string.h>
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/generation/model.h"
#include "api/generation/models.h"
#include "api/openai/models.h"
#include "api/openai/openai.h"
#include "api/generation/env.h"
#include "api/generation/rescan.h"
#include "api/http/respond.h"

#define LIST_MAX (4u << 20) /* bytes of a list */

/* llama-server's router says so what it has loaded. */
static void put_status(struct json *j, const struct model *m) {
    json_put_open(j, "status", '{');
    json_put_string(j, "value", model_state_name(m));
    if (m->state == API_MODEL_FAILED)
        json_put_string(j, "reason", m->failure);
    json_close(j, '}');
}

/* Writes the values that hold for requests that leave them out, and the layer that set them. */
static void put_sampling(struct json *j, const struct api_model *m) {
    const struct sampling *s = m->sampling;

    json_put_open(j, "sampling", '{');
    json_put_double(j, "temperature", s->temperature);
    json_put_int(j, "top_k", s->top_k);
    json_put_double(j, "top_p", s->top_p);
    json_put_double(j, "min_p", s->min_p);
    json_put_double(j, "repetition_penalty", s->repetition_penalty);
    json_put_string(j, "source", m->sampling_source);
    json_close(j, '}');
}

/* Writes what llama-server tells of the file. */
static void put_meta(struct json *j, const struct api_model *m) {
    json_put_open(j, "meta", '{');
    json_put_int(j, "vocab_type", m->vocab_type);
    json_put_int(j, "n_vocab", m->n_vocab);
    json_put_int(j, "n_ctx_train", m->n_ctx_train);
    json_put_int(j, "n_embd", m->n_embd);
    json_put_int(j, "n_params", (int64_t)m->n_params);
    json_put_int(j, "size", (int64_t)m->tensor_bytes);
    json_close(j, '}');
}

/* Writes what the model takes besides text, and the limits of it. */
static void put_sight(struct json *j, const struct api_model *m, uint32_t max_megapixels) {
    const struct projector *p = m->projector;
    uint32_t least = m->picture_budget.least ? m->picture_budget.least : p->least;

    json_put_open(j, "modalities", '[');
    json_cstring(j, "text");
    json_cstring(j, "image");
    json_close(j, ']');
    json_put_open(j, "images", '{');
    if (p->side) {
        json_put_int(j, "tokens", projector_most_rows(p, &m->picture_budget));
    } else {
        json_put_int(j, "min_tokens", least);
        json_put_int(j, "max_tokens", projector_most_rows(p, &m->picture_budget));
        json_put_int(j, "token_pixels", p->patch * p->merge);
    }
    json_put_int(j, "max_images", SUBMIT_PICTURES_MAX);
    json_put_int(j, "max_bytes", PICTURE_FILE_MAX);
    json_put_int(j, "max_side", PICTURE_SIDE_MAX);
    json_put_int(j, "max_megapixels", max_megapixels);
    json_put_open(j, "formats", '[');
    json_cstring(j, "png");
    json_cstring(j, "jpeg");
    json_cstring(j, "webp");
    json_cstring(j, "gif");
    json_close(j, ']');
    json_close(j, '}');
}

static void put_model(struct json *j, const struct model *model) {
    const struct api_opts *o = &model->env->opts;
    const struct api_model *m = model->info;

    json_open(j, '{');
    json_put_string(j, "id", m->id);
    json_put_string(j, "object", "model");
    json_put_int(j, "created", m->created_unix);
    json_put_string(j, "owned_by", o->owned_by ? o->owned_by : "weft");
    json_put_string(j, "root", m->id);
    json_put_string(j, "parent", NULL);
    if (m->aliases && *m->aliases) {
        json_put_open(j, "aliases", '[');
        for (const char *const *alias = m->aliases; *alias; alias++)
            json_cstring(j, *alias);
        json_close(j, ']');
    }
    json_key(j, "max_model_len");
    if (m->max_context)
        json_uint(j, m->max_context);
    else
        json_null(j); /* the file cannot be read */
    json_put_open(j, "capabilities", '[');
    if (!m->encoder)
        json_cstring(j, "completion");
    json_cstring(j, "embedding");
    if (m->ranks)
        json_cstring(j, "rerank");
    if (*model->sight.text)
        json_cstring(j, "multimodal");
    json_close(j, ']');
    if (*model->sight.text)
        put_sight(j, m, o->picture_max_megapixels);
    if (m->n_ctx_train)
        put_meta(j, m);
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
    json_put_open(j, "presets_not_read", '[');
    for (const char *const *name = env->models.bad_presets; *name; name++)
        json_cstring(j, *name);
    json_close(j, ']');
}

void models_answer_list(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                        const char *object, const char *key,
                        void (*put)(struct json *j, const struct model *m)) {
    CLEANUP(buf_deinit) struct buf b = {.max = LIST_MAX};
    struct json j;

    if (rescan_first(x, serve))
        return;
    json_begin(&j, &b);
    json_open(&j, '{');
    if (object)
        json_put_string(&j, "object", object);
    json_put_open(&j, key, '[');
    LIST_FOREACH(node, &env_of(x)->models.list) {
        const struct model *m = LIST_ENTRY(node, struct model, link);

        if (models_may_use(x, m))
            put(&j, m);
    }
    json_close(&j, ']');
    put_bad_presets(&j, env_of(x));
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}

void models_list_serve(struct exchange *x, struct http *h) {
    models_answer_list(x, models_list_serve, "list", "data", put_model);
}

void models_answer_one(struct exchange *x, void (*serve)(struct exchange *x, struct http *h),
                       void (*put)(struct json *j, const struct model *m)) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64 << 10};
    const struct model *m = models_find_exactly(env_of(x), x->arg, strlen(x->arg));
    struct err err;
    struct json j;

    if (m && !models_may_use(x, m)) {
        models_hidden(x->arg, &err);
        respond_error(x, &err);
        return;
    }
    if (m) {
        json_begin(&j, &b);
        put(&j, m);
        respond_buf(x, 200, &b, j.error);
        return;
    }
    if (rescan_first(x, serve))
        return;
    models_unknown(env_of(x), x->arg, strlen(x->arg), &err);
    respond_error(x, &err);
}

void models_one_serve(struct exchange *x, struct http *h) {
    models_answer_one(x, models_one_serve, put_model);
}
