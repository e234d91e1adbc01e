#include <assert.h>
#include <string.h>
#include "api/generation/gen.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/generation/model.h"
#include "api/openai/openai.h"
#include "api/openai/vectors.h"
#include "base/try.h"

static int put_base64(struct buf *b, const void *data, size_t len) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = data;
    int r;

    for (size_t i = 0; i < len; i += 3) {
        size_t n = MIN(len - i, 3u);
        uint32_t v =
            (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0u);
        char four[4] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63]};

        memset(four + 1 + n, '=', 3 - n);
        if ((r = buf_add(b, four, 4)) != 0)
            return r;
    }
    return 0;
}

/* Writes the vector of an input. @base64: as 32-bit floats in base64, little-endian like all
 * machines that this runs on. */
static int write_vector(struct buf *b, uint32_t input, const struct gen *g, bool base64) {
    struct json j = {.out = b};

    assert(!b->data && g->vector);
    if (base64) {
        int r = buf_printf(b, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":\"", input);

        if (r < 0 || (r = put_base64(b, g->vector, g->n_vector * sizeof(*g->vector))) < 0)
            return r;
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
static int take_floats(struct vectors *v, uint32_t input, struct gen *g) {
    uint32_t n_embd = v->job.model->info->n_embd;
    int r = vectors_finish(v, g);

    if (v->job.request.pool == SUBMIT_POOL_NONE && (!n_embd || g->n_vector % n_embd != 0))
        return -EDOM;
    v->floats = true;
    return r < 0 ? r : buf_add(&v->text[input], g->vector, g->n_vector * sizeof(*g->vector));
}

static int take(struct vectors *v, uint32_t input, struct gen *g) {
    const struct gen_request *request = &v->job.request;

    if (request->pool == SUBMIT_POOL_NONE)
        return take_floats(v, input, g);

    TRY(vectors_finish(v, g));
    return write_vector(&v->text[input], input, g, request->base64);
}

/* Writes the vectors of an input that take_floats() has not written: an array for each token, or
 * one for all. */
static int put_arrays(struct vectors *v, uint32_t input, struct buf *b) {
    const struct buf *floats = &v->text[input];
    size_t n = floats->len / sizeof(float);
    size_t n_row = v->job.request.pool == SUBMIT_POOL_NONE ? v->job.model->info->n_embd : n;
    int r;

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
        if (j.error < 0 || (r = job_pause()) < 0)
            return j.error < 0 ? j.error : r;
    }
    return buf_add(b, "]", 1);
}

/* Writes the inputs as objects; @head is the beginning of each, before its number. */
static int put_inputs(struct vectors *v, struct buf *b, const char *head) {
    int r;

    assert(v->floats);
    for (uint32_t i = 0; i < v->n_inputs; i++) {
        if ((r = buf_printf(b, "%s{%s\"index\":%u,\"embedding\":", i ? "," : "", head, i)) < 0 ||
            (r = put_arrays(v, i, b)) < 0 || (r = buf_add(b, "}", 1)) < 0)
            return r;
        buf_deinit(&v->text[i]);
    }
    return 0;
}

/* Writes the inputs as take() has written them. */
static int put_written(struct vectors *v, struct buf *b) {
    int r;

    for (uint32_t i = 0; i < v->n_inputs; i++) {
        if ((i && (r = buf_add(b, ",", 1)) < 0) ||
            (r = buf_add(b, v->text[i].data, v->text[i].len)) < 0)
            return r;
        buf_deinit(&v->text[i]);
        TRY(job_pause());
    }
    return 0;
}

/* Writes the vectors, each of which is freed when it has been copied, and the usage. */
static int answer(struct vectors *v, struct buf *b) {
    struct json j = {.out = b};

    TRY(buf_printf(b, "{\"object\":\"list\",\"data\":["));
    int r = v->floats ? put_inputs(v, b, "\"object\":\"embedding\",") : put_written(v, b);
    if (r < 0 || (r = buf_printf(b, "],\"model\":")) < 0)
        return r;
    json_print(&j, "%s, usage:{prompt_tokens:%ld, total_tokens:%ld}}", v->job.model->info->id,
               (int64_t)v->n_tokens, (int64_t)v->n_tokens);
    return j.error;
}

static int translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    TRY(gen_request_read(&job->request, job->model, FIELDS_EMBEDDING, body, err));
    if (!job->request.pool)
        job->request.pool = job->model->info->pool ? job->model->info->pool : SUBMIT_POOL_LAST;
    if (job->request.pool == SUBMIT_POOL_NONE && job->request.dimensions)
        return err_set_code(err, 400, "unsupported_parameter", "dimensions",
                            "dimensions cannot be combined with the pooling \"none\".");
    return 0;
}

/* Writes the answer of llama-server's /embedding: arrays in an array, also for one vector. */
static int answer_arrays(struct vectors *v, struct buf *b) {
    int r = buf_add(b, "[", 1);

    if (r < 0 || (r = put_inputs(v, b, "")) < 0)
        return r;
    return buf_add(b, "]", 1);
}

static const struct vectors_form form = {take, answer};
static const struct vectors_form arrays = {take_floats, answer_arrays};
const struct endpoint openai_embeddings = {.translate = translate, .form = &form};
const struct endpoint openai_embedding = {.translate = translate, .form = &arrays};
