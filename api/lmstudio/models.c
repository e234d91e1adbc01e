/*
 * LM Studio's two lists of the same models, and the loading and unloading of one. A member about
 * which nothing is known is null or, where its type has no null, left out: the context's length of
 * a model whose file cannot be read.
 */

#include "api/openai/models.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/generation/audit.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/models.h"
#include "api/generation/prompt_job.h"
#include "api/generation/read_request.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/lmstudio/lmstudio.h"
#include "api/ollama/ollama.h"
#include "base/json_value.h"
#include "base/text.h"
#include "base/try.h"

static void put_length(struct json *j, const char *key, const struct model *m) {
    if (m->info->max_context)
        json_print(j, "%s:%u", key, m->info->max_context);
}

/* ---- /api/v0/models ---- */

static void lmstudio_put_model(struct json *j, const struct model *m) {
    const struct api_opts *o = &m->env->opts;
    const char *type = model_sees(m) ? "vlm" : "llm";
    char format[32];

    if (m->info->encoder)
        type = "embeddings";
    json_print(j,
               "{id:%s, object:'model', type:%s, publisher:%s, arch:%s, "
               "compatibility_type:'gguf', quantization:%s, state:%s",
               m->info->id, type, text_or(o->owned_by, "weft"), text_or(m->info->arch, ""),
               model_format_name(m, format), m->worker_up ? "loaded" : "not-loaded");
    put_length(j, "max_context_length", m);
    if (m->worker_up)
        put_length(j, "loaded_context_length", m);
    json_print(j, "capabilities:[");
    if (model_allows_tools(m))
        json_cstring(j, "tool_use");
    json_print(j, "]}");
}

void lmstudio_models_serve(struct exchange *x, struct http *h) {
    models_answer_list(x, lmstudio_models_serve, "list", "data", lmstudio_put_model);
}

void lmstudio_model_serve(struct exchange *x, struct http *h) {
    models_answer_one(x, models_find_exactly(env_of(x), x->arg, strlen(x->arg)),
                      lmstudio_model_serve, lmstudio_put_model);
}

/* ---- /api/v1/models ---- */

static void put_instances(struct json *j, const struct model *m) {
    json_print(j, "loaded_instances:[");
    if (m->worker_up) {
        json_print(j, "{id:%s, config:{", m->info->id);
        put_length(j, "context_length", m);
        json_print(j, "parallel:%u}}", m->env->opts.max_running);
    }
    json_close(j, ']');
}

static void put_model_v1(struct json *j, const struct model *m) {
    const struct api_opts *o = &m->env->opts;
    char format[32], size[32];

    model_format_name(m, format);
    model_size_name(m, size);
    json_print(j,
               "{type:%s, publisher:%s, key:%s, display_name:%s, architecture:%s, "
               "quantization:{name:%s, bits_per_weight:null}, size_bytes:%ld, params_string:%s",
               m->info->encoder ? "embedding" : "llm", text_or(o->owned_by, "weft"), m->info->id,
               m->info->id, m->info->arch, *format ? format : NULL, (int64_t)m->info->n_bytes,
               *size ? size : NULL);
    put_instances(j, m);
    put_length(j, "max_context_length", m);
    json_print(j, "format:'gguf'");
    if (!m->info->encoder)
        json_print(j, "capabilities:{vision:%i, trained_for_tool_use:%i}", model_sees(m),
                   model_allows_tools(m));
    json_print(j, "description:null}");
}

void lmstudio_models_v1_serve(struct exchange *x, struct http *h) {
    models_answer_list(x, lmstudio_models_v1_serve, NULL, "models", put_model_v1);
}

/* ---- loading ---- */

/* Reads a request to load a model. Its route has waited for the model, so nothing else is to be
 * done; the service's configuration determines how a model is loaded. */
static int read_load(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    static const char text[] = "{\"input\":\"a\"}";
    bool named = yyjson_is_str(yyjson_obj_get(yyjson_doc_get_root(body), "model"));

    yyjson_doc_free(body);
    if (!named)
        return err_set_code(err, 400, "missing_required_parameter", "model",
                            "\"model\" is required");
    yyjson_doc *ours = yyjson_read(text, sizeof(text) - 1, 0);
    if (!ours)
        return -ENOMEM;
    return gen_request_read(&job->request, job->model, FIELDS_EMBEDDING, ours, err);
}

static void lmstudio_write_load(struct json *j, const struct prompt_job *job) {
    int64_t waited_ns = job->waits_since_ns ? clock_now(job->env->clock) - job->waits_since_ns : 0;

    json_print(j, "{type:%s, instance_id:%s, load_time_seconds:%g, status:'loaded'}",
               job->model->info->encoder ? "embedding" : "llm", job->model->info->id,
               (double)waited_ns / 1e9);
}

const struct endpoint lmstudio_load = {.translate = read_load, .write = lmstudio_write_load};

/* Sets *@out to the loaded model that @body names. Returns 0, or an error. */
static int find_instance(struct exchange *x, yyjson_doc *body, struct model **out,
                         struct err *err) {
    yyjson_val *v = yyjson_obj_get(yyjson_doc_get_root(body), "instance_id");
    const char *id = json_cstr(v);

    if (!yyjson_is_str(v))
        return err_set_code(err, 400, "missing_required_parameter", "instance_id",
                            "\"instance_id\" is required");
    if (!id)
        return err_set_code(err, 400, "invalid_value", "instance_id",
                            "\"instance_id\" must not contain NUL");
    struct model *m = models_find(env_of(x), id, strlen(id));
    if (!m || !m->worker_up || !models_may_use(x, m))
        return err_set_code(err, 404, "model_not_found", "instance_id",
                            "No model `%.200s` is loaded.", id);
    if (!model_on_demand(m))
        return err_set_code(err, 400, "unsupported_value", "instance_id",
                            "The model `%.200s` is always loaded.", m->info->id);
    *out = m;
    return 0;
}

static int read_instance(struct exchange *x, yyjson_doc **body, struct model **m, struct err *err) {
    TRY(ollama_read_body(x, body, err));
    return find_instance(x, *body, m, err);
}

/* Unloads the model once no request needs it, like a request with a ttl of 0. */
void lmstudio_unload_serve(struct exchange *x, struct http *h) {
    CLEANUP(json_doc_freep) yyjson_doc *body = NULL;
    struct model *m = NULL;
    struct err err = {0};
    int r = read_instance(x, &body, &m, &err);

    if (r < 0) {
        respond_failed(x, r, &err);
        return;
    }
    assert(model_on_demand(m) && m->worker_up);
    m->keep_alive_s = 0;
    audit_client(x, "unload", m->info->id, 0, &err);
    respond_shape(x, "{instance_id:%s}", m->info->id);
}
