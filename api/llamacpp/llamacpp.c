#include <assert.h>
#include <errno.h>
#include <string.h>
#include "api/generation/lookup.h"
#include "api/generation/writer.h"
#include "api/http/conn.h"
#include "api/openai/openai.h"
#include "api/generation/endpoint.h"
#include "api/private.h"
#include "api/http/respond.h"

/*
 * llama-server's own routes for text, which editors with completion as one types speak:
 * /completion, and /infill for what stands between two texts. Their parameters have names that
 * completions here know as well; an answer is one object, or events of which the last has `stop`
 * and the figures.
 */

/* ---- the request ---- */

static int refuse(struct err *err, const char *field) {
    return err_set_code(err, 400, "invalid_value", field, "%s must be a string.", field);
}

/* Files that the editor has seen, in front: "NAME\nTEXT\n" each. */
static int add_files(yyjson_val *files, struct buf *out) {
    yyjson_val *file;
    size_t i, n;

    yyjson_arr_foreach(files, i, n, file) {
        yyjson_val *name = yyjson_obj_get(file, "filename"), *text = yyjson_obj_get(file, "text");

        if (!yyjson_is_str(text))
            continue;
        if ((yyjson_is_str(name) && (buf_add(out, yyjson_get_str(name), yyjson_get_len(name)) < 0 ||
                                     buf_add_char(out, '\n') < 0)) ||
            buf_add(out, yyjson_get_str(text), yyjson_get_len(text)) < 0 ||
            buf_add_char(out, '\n') < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Prompt and suffix in the place of what an editor sends. */
static int fill_in(yyjson_val *body, yyjson_mut_doc *doc, yyjson_mut_val *root, struct err *err) {
    static const char *const names[] = {"input_prefix", "prompt", "input_suffix"};
    CLEANUP(buf_deinit) struct buf before = {.max = UINT32_MAX};
    yyjson_val *v[ARRAY_SIZE(names)];
    int r = add_files(yyjson_obj_get(body, "input_extra"), &before);

    for (size_t i = 0; i < ARRAY_SIZE(names) && r == 0; i++) {
        v[i] = yyjson_obj_get(body, names[i]);
        if (v[i] && !yyjson_is_null(v[i]) && !yyjson_is_str(v[i]))
            return refuse(err, names[i]);
        if (i < 2)
            r = buf_add(&before, yyjson_get_str(v[i]), yyjson_get_len(v[i]));
    }
    if (r < 0)
        return -ENOMEM;
    if (!yyjson_get_len(v[2]))
        return err_set_code(err, 400, "missing_required_parameter", "input_suffix",
                            "Missing required parameter: input_suffix.");
    yyjson_mut_obj_remove_key(root, "prompt");
    yyjson_mut_obj_remove_key(root, "suffix");
    return yyjson_mut_obj_add_strncpy(doc, root, "prompt", before.data ? before.data : "",
                                      before.len) &&
                   yyjson_mut_obj_add_val(doc, root, "suffix", yyjson_val_mut_copy(doc, v[2]))
               ? 0
               : -ENOMEM;
}

static int translate(yyjson_doc *body, bool infill, yyjson_doc **out, struct err *err) {
    yyjson_mut_doc *doc = yyjson_doc_mut_copy(body, NULL);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    int r = !doc ? -ENOMEM : infill ? fill_in(yyjson_doc_get_root(body), doc, root, err) : 0;

    if (r == 0) {
        *out = yyjson_mut_doc_imut_copy(doc, NULL);
        r = *out ? 0 : -ENOMEM;
    }
    yyjson_mut_doc_free(doc);
    return r;
}

/* ---- the answer ---- */

static double ms_between(int64_t from, int64_t to) {
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

static void put_rate(struct json *j, const char *n, const char *ms, const char *each,
                     const char *rate, uint32_t count, double time) {
    json_put_int(j, n, count);
    json_key(j, ms);
    json_double(j, time);
    json_key(j, each);
    json_double(j, count ? time / count : 0);
    json_key(j, rate);
    json_double(j, time > 0 ? count * 1000.0 / time : 0);
}

static void put_end(struct json *j, const struct writer *w) {
    const struct gen *g = w->choices[0].gen;
    struct writer_usage u = writer_usage(w);
    const struct str *stop =
        g->stopped && g->finish == FINISH_STOP ? &g->m.stops[g->stop_index] : NULL;

    json_put_string(j, "model", w->job.api->model->id);
    json_put_int(j, "tokens_predicted", u.output);
    json_put_int(j, "tokens_evaluated", u.prompt);
    json_put_int(j, "tokens_cached", u.cached);
    json_key(j, "truncated");
    json_bool(j, false);
    json_put_string(j, "stop_type", g->finish == FINISH_LENGTH ? "limit" : stop ? "word" : "eos");
    json_key(j, "stopping_word");
    json_string(j, stop ? stop->data : "", stop ? stop->len : 0);
    json_key(j, "timings");
    json_open(j, '{');
    json_put_int(j, "cache_n", u.cached);
    put_rate(j, "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
             u.prompt - MIN(u.cached, u.prompt), ms_between(g->first_step_ns, g->first_token_ns));
    put_rate(j, "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
             u.output, ms_between(g->first_token_ns, g->last_token_ns));
    json_close(j, '}');
}

static void put_text(struct json *j, const struct writer *w, const char *text, size_t len,
                     bool last) {
    assert(w->n_choices == 1);
    json_open(j, '{');
    json_put_int(j, "index", 0);
    json_key(j, "content");
    json_string(j, text, len);
    json_key(j, "tokens");
    json_open(j, '[');
    json_close(j, ']');
    json_put_int(j, "id_slot", -1);
    json_key(j, "stop");
    json_bool(j, last);
    if (last)
        put_end(j, w);
    json_close(j, '}');
}

static void put_whole(struct json *j, struct writer *w) {
    const struct buf *text = &w->choices[0].gen->output->text[OUTPUT_CONTENT];

    put_text(j, w, text->data ? text->data : "", text->len, true);
}

static void send_text(struct writer *w, const char *text, size_t len, bool last) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct json j;

    json_begin(&j, &b);
    put_text(&j, w, text, len, last);
    if (j.error < 0)
        conn_break(w->exchange->conn);
    else
        respond_event(w->exchange, b.data, b.len);
}

static void send_begin(struct writer *w) {
    (void)w;
}

static void send_piece(struct writer *w, const struct piece *p) {
    if (p->part && p->part->len)
        send_text(w, p->part->text, p->part->len, false);
}

static void send_end(struct writer *w) {
    send_text(w, "", 0, true);
}

/* Takes @body over. Without a limit all that is left is generated, unlike OpenAI's 16 tokens. */
static int read_body(struct prompt_job *job, yyjson_doc *body, bool infill, struct err *err) {
    yyjson_doc *ours = NULL;
    int r = translate(body, infill, &ours, err);

    yyjson_doc_free(body);
    if (r == 0)
        r = openai_read_completion(job, ours, err);
    if (r == 0 && !job->request.max_new)
        job->request.max_new = INT32_MAX;
    return r;
}

static int translate_completion(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return read_body(job, body, false, err);
}

static int translate_infill(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return read_body(job, body, true, err);
}

static const struct endpoint completion = {
    .translate = translate_completion,
    .id_prefix = "",
    .parsed = true,
    .begin = send_begin,
    .piece = send_piece,
    .end = send_end,
    .whole = put_whole,
};

static const struct endpoint infill = {
    .translate = translate_infill,
    .id_prefix = "",
    .parsed = true,
    .begin = send_begin,
    .piece = send_piece,
    .end = send_end,
    .whole = put_whole,
};

static void completion_serve(struct exchange *x, struct http *h) {
    (void)h;
    writer_serve(x, &completion);
}

static void infill_serve(struct exchange *x, struct http *h) {
    (void)h;
    writer_serve(x, &infill);
}

/* ---- /apply-template ---- */

static const struct endpoint chat = {.translate = openai_read_chat};

static void write_prompt(struct json *j, const struct prompt_job *job) {
    const struct prompt *p = &job->prompts[0];

    json_open(j, '{');
    json_key(j, "prompt");
    json_string(j, p->text, p->len);
    json_close(j, '}');
}

static void template_serve(struct exchange *x, struct http *h) {
    (void)h;
    lookup_serve(x, &chat, write_prompt);
}

/* ---- what clients read of the server ---- */

static void put_special(struct json *j, const char *key, const struct tokenizer *t, int32_t id) {
    struct gguf_str s = {"", 0};

    if (id >= 0)
        s = tokenizer_text(t, id);
    json_key(j, key);
    json_string(j, s.data, s.len);
}

static void props_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 8 << 20};
    const struct api_model *m = api_of(x)->model;
    struct json j;

    (void)h;
    json_begin(&j, &b);
    json_open(&j, '{');
    json_key(&j, "default_generation_settings");
    json_open(&j, '{');
    json_put_int(&j, "n_ctx", m->max_context);
    json_close(&j, '}');
    json_put_int(&j, "total_slots", api_of(x)->opts.max_running);
    json_put_string(&j, "model_alias", m->id);
    json_put_string(&j, "model_path", m->id);
    json_key(&j, "modalities");
    json_open(&j, '{');
    json_key(&j, "vision");
    json_bool(&j, false);
    json_key(&j, "audio");
    json_bool(&j, false);
    json_close(&j, '}');
    json_key(&j, "chat_template");
    json_string(&j, m->template_source ? m->template_source : "", m->template_len);
    put_special(&j, "bos_token", m->tokenizer, tokenizer_bos(m->tokenizer));
    put_special(&j, "eos_token", m->tokenizer, tokenizer_eos(m->tokenizer));
    json_put_string(&j, "build_info", "weft");
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}

static const struct route routes[] = {
    {"/completion", HTTP_POST, false, true, completion_serve},
    {"/infill", HTTP_POST, false, true, infill_serve},
    {"/props", HTTP_GET, false, false, props_serve},
    {"/apply-template", HTTP_POST, false, false, template_serve},
    {0},
};

static const char *const prefixes[] = {"/completion", "/infill", NULL};

const struct dialect llamacpp_dialect = {
    .name = "llamacpp",
    .prefixes = prefixes,
    .routes = routes,
    .put_ids = openai_put_ids,
    .put_limit = openai_put_limit,
    .put_error = openai_put_error,
    .stream_type = SSE_TYPE,
    .event_begin = SSE_BEGIN,
    .event_end = SSE_END,
    .keepalive = SSE_COMMENT,
};
