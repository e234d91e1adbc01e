/*
 * /v1/rerank, as Cohere, Jina, vLLM and llama-server have it, or text-embeddings-inference (TEI),
 * and vLLM's /v1/score: how well each document answers the query, as a probability, or as the
 * model's own number (raw_scores). Each pair is a prompt of its own.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "api/generation/gen.h"
#include "api/generation/model.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/openai/openai.h"
#include "api/openai/vectors.h"

static int rerank_finish_input(struct vectors *v, uint32_t input, struct gen *g) {
    assert(input < v->n_inputs && g->n_vector > 0);
    const struct prompt *p = &v->job.prompts[input];
    double x = (double)g->vector[0];
    struct json j = {.out = &v->text[input]};

    if (g->n_vector != 1 || !isfinite(x))
        return -EDOM;
    v->score[input] = v->job.request.answer.raw_scores ? x : 1 / (1 + exp(-x));
    if (!v->job.request.answer.return_documents)
        return 0;
    json_string(&j, p->text, p->len);
    return j.error;
}

static void rerank_put_usage(struct json *j, const struct vectors *v) {
    json_print(j, "usage:{prompt_tokens:%ld, total_tokens:%ld}", (int64_t)v->n_tokens,
               (int64_t)v->n_tokens);
}

static int by_score(const void *a, const void *b, void *score) {
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const double *s = score;

    if (s[i] != s[k]) {
        if (s[i] < s[k])
            return 1;
        return -1;
    }
    return (i > k) - (i < k);
}

static void rerank_begin(struct json *j, const struct vectors *v, const char *prefix) {
    char id[sizeof(v->id) + 16];

    snprintf(id, sizeof(id), "%s-%s", prefix, v->id);
    json_print(j, "{id:%s, object:'list', created:%ld, model:%s", id, (int64_t)time(NULL),
               v->job.model->info->id);
}

/* Writes document @i with its score, in the form of the request. */
static void rerank_put_result(struct json *j, const struct vectors *v, uint32_t i) {
    const struct buf *text = &v->text[i];
    bool tei = v->job.request.answer.reranks_texts;

    json_print(j, "{index:%u, %s:%g", i, tei ? "score" : "relevance_score", v->score[i]);
    if (text->len) {
        json_print(j, tei ? "text:" : "document:{text:");
        json_raw(j, text->data, text->len);
    }
    json_print(j, text->len && !tei ? "}}" : "}");
}

/* Writes the results, the best first; documents of equal score stay in order. */
static int answer_rerank(struct vectors *v, struct buf *b) {
    uint32_t n = v->n_inputs, top = v->job.request.answer.top_n;
    bool tei = v->job.request.answer.reranks_texts;
    uint32_t *order = malloc(n * sizeof(*order));
    struct json j = {.out = b};

    if (!order)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, n, sizeof(*order), by_score, v->score);
    if (!tei) {
        rerank_begin(&j, v, "rerank");
        json_print(&j, "results:");
    }
    json_open(&j, '[');
    for (uint32_t i = 0; i < n && (top == 0 || i < top); i++)
        rerank_put_result(&j, v, order[i]);
    json_close(&j, ']');
    if (!tei) {
        rerank_put_usage(&j, v);
        json_close(&j, '}');
    }
    free(order);
    return j.error;
}

static int answer_score(struct vectors *v, struct buf *b) {
    struct json j = {.out = b};

    rerank_begin(&j, v, "score");
    json_print(&j, "data:[");
    for (uint32_t i = 0; i < v->n_inputs; i++)
        json_print(&j, "{index:%u, object:'score', score:%g}", i, v->score[i]);
    json_close(&j, ']');
    rerank_put_usage(&j, v);
    json_close(&j, '}');
    return j.error;
}

static int rerank_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    const struct api_model *m = job->model->info;
    enum field_set fields = job->endpoint == &openai_score ? FIELDS_SCORE : FIELDS_RERANK;
    int r = gen_request_read(&job->request, job->model, fields, body, err);

    if (r == 0 && !m->ranks)
        return err_set_code(
            err, 400, "unsupported_model", "model",
            "The model `%.100s` is not a reranker. Use another model for this path.", m->id);
    if (r == 0 && job->request.input.instruction.len && !prompt_pair_is_instructed(m))
        return err_set_code(
            err, 400, "unsupported_parameter", "instruction",
            "The model `%.100s` was trained without instructions; leave out instruction.", m->id);
    job->request.answer.scores_texts = fields == FIELDS_SCORE;
    job->request.input.pool = SUBMIT_SCORE | (m->encoder ? SUBMIT_POOL_CLS : SUBMIT_POOL_LAST);
    return r;
}

static const struct vectors_form rerank_form = {rerank_finish_input, answer_rerank};
static const struct vectors_form score_form = {rerank_finish_input, answer_score};
const struct endpoint openai_rerank = {.translate = rerank_translate, .form = &rerank_form};
const struct endpoint openai_score = {.translate = rerank_translate, .form = &score_form};
