/*
 * /api/embed: the vectors of /v1/embeddings in Ollama's form. An input that is too long is refused
 * and not cut, as if "truncate" were false. A request without input gets an answer without vectors,
 * as Ollama gives it to clients that only want the model loaded. The older /api/embeddings has one
 * text, `prompt`, and one vector, which is not normalised.
 */

#include <assert.h>
#include <errno.h>

#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/ollama/ollama.h"
#include "api/openai/vectors.h"
#include "base/json_read.h"
#include "base/try.h"

static int ollama_embed_finish(struct vectors *v, uint32_t input, struct gen *g) {
    struct json j = {.out = &v->text[input]};
    TRY(vectors_finish(v, g));
    json_open(&j, '[');
    for (uint32_t i = 0; i < g->n_vector; i++)
        json_double(&j, (double)g->vector[i]);
    json_close(&j, ']');
    return j.error;
}

/* Writes the answer of /api/embeddings. */
static int answer_one(struct vectors *v, struct buf *b) {
    struct json j = {.out = b};

    assert(v->n_inputs <= 1);
    json_print(&j, "{embedding:");
    if (v->n_inputs == 1) {
        json_valid(&j, v->text[0].data, v->text[0].len);
    } else {
        json_print(&j, "[]");
    }
    json_close(&j, '}');
    return j.error;
}

static int ollama_embed_answer(struct vectors *v, struct buf *b) {
    assert(!v->floats);
    int64_t took = clock_now(v->job.env->clock) - v->started_ns;
    struct json j = {.out = b};

    json_print(&j, "{model:%s, embeddings:[", v->job.model->info->id);
    for (uint32_t i = 0; i < v->n_inputs; i++) {
        json_valid(&j, v->text[i].data, v->text[i].len);
        buf_deinit(&v->text[i]);
        TRY(job_pause());
    }
    json_print(&j, "], total_duration:%ld, load_duration:0, prompt_eval_count:%ld}", took,
               (int64_t)v->n_tokens);
    return j.error;
}

static bool is_nothing(yyjson_val *v) {
    return !v || yyjson_is_null(v) || ((yyjson_is_str(v) || yyjson_is_arr(v)) && json_is_empty(v));
}

/* Returns the body in the form of /v1/embeddings, without its model: that has been found, and its
 * name may have a tag. @one: the body is that of /api/embeddings. @none: the input is an empty
 * list. Returns NULL if there is no memory. */
static yyjson_doc *as_embedding(yyjson_doc *body, bool one, bool none) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = json_doc_copy(body, &failed);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(d);
    yyjson_doc *out = NULL;

    yyjson_mut_obj_remove_key(root, "model");
    if (one || none)
        yyjson_mut_obj_remove_key(root, "input");
    if (none) {
        yyjson_mut_obj_remove_key(root, "prompt");
        yyjson_mut_obj_add_arr(d, root, "input");
    } else if (one) {
        yyjson_mut_obj_rename_key(d, root, "prompt", "input");
    }
    if (one) {
        yyjson_mut_obj_remove_key(root, "normalize");
        yyjson_mut_obj_add_bool(d, root, "normalize", false);
    }
    json_doc_seal(d, root, &out);
    return out;
}

static int ollama_embed_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    yyjson_val *root = yyjson_doc_get_root(body);
    bool one = job->endpoint == &ollama_embeddings;
    yyjson_val *prompt = yyjson_obj_get(root, "prompt");

    bool none = is_nothing(one ? prompt : yyjson_obj_get(root, "input"));
    if (one && !none && !yyjson_is_str(prompt)) {
        yyjson_doc_free(body);
        return err_set_code(err, 400, "invalid_value", "prompt", "prompt must be a text");
    }
    yyjson_doc *ours = as_embedding(body, one, none);
    yyjson_doc_free(body);
    TRY(ours ? gen_request_read(&job->request, job->model, FIELDS_EMBEDDING, ours, err) : -ENOMEM);
    if (job->request.input.pool == SUBMIT_POOL_NONE)
        return err_set_code(err, 400, "invalid_value", "pooling",
                            "use /v1/embeddings or /embedding for vectors of each token");
    job->request.answer.takes_none = none;
    if (!job->request.input.pool)
        job->request.input.pool =
            job->model->info->pool ? job->model->info->pool : SUBMIT_POOL_LAST;
    return 0;
}

static const struct vectors_form form = {ollama_embed_finish, ollama_embed_answer},
                                 form_one = {ollama_embed_finish, answer_one};
const struct endpoint ollama_embed = {.translate = ollama_embed_translate, .form = &form};
const struct endpoint ollama_embeddings = {.translate = ollama_embed_translate, .form = &form_one};
