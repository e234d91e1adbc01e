/*
 * llama-server's own routes for text, which editors use for completion while one types:
 * /completion, and /infill for the text between two texts; and what its clients read of the server:
 * /props, /slots, /apply-template.
 */

#include "api/llamacpp/llamacpp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/lookup.h"
#include "api/generation/model.h"
#include "api/generation/models.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/writer.h"
#include "api/http/http.h"
#include "api/http/respond.h"
#include "api/http/siphash.h"
#include "api/openai/openai.h"
#include "api/openai/raw_answer.h"

static int llamacpp_too_long(const char *field, size_t n, uint32_t context, struct err *err) {
    return err_set_code(err, 400, "context_length_exceeded", field,
                        "request (%zu tokens) exceeds the available context size (%u tokens), "
                        "shorten it",
                        n, context);
}

#define ENDPOINT                                                                                   \
    {                                                                                              \
        .open = llamacpp_open, .close = llamacpp_close, .translate = llamacpp_translate,           \
        .too_long = llamacpp_too_long, .id_prefix = "", .tells_prompt = true,                      \
        .begin = llamacpp_begin, .alive = llamacpp_alive, .piece = llamacpp_piece,                 \
        .whole = llamacpp_whole,                                                                   \
    }

static const struct endpoint completion = ENDPOINT;
const struct endpoint llamacpp_infill = ENDPOINT;

/* ---- /apply-template ---- */

/* Writes the prompt without the BOS that /completion adds to it again. */
static void write_prompt(struct json *j, const struct prompt_job *job) {
    const struct prompt *p = &job->prompts[0];
    size_t bos = prompt_bos_bytes(job, p);

    json_print(j, "{prompt:");
    json_string(j, p->text + bos, p->len - bos);
    json_close(j, '}');
}

static const struct endpoint chat = {.translate = openai_read_llama_chat, .write = write_prompt};

/* ---- what clients read of the server ---- */

void llamacpp_marker(const struct gen_env *env, char out[MEDIA_MARKER]) {
    static const char what[] = "media marker";

    snprintf(out, MEDIA_MARKER, "<__media_%016" PRIx64 "__>",
             siphash(env->secret, what, sizeof(what)));
}

/* Writes the text of a special token. @t is NULL while the model has not been read. */
static void put_special(struct json *j, const char *key, const struct tokenizer *t,
                        int32_t (*id_of)(const struct tokenizer *)) {
    struct gguf_str s = {"", 0};
    int32_t id = t ? id_of(t) : -1;

    if (id >= 0)
        s = tokenizer_text(t, id);
    json_print(j, "%s:%.*s", key, (int)s.len, s.data);
}

/* Returns the model that "?model=NAME" names, as llama-server's router has it, or the first one;
 * NULL with @err: no such model. */
static const struct model *asked_for(const struct exchange *x, const struct http *h,
                                     struct err *err) {
    const struct model *found = model_first(env_of(x));
    char name[1024];
    bool named = http_query(h, "model", name, sizeof(name));

    if (named)
        found = models_find(env_of(x), name, strlen(name));
    if (found && models_may_use(x, found))
        return found;
    models_refuse(x, named ? name : NULL, err);
    return NULL;
}

/* Returns true if @m was never loaded and the service waits for it; the request is answered with
 * 503 then. Clients read the context once, so they must not be told one that may still change. */
static bool answer_loading(struct exchange *x, const struct model *m) {
    struct err err;

    if (m->info->fingerprint || env_of(x)->health != API_STARTING)
        return false;
    x->retry_ms = API_RETRY_MS;
    err_set_code(&err, 503, "model_loading", NULL, "Loading model");
    respond_error(x, &err);
    return true;
}

static void props_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 8 << 20};
    struct err err;
    const struct model *model = asked_for(x, h, &err);
    struct json j = {.out = &b};

    if (!model) {
        respond_error(x, &err);
        return;
    }
    if (answer_loading(x, model))
        return;
    const struct api_model *m = model->info;
    json_print(&j, "{default_generation_settings:{n_ctx:%u, params:", m->max_context);
    raw_answer_put_settings(&j, m, NULL, m->seed ? *m->seed : UINT32_MAX, GEN_REQUEST_NO_LIMIT);
    json_print(&j,
               "}, sampling_source:%s, total_slots:%u, model_alias:%s, model_path:%s, "
               "modalities:{vision:%i, video:false, audio:false}",
               m->sampling_source, env_of(x)->opts.max_running, m->id, m->file ? m->file : m->id,
               *model->sight.text != 0);
    if (*model->sight.text) {
        char marker[MEDIA_MARKER];

        llamacpp_marker(env_of(x), marker);
        json_print(&j, "media_marker:%s", marker);
    }
    if (model_reasoning(model))
        json_print(&j, "reasoning:%s", model_reasoning(model));
    json_print(&j, "chat_template:%.*s", (int)m->template_len, m->template_source);
    put_special(&j, "bos_token", m->tokenizer, tokenizer_bos);
    put_special(&j, "eos_token", m->tokenizer, tokenizer_eos);
    json_print(&j, "build_info:'weft', is_sleeping:%i}", model_asleep(model));
    respond_buf(x, 200, &b, j.error);
}

static void put_slot(struct json *j, const struct model *m, uint32_t id, const struct gen *g) {
    json_print(j, "{id:%u, n_ctx:%u, is_processing:%i", id, m->info->max_context, g != NULL);
    if (g)
        json_print(j, "id_task:%lu", g->m.id);
    json_print(j, "next_token:[{has_next_token:%i, n_remain:%ld, n_decoded:%u}]}", g != NULL,
               g ? (int64_t)g->m.max_new - g->n_out : -1, g ? g->n_out : 0);
}

/* Returns true if @g runs and the client of @x may know of it: its tenant's, or with the key of an
 * operator all. */
static bool is_slot_of(const struct exchange *x, const struct gen *g) {
    bool runs = g->state == GEN_SENT || g->state == GEN_RUNNING;

    return runs && (x->is_operator || g->m.tenant == x->tenant);
}

/* Writes an entry for each possible request (slot). For a running one it has the progress, not the
 * texts, which belong to its client. Slots of other tenants look free. */
static void slots_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 20};
    struct gen_env *env = env_of(x);
    uint32_t id = 0;
    struct json j = {.out = &b};

    if (!env->opts.slots) {
        struct err err;

        err_set_code(&err, 501, "not_supported_error", NULL,
                     "The option slots = no (--no-slots) turns /slots off.");
        respond_error(x, &err);
        return;
    }
    if (answer_loading(x, model_first(env)))
        return;
    json_open(&j, '[');
    LIST_FOREACH_ENTRY(g, &env->gens.list, const struct gen, link) {
        if (is_slot_of(x, g))
            put_slot(&j, g->model, id++, g);
    }
    while (id < env->opts.max_running)
        put_slot(&j, model_first(env), id++, NULL);
    json_close(&j, ']');
    respond_buf(x, 200, &b, j.error);
}

static const struct route routes[] = {
    {"/completion", HTTP_POST, false, true, writer_serve, &completion},
    {"/completions", HTTP_POST, false, true, writer_serve, &completion},
    {"/slots", HTTP_GET, false, false, slots_serve, NULL},
    {"/infill", HTTP_POST, false, true, writer_serve, &llamacpp_infill},
    {"/props", HTTP_GET, false, false, props_serve, NULL},
    {"/apply-template", HTTP_POST, false, false, lookup_serve, &chat},
    {0},
};

static const char *const prefixes[] = {"/completion", "/infill", "/slots", NULL};

const struct dialect llamacpp_dialect = {
    .name = "llamacpp",
    .prefixes = prefixes,
    .routes = routes,
    .takes_forms = true,
    OPENAI_FORM,
};
