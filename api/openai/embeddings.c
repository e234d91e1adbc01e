#include <assert.h>
#include <string.h>

#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "api/http/base64.h"
#include "api/http/json.h"
#include "api/openai/openai.h"
#include "api/openai/vectors.h"
#include "base/try.h"

/* Writes the vector of an input. @base64: as 32-bit floats in base64, little-endian like all
 * machines that this runs on. */
static int write_vector(struct buf *b, uint32_t input, const struct gen *g, bool base64) {
    struct json j = {.out = b};

    assert(!b->data && g->vector);
    if (base64) {
        TRY(buf_printf(b, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":\"", input));
        TRY(base64_add(b, g->vector, g->n_vector * sizeof(*g->vector)));
        return buf_add(b, "\"}", 2);
    }
    json_print(&j, "{object:'embedding', index:%u, embedding:[", input);
    for (uint32_t i = 0; i < g->n_vector; i++)
        json_double(&j, (double)g->vector[i]);
    json_print(&j, "]}");
    return j.error;
}

/* Takes the numbers unwritten. They are written with the answer, on the pool, because there may be
 * millions of them. */
static int steal_floats(struct vectors *v, uint32_t input, struct gen *g) {
    uint32_t n_embd = v->job.model->info->n_embd;

    TRY(vectors_finish(v, g));
    if (v->job.request.input.pool == SUBMIT_POOL_NONE && (!n_embd || g->n_vector % n_embd != 0))
        return -EDOM;
    v->floats = true;
    return buf_add(&v->text[input], g->vector, g->n_vector * sizeof(*g->vector));
}

static int embeddings_finish_input(struct vectors *v, uint32_t input, struct gen *g) {
    const struct gen_request *request = &v->job.request;

    if (request->input.pool == SUBMIT_POOL_NONE)
        return steal_floats(v, input, g);

    TRY(vectors_finish(v, g));
    return write_vector(&v->text[input], input, g, request->answer.base64);
}

/* Writes the vectors of an input that steal_floats() has not written: an array for each token, or
 * one for all. */
static int put_arrays(struct vectors *v, uint32_t input, struct buf *b) {
    const struct buf *floats = &v->text[input];
    size_t n = floats->len / sizeof(float);
    size_t n_row = v->job.request.input.pool == SUBMIT_POOL_NONE ? v->job.model->info->n_embd : n;

    assert(n > 0 && n % n_row == 0);
    for (size_t at = 0; at < n; at += n_row) {
        struct json j = {.out = b};

        TRY(buf_add(b, at ? "," : "[", 1));
        json_open(&j, '[');
        for (size_t i = at; i < at + n_row; i++) {
            float f;

            memcpy(&f, floats->data + i * sizeof(f), sizeof(f));
            json_double(&j, (double)f);
        }
        json_close(&j, ']');
        TRY(j.error < 0 ? j.error : job_pause());
    }
    return buf_add(b, "]", 1);
}

/* Writes the inputs as objects; @head is the beginning of each, before its number. */
static int put_inputs(struct vectors *v, struct buf *b, const char *head) {
    assert(v->floats);
    for (uint32_t i = 0; i < v->n_inputs; i++) {
        TRY(buf_printf(b, "%s{%s\"index\":%u,\"embedding\":", i ? "," : "", head, i));
        TRY(put_arrays(v, i, b));
        TRY(buf_add(b, "}", 1));
        buf_deinit(&v->text[i]);
    }
    return 0;
}

/* Writes the inputs as embeddings_finish_input() has written them. */
static int put_written(struct vectors *v, struct buf *b) {
    for (uint32_t i = 0; i < v->n_inputs; i++) {
        if (i)
            TRY(buf_add(b, ",", 1));
        TRY(buf_add(b, v->text[i].data, v->text[i].len));
        buf_deinit(&v->text[i]);
        TRY(job_pause());
    }
    return 0;
}

/* Writes the vectors, each of which is freed when it has been copied, and the usage. */
static int embeddings_answer(struct vectors *v, struct buf *b) {
    struct json j = {.out = b};

    TRY(buf_printf(b, "{\"object\":\"list\",\"data\":["));
    if (v->floats)
        TRY(put_inputs(v, b, "\"object\":\"embedding\","));
    else
        TRY(put_written(v, b));
    TRY(buf_printf(b, "],\"model\":"));
    json_print(&j, "%s, usage:{prompt_tokens:%ld, total_tokens:%ld}}", v->job.model->info->id,
               (int64_t)v->n_tokens, (int64_t)v->n_tokens);
    return j.error;
}

static int embeddings_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    TRY(gen_request_read(&job->request, job->model, FIELDS_EMBEDDING, body, err));
    if (!job->request.input.pool)
        job->request.input.pool =
            job->model->info->pool ? job->model->info->pool : SUBMIT_POOL_LAST;
    if (job->request.input.pool == SUBMIT_POOL_NONE && job->request.answer.dimensions)
        return err_set_code(err, 400, "unsupported_parameter", "dimensions",
                            "dimensions cannot be combined with the pooling \"none\".");
    return 0;
}

/* Writes the answer of llama-server's /embedding: arrays in an array, also for one vector. */
static int answer_arrays(struct vectors *v, struct buf *b) {
    TRY(buf_add(b, "[", 1));
    TRY(put_inputs(v, b, ""));
    return buf_add(b, "]", 1);
}

static const struct vectors_form form = {embeddings_finish_input, embeddings_answer};
static const struct vectors_form arrays = {steal_floats, answer_arrays};
const struct endpoint openai_embeddings = {.translate = embeddings_translate, .form = &form};
const struct endpoint openai_embedding = {.translate = embeddings_translate, .form = &arrays};
