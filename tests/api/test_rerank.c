/* The scripted worker's score is the last byte of the prompt, which belongs to the document, minus
 * 'm'. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define RERANK "/v1/rerank"

static void started(struct world *w) {
    world_init(w);
    w->port.script = "";
    w->model.ranks = true;
    w->model.pair.before = "";
    w->model.pair.between = "<|im_end|>";
    w->model.pair.behind = "";
    world_start(w);
}

static yyjson_doc *ask(struct world *w, const char *path, const char *body) {
    struct reply r;

    world_ask(w, path, body, &r);
    cr_assert_eq(r.status, 200, "%s: %.*s", body, (int)r.body.len, r.body.data);
    yyjson_doc *d = yyjson_read(r.body.data, r.body.len, 0);
    cr_assert(d);
    reply_deinit(&r);
    return d;
}

static yyjson_val *get(yyjson_doc *d, const char *key) {
    return yyjson_obj_get(yyjson_doc_get_root(d), key);
}

/* @index: the documents' numbers, the best first; @logit: the logits of their scores. */
static void expect_results(yyjson_doc *d, size_t n, const uint64_t *index, const double *logit,
                           bool raw) {
    yyjson_val *results = get(d, "results"), *v;
    size_t i, max;

    cr_assert_eq(yyjson_arr_size(results), n);
    yyjson_arr_foreach(results, i, max, v) {
        double score = yyjson_get_num(yyjson_obj_get(v, "relevance_score"));
        double want = raw ? logit[i] : 1 / (1 + exp(-logit[i]));

        cr_expect_eq(yyjson_get_uint(yyjson_obj_get(v, "index")), index[i], "%zu", i);
        cr_expect_float_eq(score, want, 1e-6, "%zu: %g, not %g", i, score, want);
    }
}

Test(rerank, has_the_best_documents_first) {
    static const uint64_t order[] = {2, 0, 3, 1};
    static const double logit[] = {2, 1, 1, -3}; /* equal ones stay in their order */
    struct world w;

    started(&w);
    yyjson_doc *d = ask(&w, RERANK,
                        R"({"model":"tiny","query":"q","documents":["n","j","o",)"
                        R"({"text":"an"}]})");
    expect_results(d, 4, order, logit, false);
    cr_expect(yyjson_equals_str(get(d, "object"), "list"));
    cr_expect(yyjson_equals_str(get(d, "model"), "tiny"));
    cr_expect_eq(yyjson_get_uint(yyjson_obj_get(get(d, "usage"), "prompt_tokens")), 13u);
    cr_expect_null(yyjson_obj_get(yyjson_arr_get_first(get(d, "results")), "document"));
    yyjson_doc_free(d);
    d = ask(&w, "/rerank",
            R"({"query":"q","documents":["n","j","o",{"text":"an"}],"top_n":2,)"
            R"("raw_scores":true,"return_documents":true})");
    expect_results(d, 2, order, logit, true);
    yyjson_doc *voyage = ask(&w, RERANK,
                             R"({"query":"q","documents":["n","j","o",{"text":"an"}],"top_k":2,)"
                             R"("use_activation":false})");
    expect_results(voyage, 2, order, logit, true);
    yyjson_doc_free(voyage);
    yyjson_val *first = yyjson_obj_get(yyjson_arr_get_first(get(d, "results")), "document");
    cr_expect(yyjson_equals_str(yyjson_obj_get(first, "text"), "o"));
    yyjson_doc_free(d);
    for (uint32_t i = 0; i < w.port.n; i++)
        cr_expect_eq(w.port.r[i].m.flags & (SUBMIT_POOLS | SUBMIT_SCORE),
                     SUBMIT_POOL_LAST | SUBMIT_SCORE);
    world_stop(&w);
}

/* The separator of the two texts is a special token; the same text in them is not. */
Test(rerank, texts_are_answered_as_tei_does) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/rerank", R"({"query":"q","texts":["m","n","o"],"raw_scores":true})", &r);
    cr_expect_str_eq(r.body.data, R"([{"index":2,"score":2},{"index":1,"score":1},)"
                                  R"({"index":0,"score":0}])");
    reply_deinit(&r);
    world_ask(&w, "/rerank", R"({"query":"q","texts":["m","n"],"top_n":1,"return_text":true})", &r);
    cr_expect_str_eq(r.body.data, R"([{"index":1,"score":0.731058579,"text":"n"}])");
    reply_deinit(&r);
    world_stop(&w);
}

Test(rerank, texts_never_hold_special_tokens) {
    struct world w;

    started(&w);
    yyjson_doc_free(ask(&w, RERANK, R"({"query":"a","documents":["b"]})"));
    yyjson_doc_free(ask(&w, RERANK, R"({"query":"<|im_end|>","documents":["<|im_end|>"]})"));
    cr_expect_eq(w.port.r[0].m.n_prompt, 3u);
    cr_expect_eq(w.port.r[1].m.n_prompt, 21u);
    world_stop(&w);
}

/* A client's instruction never holds special tokens, as the template's own does not. */
Test(rerank, takes_an_instruction_where_the_model_knows_one) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, RERANK, R"({"query":"q","documents":["d"],"instruction":"i"})", &r);
    cr_expect(r.status == 400 && strstr(r.body.data, R"("param":"instruction")"), "%s",
              r.body.data);
    reply_deinit(&r);
    w.model.pair.before = "<|im_start|><Instruct>: own\n<Query>: ";
    yyjson_doc_free(ask(&w, RERANK, R"({"query":"q","documents":["d"]})"));
    yyjson_doc_free(
        ask(&w, RERANK, R"({"query":"q","documents":["d"],"instruction":"i<|im_end|>"})"));
    cr_expect_str_eq(fake_prompt(&w.port.r[0]), "|<Instruct>: own\n<Query>: q|d");
    cr_expect_eq(w.port.r[1].m.n_prompt, w.port.r[0].m.n_prompt - 3 + 11);
    cr_expect_eq(w.port.r[1].m.tokens[0], TINY_START);
    world_stop(&w);
}

Test(rerank, asks_an_encoder_at_its_first_token) {
    struct world w;

    world_init(&w);
    w.port.script = "";
    w.model.encoder = w.model.ranks = true;
    w.model.pair.before = w.model.pair.between = w.model.pair.behind = "";
    world_start(&w);
    yyjson_doc_free(ask(&w, RERANK, R"({"query":"a","documents":["b"]})"));
    cr_expect_eq(w.port.r[0].m.flags & SUBMIT_POOLS, SUBMIT_POOL_CLS);
    world_stop(&w);
}

Test(rerank, score_is_vllms_form_of_it) {
    static const char *const bodies[] = {
        R"({"text_1":"q","text_2":"n","raw_scores":true})",
        R"({"text_1":"q","text_2":["n","o"],"raw_scores":true})",
        R"({"text_1":["q","rr"],"text_2":["n","o"],"raw_scores":true})",
        R"({"data_1":"q","data_2":["n","o"],"use_activation":false})",
        R"({"queries":"q","documents":["n","o"],"use_activation":false})",
        R"({"queries":["q"],"items":["n"],"use_activation":false})",
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        yyjson_doc *d = ask(&w, i ? "/score" : "/v1/score", bodies[i]);
        yyjson_val *data = get(d, "data"), *v;
        size_t k, n;

        cr_assert_eq(yyjson_arr_size(data), i > 0 && i < 5 ? 2u : 1u);
        yyjson_arr_foreach(data, k, n, v) {
            cr_expect_eq(yyjson_get_uint(yyjson_obj_get(v, "index")), k);
            cr_expect_float_eq(yyjson_get_num(yyjson_obj_get(v, "score")), k + 1.0, 1e-6);
        }
        yyjson_doc_free(d);
    }
    cr_expect_eq(w.port.r[4].m.n_prompt, 4u, "the second query with the second text");
    world_stop(&w);
}

/* The list is longer than the loop handles at once, and longer than what runs at once. */
Test(rerank, long_lists_are_answered_in_full) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;

    started(&w);
    cr_assert_eq(buf_printf(&body, R"({"raw_scores":true,"query":"%0200d","documents":[)", 7), 0);
    for (int i = 0; i < 240; i++)
        cr_assert_eq(buf_printf(&body, R"(%s"%c")", i ? "," : "", 'a' + i % 26), 0);
    cr_assert_eq(buf_printf(&body, "]}"), 0);
    yyjson_doc *d = ask(&w, RERANK, body.data);
    yyjson_val *results = get(d, "results"), *v;
    double last = 1e9;
    size_t i, n;
    cr_assert_eq(yyjson_arr_size(results), 240u);
    yyjson_arr_foreach(results, i, n, v) {
        double score = yyjson_get_num(yyjson_obj_get(v, "relevance_score"));

        cr_expect_leq(score, last);
        cr_expect_eq(score, 'a' + (double)(yyjson_get_uint(yyjson_obj_get(v, "index")) % 26) - 'm');
        last = score;
    }
    yyjson_doc_free(d);
    world_stop(&w);
}

Test(rerank, refusals_name_the_place) {
    static const struct {
        const char *path, *body, *param, *code;
    } table[] = {
        {RERANK, "{}", "query", "missing_required_parameter"},
        {RERANK, R"({"query":"a"})", "documents", "missing_required_parameter"},
        {RERANK, R"({"query":"a","documents":[]})", "documents", "invalid_value"},
        {RERANK, R"({"query":"a","documents":"b"})", "documents", "invalid_value"},
        {RERANK, R"({"query":"","documents":["b"]})", "query", "invalid_value"},
        {RERANK, R"({"query":["a"],"documents":["b"]})", "query", "invalid_value"},
        {RERANK, R"({"query":"a","documents":["b",""]})", "documents[1]", "invalid_value"},
        {RERANK, R"({"query":"a","documents":[{"image":"b"}]})", "documents[0]", "invalid_value"},
        {RERANK, R"({"query":"a","documents":["b"],"top_n":-1})", "top_n", "invalid_value"},
        {RERANK, R"({"query":"a","documents":["b"],"return_documents":1})", "return_documents",
         "invalid_value"},
        {RERANK, R"({"query":"a","documents":["b"],"max_tokens_per_doc":2})", "max_tokens_per_doc",
         "unsupported_parameter"},
        {RERANK, R"({"query":"a","documents":["b"],"texts":["b"]})", "texts", "invalid_value"},
        {RERANK, R"({"query":"a","texts":["b",""]})", "texts[1]", "invalid_value"},
        {"/score", R"({"text_1":"a"})", "text_2", "missing_required_parameter"},
        {"/score", R"({"text_1":"a","text_2":[]})", "text_2", "invalid_value"},
        {"/score", R"({"text_1":["a","b"],"text_2":["a"]})", "text_1", "invalid_value"},
        {"/score", R"({"text_1":["a",""],"text_2":["a","b"]})", "text_1[1]", "invalid_value"},
        {"/score", R"({"queries":"a","documents":["a",""]})", "documents[1]", "invalid_value"},
        {"/score", R"({"queries":["a","b"],"items":["a"]})", "queries", "invalid_value"},
        {"/score", R"({"queries":"a","text_1":"a","items":["a"]})", "text_1", "invalid_value"},
        {"/score", R"({"text_1":"a","items":"b","data_2":"c"})", "data_2", "invalid_value"},
    };
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;
    char needle[160];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        world_ask(&w, table[i].path, table[i].body, &r);
        snprintf(needle, sizeof(needle), R"("param":"%s","code":"%s")", table[i].param,
                 table[i].code);
        cr_expect_eq(r.status, 400, "%s", table[i].body);
        cr_expect(strstr(r.body.data, needle), "%s: %s", table[i].body, r.body.data);
        reply_deinit(&r);
    }
    cr_assert_eq(buf_printf(&body, R"({"query":"q","documents":["a","%0600d"]})", 0), 0);
    world_ask(&w, RERANK, body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":"documents[1]","code":"context_length_exceeded")"),
              "%s", r.body.data);
    reply_deinit(&r);
    buf_clear(&body);
    cr_assert_eq(buf_printf(&body, R"({"query":"%0*d","documents":["a"]})", 65537, 0), 0);
    world_ask(&w, RERANK, body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "at most 65536 bytes"), "%s", r.body.data);
    reply_deinit(&r);
    cr_expect_eq(w.port.n, 0u);
    world_stop(&w);
}

/* The refused part shows whether this number of texts is accepted. */
static void expect_score_refused(struct world *w, uint32_t n_texts, const char *part) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct reply r;

    cr_assert_eq(buf_printf(&body, R"({"text_1":["a"],"text_2":["0")"), 0);
    for (uint32_t i = 1; i < n_texts; i++)
        cr_assert_eq(buf_printf(&body, R"(,"%u")", i), 0);
    cr_assert_eq(buf_printf(&body, "]}"), 0);
    world_ask(w, "/score", body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, part), "%u texts: %s", n_texts, r.body.data);
    reply_deinit(&r);
}

Test(rerank, scores_at_most_2048_texts) {
    struct world w;

    started(&w);
    expect_score_refused(&w, 2048, R"("param":"text_1")");
    expect_score_refused(&w, 2049, "text_2 must have 1 to 2048 entries.");
    world_stop(&w);
}

Test(rerank, needs_a_model_that_was_made_for_it) {
    struct world w;
    struct reply r;

    world_init(&w);
    world_start(&w);
    world_ask(&w, RERANK, R"({"query":"a","documents":["b"]})", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":"model","code":"unsupported_model")"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}
