/*
 * Answers to the questions of Ollama's clients about models. They check the version before they use
 * newer features, so the answer names the version of Ollama's API that is implemented here.
 */

#include "api/generation/models.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/rescan.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/http/siphash.h"
#include "api/ollama/ollama.h"
#include "api/openai/openai.h"
#include "api/openai/vectors.h"
#include "base/json_value.h"
#include "base/text.h"
#include "base/try.h"

#define API_VERSION "0.12.6"

static void put_details(struct json *j, const struct model *model) {
    const struct api_model *m = model->info;
    char format[32], size[32];

    model_format_name(model, format);
    for (char *c = format; *c; c++)
        *c = (char)toupper((unsigned char)*c); /* Ollama writes these names in capitals */
    json_print(j, "details:{parent_model:'', format:'gguf', family:%s, families:[",
               text_or(m->arch, ""));
    if (m->arch)
        json_cstring(j, m->arch);
    json_print(j, "], parameter_size:%s, quantization_level:%s}", model_size_name(model, size),
               format);
}

/* Writes a digest, which clients shorten and compare. It is made of the name and the size of the
 * file, whose bytes are never hashed. */
static void put_digest(struct json *j, const struct api_model *m) {
    char hex[65];

    for (uint64_t i = 0; i < 4; i++)
        snprintf(hex + i * 16, 17, "%016llx",
                 (unsigned long long)siphash((uint64_t[]){i, m->n_bytes}, m->id, strlen(m->id)));
    json_print(j, "digest:%s", hex);
}

static void ollama_put_time(struct json *j, const char *key, time_t t) {
    char text[32];
    struct tm tm;

    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    json_print(j, "%s:%s", key, text);
}

/* Returns the time at which the model will be unloaded without another request; for a model that
 * stays, a time far in the future. */
static time_t expires_at(const struct model *m) {
    int64_t own_s = m->info->keep_alive_s, keep_s = m->keep_alive_s;

    if (keep_s == API_KEEP_UNSET)
        keep_s = own_s > 0 ? own_s : -1;
    int64_t idle_s = (clock_now(m->env->clock) - m->last_used_ns) / 1000000000;

    if (!model_on_demand(m) || keep_s < 0 || m->n_running > 0)
        return 4102444800; /* 2100-01-01 */
    return time(NULL) + MAX(keep_s - idle_s, INT64_C(0));
}

static void ollama_put_model(struct json *j, const struct model *model, bool running) {
    const struct api_model *m = model->info;

    json_print(j, "{name:%s, model:%s, size:%ld", m->id, m->id, (int64_t)m->n_bytes);
    put_digest(j, m);
    put_details(j, model);
    if (running) {
        ollama_put_time(j, "expires_at", expires_at(model));
        json_print(j, "size_vram:%ld, context_length:%u", (int64_t)m->n_bytes, m->max_context);
    } else {
        ollama_put_time(j, "modified_at", m->created_unix);
    }
    json_close(j, '}');
}

static void list(struct exchange *x, bool running) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4u << 20};
    struct json j = {.out = &b};

    json_print(&j, "{models:[");
    LIST_FOREACH_ENTRY(m, &env_of(x)->models.list, const struct model, link) {
        if ((!running || m->worker_up) && models_may_use(x, m))
            ollama_put_model(&j, m, running);
    }
    json_print(&j, "]}");
    respond_buf(x, 200, &b, j.error);
}

static void tags_serve(struct exchange *x, struct http *h) {
    if (!rescan_first(x, tags_serve))
        list(x, false);
}

static void ps_serve(struct exchange *x, struct http *h) {
    list(x, true);
}

static void ollama_version_serve(struct exchange *x, struct http *h) {
    static const char text[] = "{\"version\":\"" API_VERSION "\"}";

    respond(x, 200, RESPOND_JSON, text, sizeof(text) - 1);
}

int ollama_find_served(const struct exchange *x, const char *name, const char *field,
                       const struct model **out, struct err *err) {
    *out = models_find(env_of(x), name, strlen(name));
    if (!*out || !models_may_use(x, *out))
        return err_set_code(err, 404, "model_not_found", field, "model '%.200s' not found", name);
    return 0;
}

/* Sets *@out to the served model that the body names. Returns 0, or an error. */
static int ollama_find_named(struct exchange *x, const struct model **out, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    const char *name;

    TRY(ollama_read_body(x, &doc, err));
    TRY(ollama_read_name(yyjson_doc_get_root(doc), "model", "name", &name, err));
    return ollama_find_served(x, name, "model", out, err);
}

static void ollama_put_number(struct json *j, const char *arch, const char *what, uint64_t v) {
    char key[128];

    snprintf(key, sizeof(key), "%s.%s", arch, what);
    if (v)
        json_print(j, "%s:%lu", key, v);
    else
        json_print(j, "%s:null", key);
}

static void put_info(struct json *j, const struct api_model *m) {
    const char *arch = text_or(m->arch, "unknown");

    json_print(j, "model_info:{general.architecture:%s, general.basename:%s", arch, m->id);
    if (m->n_params)
        json_print(j, "general.parameter_count:%lu", m->n_params);
    ollama_put_number(j, arch, "context_length", m->max_context);
    ollama_put_number(j, arch, "embedding_length", m->n_embd);
    ollama_put_number(j, arch, "vocab_size", m->n_vocab);
    json_close(j, '}');
}

static void put_capabilities(struct json *j, const struct model *m) {
    json_print(j, "capabilities:[");
    if (m->info->encoder) {
        json_print(j, "'embedding']");
        return;
    }
    json_cstring(j, "completion");
    if (model_allows_tools(m))
        json_cstring(j, "tools");
    if (model_reasons(m))
        json_cstring(j, "thinking");
    if (m->opened && m->fim.prefix >= 0)
        json_cstring(j, "insert");
    if (model_sees(m))
        json_cstring(j, "vision");
    json_close(j, ']');
}

static void show_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 8 << 20};
    const struct model *model = NULL;
    struct err err = {0};
    struct json j = {.out = &b};

    /* The scan reads the headers of the files, which tell what models can do before they are
     * loaded. */
    if (rescan_first(x, show_serve))
        return;
    int r = ollama_find_named(x, &model, &err);
    if (r < 0) {
        respond_failed(x, r, &err);
        return;
    }
    const struct api_model *m = model->info;
    json_print(&j, "{license:'', modelfile:'', parameters:''");
    if (m->system)
        json_print(&j, "system:%s", m->system);
    json_print(&j, "template:%.*s", (int)m->template_len, m->template_source);
    put_details(&j, model);
    put_info(&j, m);
    put_capabilities(&j, model);
    ollama_put_time(&j, "modified_at", m->created_unix);
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}

static const struct route routes[] = {
    {"/api/chat", HTTP_POST, false, true, writer_serve, &ollama_chat},
    {"/api/generate", HTTP_POST, false, true, writer_serve, &ollama_generate},
    {"/api/embed", HTTP_POST, false, true, vectors_serve, &ollama_embed},
    {"/api/embeddings", HTTP_POST, false, true, vectors_serve, &ollama_embeddings},
    {"/api/tags", HTTP_GET, false, false, tags_serve, NULL},
    {"/api/ps", HTTP_GET, false, false, ps_serve, NULL},
    {"/api/show", HTTP_POST, false, false, show_serve, NULL},
    {"/api/pull", HTTP_POST, false, false, ollama_pull_serve, NULL},
    {"/api/create", HTTP_POST, false, false, ollama_create_serve, NULL},
    {"/api/copy", HTTP_POST, false, false, ollama_copy_serve, NULL},
    {"/api/delete", HTTP_DELETE, false, false, ollama_delete_serve, NULL},
    {"/api/version", HTTP_GET, true, false, ollama_version_serve, NULL},
    {0},
};

static const char *const prefixes[] = {"/api/", NULL};

static void ollama_put_error(struct json *j, const struct exchange *x, const struct err *err) {
    json_print(j, "{error:%s}", err->message);
}

const struct dialect ollama_dialect = {
    .name = "ollama",
    .prefixes = prefixes,
    .routes = routes,
    .takes_forms = true,
    .put_ids = openai_put_ids,
    .put_limit = openai_put_limit,
    .put_error = ollama_put_error,
    .stream_type = RESPOND_LINES,
    .event_begin = "",
    .event_end = "\n",
};
